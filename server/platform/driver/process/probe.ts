import { mkdir, rm } from 'node:fs/promises';
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { DISK_FULL, packageRoot } from 'capstan/internal';
import type { Isolation } from '../driver';
import { canListen } from './address';
import { isAlive, ReplicaFolder } from './replica-folder';
import { launch, type SandboxInput } from './sandbox';
import { INNER_HOST, type Level, PRODUCTION_PORT, runtimeMain, runtimeShares, WORKSPACE_UID } from './replica-layout';

/** Time for each attempt of the probe. A machine that is busy for a while does not lose its isolation. */
const PROBE_MS: readonly number[] = [20_000, 60_000, 120_000];
/** A file system in memory. */
const MEMORY = '/dev/shm';
/** Node.js must start in the sandbox and be able to read the runtime. */
const PROBE = (file: string): string => `require('fs').readFileSync(${JSON.stringify(file)})`;

export const FREE_PORT =
  'Each deployment has a free port on 127.0.0.1. Start scripts must listen on PLATFORM_SERVING_HOST and PLATFORM_SERVING_PORT. Deployments can access every file and process that the service can access.';
export const OWN_ADDRESS =
  'Each deployment has port 80 on a separate loopback address. Start scripts must listen on PLATFORM_SERVING_HOST. Deployments can access every file and process that the service can access.';
export const NAMESPACES =
  'Each deployment has its own namespaces, port 80 on all addresses and read-only inputs. It cannot access the data of the service or other deployments. It cannot reach other machines: mount all files that it needs as data sources.';

export interface ProbeOptions {
  sandbox: string | undefined;
  /** Parent of the probe's folder. Hidden like the data directory. */
  replicas: string;
  sockets: string;
  hiddenPaths: readonly string[];
  /** Use this level instead of the best available one. */
  level?: Level;
  /** Replaces {@link PROBE_MS} in tests. */
  attemptsMs?: readonly number[];
}

/** The probe did not end in time, so nothing is known about namespaces. */
class SlowProbe extends Error {}

/**
 * Finds the best isolation level by trying. Throws Error if the requested level is not available, or if the probe of
 * namespaces never ends in time.
 */
export async function probeIsolation(options: ProbeOptions): Promise<Isolation> {
  const { level } = options;
  const noNamespaces = level === 'L1' || level === 'L0' ? `level ${level} was requested` : await tryNamespaces(options);
  if (noNamespaces === undefined) return { level: 'L2', reason: NAMESPACES };
  if (level === 'L2') throw new Error(`level L2 was requested but is not available: ${noNamespaces}`);
  const noPort = level === 'L0' ? 'level L0 was requested' : await tryPort();
  if (noPort === undefined) return { level: 'L1', reason: `${OWN_ADDRESS} Namespaces: ${noNamespaces}.` };
  if (level === 'L1') throw new Error(`level L1 was requested but is not available: ${noPort}`);
  return { level: 'L0', reason: `${FREE_PORT} Namespaces: ${noNamespaces}. Port 80: ${noPort}.` };
}

/**
 * Returns undefined if a complete sandbox starts and Node.js runs in it, else the reason.
 * A full disk does not count against namespaces: the probe is then repeated in memory.
 */
async function tryNamespaces(options: ProbeOptions): Promise<string | undefined> {
  const { sandbox } = options;
  if (process.platform !== 'linux') return `they require Linux, and this is ${process.platform}`;
  if (sandbox === undefined) return 'the helper program capstan_sandbox is missing (run npm run build:addon)';
  const { attemptsMs = PROBE_MS } = options;
  for (const timeMs of attemptsMs) {
    try {
      const problem = await tryIn(options.replicas, sandbox, options, timeMs);
      return problem === undefined || !DISK_FULL.test(problem)
        ? problem
        : await tryIn(MEMORY, sandbox, options, timeMs);
    } catch (error) {
      if (!(error instanceof SlowProbe)) throw error;
    }
  }
  throw new Error(
    `the probe of namespaces did not end in ${attemptsMs.length} attempts, the last of ${attemptsMs.at(-1)! / 1000} s: the machine is too busy, so start the service again later`,
  );
}

async function tryIn(
  replicas: string,
  sandbox: string,
  { sockets, hiddenPaths }: ProbeOptions,
  timeMs: number,
): Promise<string | undefined> {
  const folder = new ReplicaFolder(replicas, `probe_${process.pid}x${Date.now()}`);
  const aborting = new AbortController();
  try {
    await mkdir(join(folder.path, 'root'), { recursive: true });
    await mkdir(folder.home);
    // When run from sources there is no compiled main yet.
    const file = [runtimeMain(), join(packageRoot(), 'package.json')].find((candidate) => existsSync(candidate))!;
    const args = [realpathSync(process.execPath), '-e', PROBE(file)];
    const ended = new Promise<void>((resolve, reject) => {
      launch(
        sandbox,
        isolatedInput(folder, hiddenPaths, {
          socket: join(sockets, 'probe.sock'),
          inner_port: PRODUCTION_PORT,
          home: folder.home,
          arg: args,
          env: ['PATH=/usr/bin:/bin'],
          cwd: '/platform/home',
        }),
        resolve,
        aborting.signal,
      ).catch(reject);
    });
    await withDeadline(timeMs, ended);
    const exit = await folder.exit();
    return exit?.exitCode === 0
      ? undefined
      : `Node.js in the sandbox cannot read ${file}, which must be readable by all users (exit code ${exit?.exitCode ?? 'unknown'})`;
  } catch (error) {
    if (!(error instanceof SlowProbe)) return (error as Error).message;
    aborting.abort();
    const supervisor = await folder.supervisor();
    if (supervisor !== undefined && isAlive(supervisor)) process.kill(supervisor.pid, 'SIGKILL');
    throw error;
  } finally {
    await rm(folder.path, { recursive: true, force: true }).catch(() => {});
  }
}

async function withDeadline(timeMs: number, promise: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new SlowProbe()), timeMs);
  });
  await Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Input of the helper program that all isolated replicas share. */
export function isolatedInput(folder: ReplicaFolder, hiddenPaths: readonly string[], more: SandboxInput): SandboxInput {
  return {
    dir: folder.path,
    isolated: 1,
    inner_host: INNER_HOST,
    share: runtimeShares(),
    hide: hiddenPaths.map(realPath),
    uid: WORKSPACE_UID,
    gid: WORKSPACE_UID,
    ...more,
  };
}

/** Resolved at each start: links to renewed certificates change. A missing path needs no hiding. */
function realPath(path: string): string {
  return existsSync(path) ? realpathSync(path) : path;
}

async function tryPort(): Promise<string | undefined> {
  const host = `127.${64 + (process.pid % 64)}.${process.pid % 256}.254`;
  return (await canListen(host, PRODUCTION_PORT))
    ? undefined
    : 'this user may not listen on it, or another program listens on all addresses (needs root, CAP_NET_BIND_SERVICE or net.ipv4.ip_unprivileged_port_start=80)';
}
