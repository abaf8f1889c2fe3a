/** Runs commands against the management API in this process, over a real socket. */
import { realpathSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { Command, CommanderError } from 'commander';
import { Access } from '../../../../server/access';
import type { CommandIo } from '../../../../server/cli/commands/io';
import { addKeysCommand } from '../../../../server/cli/commands/keys';
import { Api } from '../../../../server/platform/api/api';
import { Client } from '../../../../server/platform/api/client';
import { apiRoutes } from '../../../../server/platform/api/routes';
import { addServiceCommands } from '../../../../server/platform/cli';
import { openRemoteKeys } from '../../../../server/platform/cli/remote-keys';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { createTransport } from '../../../../server/http/create-transport';
import { createLog } from '../../../../server/base/log';
import { DataMeasurer } from '../../../../server/platform/deployments/data-measurer';
import { HubPuller } from '../../../../server/platform/deployments/hub-puller';
import type { Machine } from '../../../../server/platform/deployments/machine';
import { loadSecretKey } from '../../../../server/platform/accounts/secret-box';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { openDataDir } from '../../../../server/platform/up/data-dir';
import { WebhookSender } from '../../../../server/platform/webhooks/webhook-sender';
import { makeFolder, removeFolders } from '../../access/support';

/** The result of a command. */
export interface CommandResult {
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
  puller: HubPuller;
  token: string;
  /** Receives webhooks. */
  receiver: { url: string; types: string[]; status: number };
  /** Runs a command line. Adds `env` to CAPSTAN_URL and CAPSTAN_TOKEN. */
  run: (line: readonly string[], env?: NodeJS.ProcessEnv) => Promise<CommandResult>;
  close: () => Promise<void>;
}

export const ADMIN = { email: 'ada@example.com', name: 'Ada', password: 'correct horse battery' };

/** Large enough for all tests. Nothing runs on it. */
const MACHINE: Machine = {
  driver: 'process',
  isolation: { level: 'L2', reason: 'Every deployment has its own namespaces' },
  capacity: { cpuMillis: 8_000, memoryMb: 16_384, gpus: [] },
  dataRoots: [realpathSync(tmpdir())],
  allowsUnisolated: false,
};

export async function startService(): Promise<TestService> {
  const { root } = openDataDir(makeFolder());
  const dataRoot = realpathSync(makeFolder());
  const log = createLog('silent');
  const store = await openServiceStore({
    location: { kind: 'file', file: `${root}/capstan.db` },
    secretKey: loadSecretKey(root),
    version: '1.2.3',
    reserveBytes: 0,
    machine: { ...MACHINE, dataRoots: [dataRoot, ...MACHINE.dataRoots] },
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
  const puller = new HubPuller({ store, dataRoots: [dataRoot], log, onEnd: () => {}, saveMs: 5 });
  await puller.start();
  const { receiver, stop } = await startReceiver();
  const api = new Api({
    routes: apiRoutes(),
    context: {
      store,
      access,
      logs,
      measurer,
      puller,
      dataRoots: [dataRoot],
      webhooks,
      log,
      now: Date.now,
      settings: { isSecure: false, ownOrigins: [], trustedProxies: [], sessionGuard: 'secret' },
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
    puller,
    close: async () => {
      await transport.close();
      await stop();
      await puller.close();
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

/** Runs a command line as `server/cli/program.ts` does. Returns its exit code and output. */
export async function runCommand(
  line: readonly string[],
  env: NodeJS.ProcessEnv,
  { stdin, ...replaced }: Partial<CommandIo> & { stdin?: string } = {},
): Promise<CommandResult> {
  const result: CommandResult = { code: 0, out: '', err: '' };
  const io: CommandIo = {
    // A login of the user who runs the tests is not read.
    env: { XDG_CONFIG_HOME: '/nowhere', ...env },
    now: Date.now,
    readInput: () => Promise.resolve(stdin ?? ''),
    ...replaced,
    out: (text: string) => {
      result.out += text;
    },
    err: (text: string) => {
      result.err += text;
    },
  };
  const program = new Command('capstan')
    .exitOverride()
    .configureOutput({ writeOut: io.out, writeErr: io.err, outputError: io.err });
  addServiceCommands(program, () => {}, io);
  addKeysCommand(program, io, openRemoteKeys);
  try {
    await program.parseAsync([...line], { from: 'user' });
  } catch (error) {
    const { message, name, code } = error as Error & { code?: string };
    if (error instanceof CommanderError) {
      result.code = error.exitCode === 0 ? 0 : 2;
    } else {
      const isUsageError = name === 'Error' && code === undefined;
      result.code = isUsageError || code === 'invalid_argument' || code === 'invalid_request' ? 2 : 1;
      result.err += message;
    }
  }
  return result;
}
