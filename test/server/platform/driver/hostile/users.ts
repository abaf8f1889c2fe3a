/** Runs start scripts at level L2 under each kind of user that may run the service. */
import { spawn } from 'node:child_process';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ReplicaEvent, ReplicaSpec } from '../../../../../server/platform/driver/driver';
import { REGISTER } from '../../../access/support';

export interface Run {
  dataDir: string;
  hiddenPaths: readonly string[];
  replicaDiskBytes?: number;
  specs: readonly ReplicaSpec[];
}

type Exited = Extract<ReplicaEvent, { type: 'exited' }>;

export interface Result extends Pick<Exited, 'exitCode' | 'signal' | 'cause'> {
  /** What the script wrote to standard output and errors. */
  lines: string[];
}

export interface User {
  name: string;
  uid: number;
}

const ORDINARY_UID = 54_321;
const own = process.geteuid!();

/** Root can play an ordinary user. An ordinary user cannot play root. */
export const USERS: readonly User[] =
  own === 0
    ? [
        { name: 'root', uid: 0 },
        { name: 'an ordinary user', uid: ORDINARY_UID },
      ]
    : [{ name: 'an ordinary user', uid: own }];

/** A data directory of that user, and its removal. */
export function makeDataDir({ uid }: User): { dataDir: string; remove: () => void } {
  const dataDir = mkdtempSync(join(tmpdir(), 'capstan-hostile-'));
  if (uid !== own) chownSync(dataDir, uid, uid);
  return { dataDir, remove: () => rmSync(dataDir, { recursive: true, force: true }) };
}

/** Runs the scripts at level L2 in a service process of `user` until all of them have ended. */
export async function runScripts({ uid }: User, run: Run): Promise<Result[]> {
  const child = spawn(
    process.execPath,
    ['-r', REGISTER, join(__dirname, 'run-scripts.ts'), JSON.stringify({ ...run, level: 'L2' })],
    { stdio: ['ignore', 'pipe', 'inherit'], ...(uid === own ? {} : { uid, gid: uid }) },
  );
  const output = await text(child.stdout);
  if (output === '') throw new Error('the service process ended without a result');
  return JSON.parse(output) as Result[];
}
