import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

const CPU_PERIOD_US = 100_000;
const MAX_PROCESSES = 4_096;
/** Of this process itself, beside those of the replicas: `DelegateSubgroup=` of its systemd unit, or made here. */
const SERVICE_GROUP = 'capstan_service';

interface Limits {
  cpuMillis: number;
  memoryMb: number;
}

/** Control groups for replicas, below that of this service, of whichever version the machine has. */
export interface Cgroups {
  /** The groups of a replica, made with its limits; empty where it could not be. */
  create(name: string, limits: Limits): string[];
  /** What a supervisor that was killed could not remove itself; false as long as something runs in it. */
  remove(name: string): boolean;
}

/** The machine as tests have it otherwise. */
export interface CgroupFiles {
  root: string;
  /** Which groups this process is in, as /proc/self/cgroup says it. */
  membership: string;
  write: (file: string, text: string) => void;
  /** Whether systemd started this process as a service of its own. */
  isSystemdService: boolean;
}

const MACHINE: CgroupFiles = {
  root: '/sys/fs/cgroup',
  membership: '/proc/self/cgroup',
  write: writeFileSync,
  isSystemdService: process.env.SYSTEMD_EXEC_PID === String(process.pid),
};

/** Undefined where this process may make none, as most ordinary users. */
export function openCgroups(files: CgroupFiles = MACHINE): Cgroups | undefined {
  try {
    const own = readFileSync(files.membership, 'utf8')
      .trim()
      .split('\n')
      .map((line) => line.split(':') as [string, string, string]);
    return existsSync(join(files.root, 'cgroup.controllers'))
      ? openUnified(own.find(([number]) => number === '0')?.[2] ?? '', files)
      : openLegacy(own, files);
  } catch {
    return undefined;
  }
}

/**
 * Version 2: groups with processes of their own have no groups below them that count, so that this process moves into one beside the replicas'. NOTE: not where systemd starts it again, which could not while replicas
 * run on: there `DelegateSubgroup=` has put it into one.
 */
function openUnified(own: string, { root, write, isSystemdService }: CgroupFiles): Cgroups | undefined {
  const folder = join(root, basename(own) === SERVICE_GROUP ? dirname(own) : own);
  if (!readFileSync(join(folder, 'cgroup.controllers'), 'utf8').split(/\s/).includes('memory')) return undefined;
  const enable = (): void => write(join(folder, 'cgroup.subtree_control'), '+memory +cpu +pids');
  try {
    enable();
  } catch {
    const pids = readFileSync(join(folder, 'cgroup.procs'), 'utf8').trim().split('\n');
    // Others' processes are not ours to move.
    if (isSystemdService || pids.some((pid) => pid !== String(process.pid))) return undefined;
    mkdirSync(join(folder, SERVICE_GROUP), { recursive: true });
    write(join(folder, SERVICE_GROUP, 'cgroup.procs'), String(process.pid));
    enable();
  }
  return {
    remove: (name) => removeAll([join(folder, name)]),
    create: (name, { cpuMillis, memoryMb }) =>
      createAll([
        {
          path: join(folder, name),
          configure: (path) => {
            write(join(path, 'memory.max'), String(memoryMb * 2 ** 20));
            write(join(path, 'cpu.max'), `${(cpuMillis * CPU_PERIOD_US) / 1_000} ${CPU_PERIOD_US}`);
            write(join(path, 'pids.max'), String(MAX_PROCESSES));
            // Else one of its processes would be ended, and the rest wait for it for ever.
            write(join(path, 'memory.oom.group'), '1');
            attempt(() => write(join(path, 'memory.swap.max'), '0'));
          },
        },
      ]),
  };
}

/** Version 1: a tree for each controller. */
function openLegacy(own: readonly [string, string, string][], { root, write }: CgroupFiles): Cgroups | undefined {
  const folderOf = (controller: string): string | undefined => {
    const line = own.find(([, controllers]) => controllers.split(',').includes(controller));
    const folder = line === undefined ? undefined : join(root, controller, line[2]);
    return folder !== undefined && existsSync(join(folder, 'cgroup.procs')) ? folder : undefined;
  };
  const [memory, cpu, pids] = ['memory', 'cpu', 'pids'].map(folderOf);
  if (memory === undefined) return undefined;
  // Fails where this process may not.
  const probe = join(memory, `capstan_probe_${process.pid}`);
  mkdirSync(probe);
  rmdirSync(probe);
  return {
    remove: (name) => removeAll([memory, cpu, pids].flatMap((tree) => (tree === undefined ? [] : [join(tree, name)]))),
    create: (name, { cpuMillis, memoryMb }) =>
      createAll([
        {
          path: join(memory, name),
          configure: (path) => write(join(path, 'memory.limit_in_bytes'), String(memoryMb * 2 ** 20)),
        },
        // What a kernel was built without is not held to.
        ...(cpu === undefined
          ? []
          : [
              {
                path: join(cpu, name),
                configure: (path: string) =>
                  attempt(() => {
                    write(join(path, 'cpu.cfs_period_us'), String(CPU_PERIOD_US));
                    write(join(path, 'cpu.cfs_quota_us'), String(Math.round((cpuMillis * CPU_PERIOD_US) / 1_000)));
                  }),
              },
            ]),
        ...(pids === undefined
          ? []
          : [
              {
                path: join(pids, name),
                configure: (path: string) => attempt(() => write(join(path, 'pids.max'), String(MAX_PROCESSES))),
              },
            ]),
      ]),
  };
}

interface Group {
  path: string;
  configure: (path: string) => void;
}

/** All of them or none. */
function createAll(groups: readonly Group[]): string[] {
  try {
    for (const { path, configure } of groups) {
      // One of an earlier start counts what that one used.
      if (existsSync(path)) rmdirSync(path);
      mkdirSync(path);
      configure(path);
    }
    return groups.map(({ path }) => path);
  } catch {
    // One that is still used is empty of limits that matter.
    for (const { path } of groups) attempt(() => rmdirSync(path));
    return [];
  }
}

function removeAll(paths: readonly string[]): boolean {
  for (const path of paths) attempt(() => rmdirSync(path));
  return !paths.some((path) => existsSync(path));
}

function attempt(work: () => void): void {
  try {
    work();
  } catch {
    // Not to be had here.
  }
}
