/** Commands against the management interface in this process, over a real socket. */
import { realpathSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { Command, CommanderError } from 'commander';
import { Access } from '../../../server/access';
import { addKeysCommand } from '../../../server/access/cli';
import { Api } from '../../../server/api/api';
import { Client } from '../../../server/api/client';
import { apiRoutes } from '../../../server/api/routes';
import { addServiceCommands } from '../../../server/commands';
import { openRemoteKeys } from '../../../server/commands/remote-keys';
import { LogStore } from '../../../server/driver/logs/log-store';
import { createTransport } from '../../../server/http/create-transport';
import { createLog } from '../../../server/log';
import { DataMeasurer } from '../../../server/service/data-measurer';
import type { Machine } from '../../../server/service/machine';
import { loadSecretKey } from '../../../server/service/secret-box';
import { openServiceStore, type ServiceStore } from '../../../server/service/store';
import { openDataDir } from '../../../server/up/data-dir';
import { WebhookSender } from '../../../server/webhooks/webhook-sender';
import { makeFolder, removeFolders } from '../access/support';

export interface Ran {
  code: number;
  out: string;
  err: string;
}

export interface TestService {
  url: string;
  dataDir: string;
  store: ServiceStore;
  client: Client;
  logs: LogStore;
  measurer: DataMeasurer;
  token: string;
  /** Somebody who gets webhooks. */
  receiver: { url: string; types: string[]; status: number };
  /** One command line; `env` beside CAPSTAN_URL and CAPSTAN_TOKEN. */
  run: (line: readonly string[], env?: NodeJS.ProcessEnv) => Promise<Ran>;
  close: () => Promise<void>;
}

export const ADMIN = { email: 'ada@example.com', name: 'Ada', password: 'correct horse battery' };

/** Large enough for what tests ask for; nothing runs. */
const MACHINE: Machine = {
  driver: 'process',
  isolation: { level: 'L2', reason: 'Every deployment has namespaces of its own' },
  capacity: { cpuMillis: 8_000, memoryMb: 16_384, gpus: [] },
  dataRoots: [realpathSync(tmpdir())],
  allowsUnisolated: false,
};

export async function startService(): Promise<TestService> {
  const { root } = openDataDir(makeFolder());
  const log = createLog('silent');
  const store = await openServiceStore({
    location: { kind: 'file', file: `${root}/capstan.db` },
    secretKey: loadSecretKey(root),
    version: '1.2.3',
    machine: MACHINE,
  });
  const access = await Access.open({ store, log });
  const logs = new LogStore({ folder: `${root}/logs`, redact: (text) => text });
  const { userId } = (await store.ensureFirstAdmin(ADMIN))!;
  const { token } = await store.createToken(
    { userId, isAdmin: true, via: 'session', canWrite: true, ip: null, userAgent: null },
    { name: 'test', rights: 'write' },
  );
  const webhooks = new WebhookSender({ store, log, allowsPrivate: true });
  const measurer = new DataMeasurer({ store, dataRoots: MACHINE.dataRoots, log });
  const { receiver, stop } = await startReceiver();
  const api = new Api({
    routes: apiRoutes(),
    context: {
      store,
      access,
      logs,
      measurer,
      webhooks,
      log,
      now: Date.now,
      settings: { isSecure: false, ownOrigins: [], trustedProxies: [] },
    },
  });
  const transport = await createTransport('node', {
    handler: (request, reply) => api.handle(request, reply),
    maxBodyBytes: 1 << 20,
    bodyTimeoutMs: 60_000,
  });
  const url = `http://127.0.0.1:${await transport.listen('127.0.0.1', 0)}`;
  return {
    url,
    dataDir: root,
    store,
    token,
    receiver,
    client: new Client({ url, token }),
    run: (line, env = {}) => runCommand(line, { CAPSTAN_URL: url, CAPSTAN_TOKEN: token, ...env }),
    logs,
    measurer,
    close: async () => {
      await transport.close();
      await stop();
      await measurer.close();
      await logs.close();
      await access.close();
      await store.close();
      removeFolders();
    },
  };
}

async function startReceiver() {
  const receiver = { url: '', types: [] as string[], status: 204 };
  const server = http.createServer((request, reply) => {
    let body = '';
    request
      .setEncoding('utf8')
      .on('data', (text: string) => {
        body += text;
      })
      .on('end', () => {
        receiver.types.push((JSON.parse(body) as { type: string }).type);
        reply.writeHead(receiver.status).end();
      });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  receiver.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/in`;
  return {
    receiver,
    stop: () =>
      new Promise((resolve) => {
        server.closeAllConnections();
        server.close(resolve);
      }),
  };
}

/** As `server/cli.ts` runs it, with what it writes. */
export async function runCommand(line: readonly string[], env: NodeJS.ProcessEnv): Promise<Ran> {
  const ran: Ran = { code: 0, out: '', err: '' };
  const io = {
    env,
    now: Date.now,
    out: (text: string) => {
      ran.out += text;
    },
    err: (text: string) => {
      ran.err += text;
    },
  };
  const program = new Command('capstan')
    .exitOverride()
    .configureOutput({ writeOut: io.out, writeErr: io.err, outputError: io.err });
  addServiceCommands(program, io);
  addKeysCommand(program, io, openRemoteKeys);
  try {
    await program.parseAsync([...line], { from: 'user' });
  } catch (error) {
    const { message, name, code } = error as Error & { code?: string };
    ran.code =
      error instanceof CommanderError
        ? error.exitCode === 0
          ? 0
          : 2
        : name === 'Error' && code === undefined
          ? 2
          : code === 'invalid_argument' || code === 'invalid_request'
            ? 2
            : 1;
    if (!(error instanceof CommanderError)) ran.err += message;
  }
  return ran;
}
