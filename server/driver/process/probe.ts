import { mkdir, rm } from 'node:fs/promises';
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { DISK_FULL } from '../../disk-full';
import type { Isolation } from '../driver';
import { canListen } from './address';
import { ReplicaFolder } from './replica-folder';
import { launch, packageRoot, type SandboxInput } from './sandbox';
import { INNER_HOST, type Level, PRODUCTION_PORT, runtimeMain, runtimeShares, WORKLOAD_UID } from './world';

const PROBE_MS = 20_000;
const MEMORY = '/dev/shm';
/** In which Node.js has to start, and to read what `capstan serve` is. */
const PROBE = (file: string): string => `require('fs').readFileSync(${JSON.stringify(file)})`;

const NONE =
  'Every deployment has a free port of 127.0.0.1, which its start script has to take from PLATFORM_SERVING_HOST and PLATFORM_SERVING_PORT; nothing keeps it from the files and processes of this machine that the service may touch.';
const OWN_ADDRESS =
  'Every deployment serves on port 80 of a loopback address of its own, which its start script has to take from PLATFORM_SERVING_HOST; nothing keeps it from the files and processes of this machine that the service may touch.';
const NAMESPACES =
  "Every deployment has namespaces of its own: port 80 on all its addresses, read-only inputs, and no sight of the service's data or of other deployments. It has no way out to the network: what it needs has to come with its data bindings or its home.";

export interface ProbeOptions {
  sandbox: string | undefined;
  /** For a folder to try it in, hidden as the data directory is. */
  replicas: string;
  sockets: string;
  hides: readonly string[];
  /** Instead of the best. */
  level?: Level;
}

/** The best level that this machine has, by trying. @throws Error where a level that was asked for is not to be had */
export async function probeIsolation(options: ProbeOptions): Promise<Isolation> {
  const { level } = options;
  const noNamespaces = level === 'L1' || level === 'L0' ? `level ${level} was asked for` : await tryNamespaces(options);
  if (noNamespaces === undefined) return { level: 'L2', reason: NAMESPACES };
  if (level === 'L2') throw new Error(`level L2 was asked for and is not to be had: ${noNamespaces}`);
  const noPort = level === 'L0' ? 'level L0 was asked for' : await tryPort();
  if (noPort === undefined) return { level: 'L1', reason: `${OWN_ADDRESS} Namespaces: ${noNamespaces}.` };
  if (level === 'L1') throw new Error(`level L1 was asked for and is not to be had: ${noPort}`);
  return { level: 'L0', reason: `${NONE} Namespaces: ${noNamespaces}. Port 80: ${noPort}.` };
}

/** Why not; undefined when a whole replica's world came up, and Node.js in it. A full disk says nothing of namespaces: then it is tried in memory. */
async function tryNamespaces(options: ProbeOptions): Promise<string | undefined> {
  const { sandbox } = options;
  if (process.platform !== 'linux') return `they are Linux's, and this is ${process.platform}`;
  if (sandbox === undefined) return 'the helper program capstan_sandbox is not there (npm run build:addon makes it)';
  const why = await tryIn(options.replicas, sandbox, options);
  return why === undefined || !DISK_FULL.test(why) ? why : tryIn(MEMORY, sandbox, options);
}

async function tryIn(replicas: string, sandbox: string, { sockets, hides }: ProbeOptions): Promise<string | undefined> {
  const folder = new ReplicaFolder(replicas, `probe_${process.pid}x${Date.now()}`);
  try {
    await mkdir(join(folder.path, 'root'), { recursive: true });
    await mkdir(folder.home);
    // Run from its sources it has no compiled main yet.
    const file = [runtimeMain(), join(packageRoot(), 'package.json')].find((candidate) => existsSync(candidate))!;
    const args = [realpathSync(process.execPath), '-e', PROBE(file)];
    const ended = new Promise<void>((resolve, reject) => {
      launch(
        sandbox,
        worldInput(folder, hides, {
          socket: join(sockets, 'probe.sock'),
          inner_port: PRODUCTION_PORT,
          home: folder.home,
          arg: args,
          env: ['PATH=/usr/bin:/bin'],
          cwd: '/platform/home',
        }),
        resolve,
      ).catch(reject);
    });
    await within(PROBE_MS, ended);
    const exit = await folder.exit();
    return exit?.exitCode === 0
      ? undefined
      : `in them Node.js cannot read ${file}, which has to be readable by all users (exit code ${exit?.exitCode ?? 'unknown'})`;
  } catch (error) {
    return (error as Error).message;
  } finally {
    await rm(folder.path, { recursive: true, force: true }).catch(() => {});
  }
}

async function within(timeMs: number, promise: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came of it within ${timeMs / 1000} s`)), timeMs);
  });
  await Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** What every world has. */
export function worldInput(folder: ReplicaFolder, hides: readonly string[], more: SandboxInput): SandboxInput {
  return {
    dir: folder.path,
    isolated: 1,
    inner_host: INNER_HOST,
    share: runtimeShares(),
    hide: hides,
    uid: WORKLOAD_UID,
    gid: WORKLOAD_UID,
    ...more,
  };
}

async function tryPort(): Promise<string | undefined> {
  const host = `127.${64 + (process.pid % 64)}.${process.pid % 256}.254`;
  return (await canListen(host, PRODUCTION_PORT))
    ? undefined
    : 'this user may not listen on it, or another program does on all addresses (root, CAP_NET_BIND_SERVICE or the setting net.ipv4.ip_unprivileged_port_start=80 allow it)';
}
