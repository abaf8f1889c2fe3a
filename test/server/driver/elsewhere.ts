/** A service of its own process, to be killed: starts one replica, writes its reference once the replica has written a line, and stays. */
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../server/driver/driver';
import { LogStore } from '../../../server/driver/logs/log-store';
import { ProcessDriver } from '../../../server/driver/process/process-driver';
import type { Level } from '../../../server/driver/process/world';

const [dataDir, level, spec] = process.argv.slice(2);
const replica = JSON.parse(spec) as ReplicaSpec;
const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: (text) => text });
setInterval(() => {}, 1_000);
void ProcessDriver.open({ dataDir, logs, level: level as Level })
  .then((driver) => driver.ensure(replica))
  .then(async ({ reference }) => {
    for await (const lines of logs.follow(replica.logId, 0, { stream: 'stdout' }, new AbortController().signal))
      if (lines.length > 0) break;
    process.stdout.write(`${reference}\n`);
  });
