/** The gateways that benchmarks/gateway-peers.ts compares: each runs on one core, in front of the same upstream. */
import LibsqlDatabase from 'libsql';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { generateKey } from '../../server/base/key-format';
import { Client } from '../../server/platform/api/client';
import type { Route } from './load';

const MAIN = join(__dirname, '../../dist/server/main.js');
const START_MS = 90_000;
const CHAT = '/v1/chat/completions';
export const MODEL = 'demo';

export interface Peer {
  name: string;
  route: Route;
  process: ChildProcess;
  stop: () => Promise<void>;
}

interface Started {
  child: ChildProcess;
  output: () => string;
}

/** Starts a command on core 0. */
function startPinned(command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Started {
  const child = spawn('taskset', ['-c', '0', command, ...args], {
    env: { ...process.env, NODE_ENV: 'production', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (bytes: Buffer) => (text = (text + bytes.toString()).slice(-100_000)));
  return { child, output: () => text };
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), 10_000);
  await exited;
  clearTimeout(timer);
}

async function until<T>({ child, output }: Started, find: () => T | undefined | Promise<T | undefined>): Promise<T> {
  for (const startedMs = Date.now(); Date.now() - startedMs < START_MS; await sleep(100)) {
    const found = await find();
    if (found !== undefined) return found;
    if (child.exitCode !== null) break;
  }
  child.kill('SIGKILL');
  throw new Error(`the gateway did not start: ${output()}`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}

const portAnswers = (url: string) => async () =>
  (await fetch(url).then(
    ({ status }) => status === 200,
    () => false,
  ))
    ? true
    : undefined;

function route(port: number, ...headers: string[]): Route {
  return { port, path: CHAT, headers };
}

export const directRoute = (port: number): Route => route(port);

/** Adds copies of the key in the database, each with another id and secret, until there are `numKeys`. */
function addKeys(file: string, numKeys: number): void {
  const database = new LibsqlDatabase(file);
  const [row] = database.prepare('select * from api_keys').all() as Record<string, unknown>[];
  const [secret] = database.prepare('select * from api_key_secrets').all() as Record<string, unknown>[];
  const insert = (table: string, columns: Record<string, unknown>) =>
    database.prepare(
      `insert into ${table} (${Object.keys(columns).join()}) values (${Object.keys(columns)
        .map(() => '?')
        .join()})`,
    );
  const [addKey, addSecret] = [insert('api_keys', row), insert('api_key_secrets', secret)];
  database.exec('begin');
  for (let i = 1; i < numKeys; i++) {
    const id = `key_${String(i).padStart(26, '0')}`;
    const { publicId } = generateKey();
    addKey.run(...Object.values({ ...row, id, public_id: publicId, name: `key ${i}` }));
    addSecret.run(...Object.values({ ...secret, key_id: id }));
  }
  database.exec('commit');
  database.close();
}

/** Starts the deployment service with its defaults and one upstream, found by `model`. */
export async function startCapstan(upstreamPort: number, numKeys: number, transport: 'node' | 'uws'): Promise<Peer> {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-gateway-'));
  const dataDir = join(folder, 'data');
  const password = join(folder, 'password');
  writeFileSync(password, 'correct horse battery staple\n', { mode: 0o600 });
  const flags = ['up', '--data-dir', dataDir, '--port', '0', '--allow-private-upstreams'];
  const admin = ['--bootstrap-email', 'ada@example.com', '--bootstrap-password-file', password];
  const start = async (...more: string[]) => {
    const started = startPinned(process.execPath, [MAIN, ...flags, '--http-transport', transport, ...more]);
    const [, console, serving] = await until(
      started,
      () => /management API (\S+), deployments (\S+)[^]*\nIsolation: /.exec(started.output()) ?? undefined,
    );
    return { ...started, console, serving };
  };
  const first = await start(...admin);
  const names = ['--email', 'ada@example.com', '--name', 'benchmark'];
  const token = execFileSync(process.execPath, [MAIN, 'tokens', 'create', '--data-dir', dataDir, ...names], {
    encoding: 'utf8',
  }).trim();
  const client = new Client({ url: first.console, token });
  await client.deployments.create({
    name: MODEL,
    upstream: { url: `http://127.0.0.1:${upstreamPort}/v1`, secret: 'sk-upstream' },
    access_control: true,
  });
  const { secret } = await client.request<{ secret: string }>('POST', '/keys', {
    body: { name: 'benchmark', type: 'user-level' },
  });
  await stop(first.child);
  addKeys(join(dataDir, 'capstan.db'), numKeys);
  const { child, serving } = await start();
  return {
    name: transport === 'node' ? 'Capstan' : 'Capstan, uWebSockets.js',
    route: route(Number(new URL(serving).port), `Authorization: Bearer ${secret}`),
    process: child,
    stop: async () => {
      await stop(child);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** @param folder Virtual environment with `litellm[proxy]`. */
export async function startLiteLlm(upstreamPort: number, folder: string): Promise<Peer> {
  const port = await freePort();
  const work = mkdtempSync(join(tmpdir(), 'capstan-litellm-'));
  const config = join(work, 'config.json');
  const secret = 'sk-benchmark-key';
  writeFileSync(
    config,
    JSON.stringify({
      model_list: [
        {
          model_name: MODEL,
          litellm_params: {
            model: `openai/${MODEL}`,
            api_base: `http://127.0.0.1:${upstreamPort}/v1`,
            api_key: 'sk-upstream',
          },
        },
      ],
      general_settings: { master_key: secret },
      litellm_settings: { telemetry: false },
    }),
  );
  const args = ['--config', config, '--host', '127.0.0.1', '--port', String(port), '--num_workers', '1'];
  const started = startPinned(join(folder, 'bin/litellm'), args, {
    LITELLM_MODE: 'PRODUCTION',
    LITELLM_LOG: 'ERROR',
    LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  });
  await until(started, portAnswers(`http://127.0.0.1:${port}/health/liveliness`));
  return {
    name: 'LiteLLM',
    route: route(port, `Authorization: Bearer ${secret}`),
    process: started.child,
    stop: async () => {
      await stop(started.child);
      rmSync(work, { recursive: true, force: true });
    },
  };
}

/** @param folder Folder with node_modules/@portkey-ai/gateway. */
export async function startPortkey(upstreamPort: number, folder: string): Promise<Peer> {
  const port = await freePort();
  const main = join(folder, 'node_modules/@portkey-ai/gateway/build/start-server.js');
  const started = startPinned(process.execPath, [main, `--port=${port}`, '--headless'], {
    TRUSTED_CUSTOM_HOSTS: 'localhost,127.0.0.1',
  });
  await until(started, () => (started.output().includes('Ready for connections') ? true : undefined));
  return {
    name: 'Portkey',
    route: route(
      port,
      'Authorization: Bearer sk-upstream',
      'x-portkey-provider: openai',
      `x-portkey-custom-host: http://127.0.0.1:${upstreamPort}/v1`,
    ),
    process: started.child,
    stop: () => stop(started.child),
  };
}

/** The ids of a process and its descendants. */
function treeOf(pid: number): number[] {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  );
  return [pid, ...children.flatMap(treeOf)];
}

/** Resident memory of a process and its descendants. */
export function residentMiB({ process: { pid } }: Peer): number {
  const kib = (id: number) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, 'utf8'))?.[1] ?? 0);
  return treeOf(pid!).reduce((sum, id) => sum + kib(id), 0) / 1024;
}

/** User and system time of a process and its descendants. */
export function cpuMs({ process: { pid } }: Peer): number {
  const TICK_MS = 10;
  const ticks = (id: number) => {
    const fields = readFileSync(`/proc/${id}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ');
    return Number(fields[11]) + Number(fields[12]);
  };
  return treeOf(pid!).reduce((sum, id) => sum + ticks(id), 0) * TICK_MS;
}

/** Stops a process and its descendants, or continues them. A gateway that works on a backlog would slow the others. */
export function setRunning({ process: { pid } }: Peer, isRunning: boolean): void {
  for (const id of treeOf(pid!)) process.kill(id, isRunning ? 'SIGCONT' : 'SIGSTOP');
}
