/** A service of its own process, to be killed: starts one replica, writes its reference and stays. */
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../server/driver/driver';
import { LogStore } from '../../../server/driver/logs/log-store';
import { ProcessDriver } from '../../../server/driver/process/process-driver';
import type { Level } from '../../../server/driver/process/world';

const [dataDir, level, spec] = process.argv.slice(2);
const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: (text) => text });
setInterval(() => {}, 1_000);
void ProcessDriver.open({ dataDir, logs, level: level as Level })
  .then((driver) => driver.ensure(JSON.parse(spec) as ReplicaSpec))
  .then(({ reference }) => process.stdout.write(`${reference}\n`));
