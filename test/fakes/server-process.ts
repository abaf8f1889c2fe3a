/** Runs the compiled command in a separate process, with the fake addon. */
import { transformFileSync } from '@swc/core';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './temporary-folder';

const root = join(__dirname, '../..');
/** With CAPSTAN_INSTALLED, a folder where the packages are installed, the tests run on that installation. */
const { CAPSTAN_INSTALLED: installed } = process.env;
export const main = join(
  installed === undefined ? root : join(installed, 'node_modules/capstan'),
  'dist/server/main.js',
);

/** An installation has no uWebSockets.js. */
export const TRANSPORTS = installed === undefined ? (['uws', 'node'] as const) : (['node'] as const);

let prepared: { CAPSTAN_ADDON: string } | undefined;

/**
 * Compiles the server if it is stale, and the fake addon. Later calls in the same test file return the first result.
 */
export function prepare(): { CAPSTAN_ADDON: string } {
  if (prepared !== undefined) return prepared;
  execFileSync(process.execPath, [join(root, 'ts/build.js')]);
  const { code } = transformFileSync(join(__dirname, 'fake-addon.ts'), {
    jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
    module: { type: 'commonjs' },
  });
  const path = join(temporaryFolder('addon'), 'fake-addon.js');
  writeFileSync(path, code);
  prepared = { CAPSTAN_ADDON: path };
  return prepared;
}

export interface Running {
  process: ChildProcess;
  output: () => { stdout: string; stderr: string };
  /** Resolves with exit code and signal. */
  exited: Promise<[number | null, NodeJS.Signals | null]>;
  /** Resolves with standard output when it contains the text. */
  until: (text: string) => Promise<string>;
}

const running = new Set<ChildProcess>();

export function start(args: readonly string[], env: NodeJS.ProcessEnv): Running {
  const {
    PLATFORM_SERVING_PRODUCTION: _p,
    PLATFORM_SERVING_HOST: _h,
    PLATFORM_SERVING_PORT: _n,
    ...clean
  } = process.env;
  const child = spawn(process.execPath, [main, ...args], {
    env: { ...clean, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  running.add(child);
  const output = { stdout: '', stderr: '' };
  child.stdout.on('data', (bytes: Buffer) => {
    output.stdout += bytes.toString();
  });
  child.stderr.on('data', (bytes: Buffer) => {
    output.stderr += bytes.toString();
  });
  const exited = once(child, 'close').then((result) => {
    running.delete(child);
    return result as [number | null, NodeJS.Signals | null];
  });
  const until = async (text: string): Promise<string> => {
    for (let waited = 0; waited < 60_000; waited += 10) {
      if (output.stdout.includes(text)) return output.stdout;
      if (child.exitCode !== null) break;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    throw new Error(`expected in the output ${JSON.stringify(text)}: ${output.stdout}${output.stderr}`);
  };
  return { process: child, output: () => output, exited, until };
}

/** Starts `serve` on a free port. Resolves with its URL when it is ready. */
export async function startServer(args: readonly string[], env: NodeJS.ProcessEnv): Promise<Running & { url: string }> {
  const server = start(['serve', ...args, '--port', '0'], env);
  const text = await server.until('curl ');
  return { ...server, url: /curl (http:\/\/[^/]+)/.exec(text)![1] };
}

/** Creates an access key. Returns its secret. */
export function createKey(keysDb: string, ...flags: string[]): string {
  const output = execFileSync(process.execPath, [main, 'keys', 'create', '--keys-db', keysDb, '--json', ...flags], {
    encoding: 'utf8',
  });
  return JSON.parse(output).secret as string;
}

export function killAll(): void {
  for (const child of running) child.kill('SIGKILL');
}
