/**
 * A separate service process, which the test may start as another user. Runs start scripts side by side, prints what
 * each of them printed and how it ended, and ends.
 */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../../../server/platform/driver/driver';
import { LogStore } from '../../../../../server/platform/driver/logs/log-store';
import { ProcessDriver } from '../../../../../server/platform/driver/process/process-driver';
import type { Level } from '../../../../../server/platform/driver/process/replica-layout';
import { get, Listener } from '../conformance';
import type { Network, Result, Run } from './users';

const { specs, neighbour, listeners, ...options } = JSON.parse(process.argv[2]) as Run & Network & { level: Level };
// The driver's timers do not keep the process alive.
const alive = setInterval(() => {}, 1_000);

/** Listens, and checks that this process reaches the address. */
async function listen(at: string): Promise<void> {
  const [host, port] = at.split(':');
  const server = createServer((socket) => socket.destroy()).listen(Number(port), host);
  await once(server, 'listening');
  await once(connect(Number(port), host), 'connect');
  server.unref();
}

async function main(): Promise<void> {
  await Promise.all(listeners.map(listen));
  const logs = new LogStore({ folder: join(options.dataDir, 'logs'), redact: (text) => text });
  const driver = await ProcessDriver.open({ ...options, logs });
  const listener = new Listener(driver);
  /** Runs `work` beside a serving replica, and checks that it still serves afterwards. */
  const beside = async <T>(replica: ReplicaSpec | undefined, work: () => Promise<T>): Promise<T> => {
    if (replica === undefined) return work();
    const { address } = await driver.ensure(replica);
    await listener.next(replica, 'ready');
    const result = await work();
    const { body } = await get(address, '/');
    if (body !== 'served' || listener.of(replica).join() !== 'ready') throw new Error('the neighbour does not serve');
    await driver.stop(replica.id, 0);
    return result;
  };
  const run = async (spec: ReplicaSpec): Promise<Result> => {
    await driver.ensure(spec);
    const { exitCode, signal, cause } = await listener.next(spec, 'exited');
    const { lines } = await logs.read(spec.logId, { after: 0, limit: 10_000 });
    return {
      exitCode,
      signal,
      cause,
      lines: lines.filter(({ stream }) => stream !== 'system').map(({ text }) => text),
    };
  };
  const results = await beside(neighbour, () => Promise.all(specs.map(run)));
  process.stdout.write(JSON.stringify(results));
  await driver.detach();
  await logs.close();
  clearInterval(alive);
}

void main().catch((error: Error) => {
  console.error(error);
  process.exit(1);
});
