import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';

/** What `native/sandbox` is told; a list is told once for each. */
export type SandboxInput = Readonly<Record<string, string | number | readonly string[] | undefined>>;

/** The helper program of this installation. `CAPSTAN_SANDBOX` names another. */
export function findSandbox(root = packageRoot()): string | undefined {
  const own = process.env.CAPSTAN_SANDBOX;
  const candidates = [
    ...(own === undefined || own === '' ? [] : [own]),
    join(root, 'build', 'Release', 'capstan_sandbox'),
    join(root, 'prebuilds', `${process.platform}-${process.arch}`, 'capstan_sandbox'),
  ];
  return candidates.find((file) => existsSync(file));
}

/** Where package.json is: a level further up from what is compiled. */
export function packageRoot(): string {
  let folder = __dirname;
  while (!existsSync(join(folder, 'package.json'))) folder = dirname(folder);
  return folder;
}

/**
 * Starts a supervisor, which from then on lives by itself. Resolves once what it runs is running.
 * @param onEnd Hears that it has ended.
 * @throws Error with what the supervisor says
 */
export async function launch(program: string, input: SandboxInput, onEnd: () => void): Promise<void> {
  // Secrets go by the pipe: neither arguments nor files hold them.
  const child = spawn(program, [], { detached: true, stdio: ['pipe', 'pipe', 'ignore'], cwd: '/', env: {} });
  const failed = new Promise<never>((_resolve, reject) =>
    child.once('error', (error) => reject(new Error(`${program} does not start: ${error.message}`))),
  );
  child.once('exit', onEnd);
  child.stdin.on('error', () => {});
  child.stdin.end(encode(input));
  const said = (await Promise.race([text(child.stdout), failed])).trim();
  child.unref();
  if (said !== 'ok')
    throw new Error(
      said.startsWith('error ') ? said.slice('error '.length) : 'the supervisor ended before it said how it went',
    );
}

function encode(input: SandboxInput): string {
  const pairs = Object.entries(input).flatMap(([key, value]) =>
    value === undefined
      ? []
      : Array.isArray(value)
        ? (value as string[]).map((item) => [key, item])
        : [[key, String(value)]],
  );
  for (const [key, value] of pairs) if (value.includes('\0')) throw new Error(`${key}: expected a text without NUL`);
  return pairs.map(([key, value]) => `${key}\0${value}\0`).join('');
}
