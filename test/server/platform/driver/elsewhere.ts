/**
 * A separate service process that the test kills. Starts replicas, prints their references once each has logged a line,
 * and stays.
 */
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../../server/platform/driver/driver';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import type { Level } from '../../../../server/platform/driver/process/replica-layout';

const [dataDir, level, specs] = process.argv.slice(2);
const replicas = JSON.parse(specs) as ReplicaSpec[];
const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: (text) => text });
setInterval(() => {}, 1_000);

async function start(driver: ProcessDriver, replica: ReplicaSpec): Promise<string> {
  const { reference } = await driver.ensure(replica);
  for await (const lines of logs.follow(replica.logId, 0, { stream: 'stdout' }, new AbortController().signal))
    if (lines.length > 0) break;
  return reference;
}

void ProcessDriver.open({ dataDir, logs, level: level as Level })
  .then((driver) => Promise.all(replicas.map((replica) => start(driver, replica))))
  .then((references) => process.stdout.write(`${JSON.stringify(references)}\n`));
