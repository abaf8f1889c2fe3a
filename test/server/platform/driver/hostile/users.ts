/** Runs start scripts at level L2 under each kind of user that may run the service. */
import { spawn } from 'node:child_process';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ReplicaEvent, ReplicaSpec } from '../../../../../server/platform/driver/driver';
import { REGISTER } from '../../../access/support';
import { newSpec, node } from '../conformance';

export interface Run {
  dataDir: string;
  hiddenPaths: readonly string[];
  replicaDiskBytes?: number;
  /** Runs beside the scripts. The run fails unless it still serves when they have ended. */
  neighbour?: ReplicaSpec;
  specs: readonly ReplicaSpec[];
}

/** A neighbour that serves on port 80. */
export function newNeighbour(inputs: ReplicaSpec['inputs'] = []): ReplicaSpec {
  const script = 'require("http").createServer((request, reply) => reply.end("served")).listen(80, "0.0.0.0")';
  return newSpec({ inputs, healthPath: '/', startCommand: `echo words-of-the-neighbour > mine; ${node(script)}` });
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
const USERS: readonly User[] =
  own === 0
    ? [
        { name: 'root', uid: 0 },
        { name: 'an ordinary user', uid: ORDINARY_UID },
      ]
    : [{ name: 'an ordinary user', uid: own }];

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;
/** Describes what a start script of each user can do. Skipped on machines without level L2. */
export const describeUsers = (hasNamespaces ? describe : describe.skip).each(USERS);

/** A data directory of that user, and its removal. */
export function makeDataDir({ uid }: User): { dataDir: string; remove: () => void } {
  const dataDir = mkdtempSync(join(tmpdir(), 'capstan-hostile-'));
  if (uid !== own) chownSync(dataDir, uid, uid);
  return { dataDir, remove: () => rmSync(dataDir, { recursive: true, force: true }) };
}

/** A separate network namespace, in which the service process runs. */
export interface Network {
  /** Further addresses of the loopback interface, with their prefix length. */
  addresses: readonly string[];
  /** `host:port`: the service process listens there. */
  listeners: readonly string[];
}

/** An ordinary user becomes root of a user namespace, because only root may have a network that is separate. */
function inNetwork({ addresses }: Network): string[] {
  const steps = [
    'ip link set lo up',
    'echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start',
    ...addresses.map((address) => `ip address add ${address} dev lo`),
    'exec "$@"',
  ];
  return ['unshare', '--net', ...(own === 0 ? [] : ['--map-root-user']), 'sh', '-ec', steps.join('\n'), 'sh'];
}

/** Runs the scripts at level L2 in a service process of `user` until all of them have ended. */
export async function runScripts({ uid }: User, run: Run, network?: Network): Promise<Result[]> {
  const options = JSON.stringify({ ...run, level: 'L2', listeners: network?.listeners ?? [] });
  const program = [process.execPath, '-r', REGISTER, join(__dirname, 'run-scripts.ts'), options];
  // Root has groups that a replica may not have.
  const asSelf = own === 0 ? ['setpriv', '--groups=4,6', ...program] : program;
  const asUser = uid === own ? asSelf : ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', ...program];
  const [file, ...args] = network === undefined ? asUser : [...inNetwork(network), ...asUser];
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const output = await text(child.stdout);
  if (output === '') throw new Error('the service process ended without a result');
  return JSON.parse(output) as Result[];
}
