/**
 * A separate service process, which the test may start as another user. Runs start scripts side by side, prints what
 * each of them printed and how it ended, and ends.
 */
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../../../server/platform/driver/driver';
import { LogStore } from '../../../../../server/platform/driver/logs/log-store';
import { ProcessDriver } from '../../../../../server/platform/driver/process/process-driver';
import type { Level } from '../../../../../server/platform/driver/process/replica-layout';
import { Listener } from '../conformance';
import type { Result, Run } from './users';

const { specs, ...options } = JSON.parse(process.argv[2]) as Run & { level: Level };
// The driver's timers do not keep the process alive.
const alive = setInterval(() => {}, 1_000);

async function main(): Promise<void> {
  const logs = new LogStore({ folder: join(options.dataDir, 'logs'), redact: (text) => text });
  const driver = await ProcessDriver.open({ ...options, logs });
  const listener = new Listener(driver);
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
  const results = await Promise.all(specs.map(run));
  process.stdout.write(JSON.stringify(results));
  await driver.detach();
  await logs.close();
  clearInterval(alive);
}

void main().catch((error: Error) => {
  console.error(error);
  process.exit(1);
});
