import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { packageRoot, platformFolder, prebuildsOf } from 'capstan/internal';

/** Input of `native/sandbox`. A list repeats its key for each item. */
export type SandboxInput = Readonly<Record<string, string | number | readonly string[] | undefined>>;

const HELPER = 'capstan_sandbox';

/** Returns the path of the helper program: `CAPSTAN_SANDBOX` if set, else as for the native addon. */
export function findSandbox(): string | undefined {
  const { CAPSTAN_SANDBOX: chosen = '' } = process.env;
  const platform = platformFolder();
  const candidates = [
    ...(chosen === '' ? [] : [chosen]),
    join(packageRoot(), 'build', 'Release', HELPER),
    ...(platform === undefined ? [] : [join(prebuildsOf(platform), HELPER)]),
  ];
  return candidates.find((file) => existsSync(file));
}

/**
 * Starts a supervisor as a detached process. Resolves once its workload is running.
 * @param onEnd Called when a supervisor that has started its workload ends.
 * @param signal Kills the supervisor while it starts. A failed start rejects after the supervisor's end.
 * @throws Error with the supervisor's message
 */
export async function launch(
  program: string,
  input: SandboxInput,
  onEnd: () => void,
  signal: AbortSignal = new AbortController().signal,
): Promise<void> {
  signal.throwIfAborted();
  // Secrets go through the pipe, never through arguments or files.
  const child = spawn(program, [], { detached: true, stdio: ['pipe', 'pipe', 'ignore'], cwd: '/', env: {} });
  const failed = new Promise<never>((_resolve, reject) =>
    child.once('error', (error) => reject(new Error(`cannot start ${program}: ${error.message}`))),
  );
  child.stdin.on('error', () => {});
  child.stdin.end(encode(input));
  const kill = (): void => void child.kill('SIGKILL');
  signal.addEventListener('abort', kill, { once: true });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  // A process that a killed supervisor started may still hold the pipe.
  const killed = new Promise<string>((resolve) => void ended.then(() => signal.aborted && resolve('')));
  const output = (await Promise.race([text(child.stdout), failed, killed])).trim();
  const isStarted = output === 'ok' && !signal.aborted;
  // The pipe closes before the process has ended.
  if (!isStarted) await ended;
  signal.removeEventListener('abort', kill);
  child.unref();
  if (isStarted) return void ended.then(onEnd);
  if (signal.aborted) throw new Error('the start was ended');
  throw new Error(
    output.startsWith('error ') ? output.slice('error '.length) : 'the supervisor ended without a result',
  );
}

function encode(input: SandboxInput): string {
  const pairs = Object.entries(input).flatMap(([key, value]): [string, string][] => {
    if (value === undefined) return [];
    const items = Array.isArray(value) ? (value as string[]) : [String(value)];
    return items.map((item) => [key, item]);
  });
  for (const [key, value] of pairs) if (value.includes('\0')) throw new Error(`${key}: expected text without NUL`);
  return pairs.map(([key, value]) => `${key}\0${value}\0`).join('');
}
