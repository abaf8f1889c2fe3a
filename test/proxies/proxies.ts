/** Starts reverse proxies as plain processes, with the configurations in this folder. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../fakes/free-port';
import { temporaryFolder } from '../fakes/temporary-folder';

export interface ProxyKind {
  name: string;
  /** File in this folder. It listens on port 80 and sends to 127.0.0.1:8080. */
  config: string;
  /** Whether the proxy adds the client's address to `X-Forwarded-For`. */
  forwardsAddress: boolean;
  /** Prints its version. */
  version: readonly string[];
  /** Adds what a process without a service manager needs. */
  wrap: (config: string, folder: string) => string;
  command: (file: string, folder: string) => readonly string[];
}

const wrapNginx = (config: string, folder: string): string =>
  `daemon off;
pid ${folder}/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    ${['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((name) => `${name}_temp_path ${folder}/${name};`).join(' ')}
${config}}
`;
const nginx = {
  version: ['nginx', '-v'],
  wrap: wrapNginx,
  command: (file: string, folder: string) => ['nginx', '-p', folder, '-e', 'stderr', '-c', file],
} as const;

export const PROXIES: readonly ProxyKind[] = [
  { name: 'nginx', config: 'nginx.conf', forwardsAddress: false, ...nginx },
  { name: 'nginx with keepalive', config: 'nginx-keepalive.conf', forwardsAddress: true, ...nginx },
  {
    name: 'HAProxy',
    config: 'haproxy.cfg',
    forwardsAddress: true,
    version: ['haproxy', '-v'],
    wrap: (config) => config,
    command: (file) => ['haproxy', '-db', '-f', file],
  },
  {
    name: 'Caddy',
    config: 'Caddyfile',
    forwardsAddress: true,
    version: ['caddy', 'version'],
    wrap: (config) => `{\n\tadmin off\n\tauto_https off\n}\n${config}`,
    command: (file) => ['caddy', 'run', '--adapter', 'caddyfile', '--config', file],
  },
];

const running = new Set<ChildProcess>();

/** nginx prints its version on standard error. */
export function versionOf({ version: [command, ...args] }: ProxyKind): string {
  const text = execFileSync('sh', ['-c', `${[command, ...args].join(' ')} 2>&1`], { encoding: 'utf8' });
  return /\d+\.\d+\.\d+\S*/.exec(text)?.[0] ?? text.trim();
}

export interface Proxy {
  url: string;
  stop: () => Promise<void>;
}

/** Starts the proxy in front of the server. Resolves when it passes a request. */
export async function startProxy(kind: ProxyKind, serverUrl: string): Promise<Proxy> {
  const folder = temporaryFolder('proxy');
  // The workers of nginx run as another user.
  chmodSync(folder, 0o755);
  const port = await freePort();
  const config = readFileSync(join(__dirname, kind.config), 'utf8')
    .replace('127.0.0.1:8080', new URL(serverUrl).host)
    .replace(/(listen |\*:|^:)80\b/m, `$1${port}`);
  const file = join(folder, kind.config);
  writeFileSync(file, kind.wrap(config, folder));
  const [command, ...args] = kind.command(file, folder);
  const env = { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder };
  const child = spawn(command, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (bytes: Buffer) => (output += bytes.toString()));
  const closed = once(child, 'close').then(() => running.delete(child));
  const url = `http://127.0.0.1:${port}`;
  await waitUntil(`${kind.name} passes a request`, async () => {
    if (child.exitCode !== null) throw new Error(`expected ${kind.name} to start: ${output}`);
    const response = await fetch(`${url}/health`).catch(() => undefined);
    return response !== undefined && response.headers.has('X-Request-Id');
  });
  return {
    url,
    stop: async () => {
      child.kill('SIGTERM');
      await closed;
      if (process.env.CAPSTAN_TRACE) process.stderr.write(output);
    },
  };
}

export function killProxies(): void {
  for (const child of running) child.kill('SIGTERM');
}

/** Polls the condition. @throws after a minute. */
export async function waitUntil(what: string, condition: () => Promise<boolean>): Promise<void> {
  for (let waited = 0; waited < 60_000; waited += 50) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`expected within a minute: ${what}`);
}
