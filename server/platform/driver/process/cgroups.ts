import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

const CPU_PERIOD_US = 100_000;
const MAX_PROCESSES = 4_096;
/** Group of the service process, beside those of replicas: `DelegateSubgroup=` of its systemd unit, or created here. */
const SERVICE_GROUP = 'capstan_service';

interface Limits {
  cpuMillis: number;
  memoryMb: number;
}

/** Control groups of replicas, below the service's group. Supports cgroup versions 1 and 2. */
export interface Cgroups {
  /**
   * Creates the groups of a replica with its limits. Returns an empty list if its memory cannot be limited.
   * @param report Gets a sentence for each limit that the replica does not have.
   */
  create(name: string, limits: Limits, report: (problem: string) => void): string[];
  /** Removes groups that a killed supervisor left behind. Returns false while processes run in them. */
  remove(name: string): boolean;
}

/** Access to the machine. Tests replace it. */
export interface CgroupFiles {
  root: string;
  /** Path of /proc/self/cgroup, which lists the groups of this process. */
  membership: string;
  write: (file: string, text: string) => void;
  /** Whether systemd started this process as a service. */
  isSystemdService: boolean;
}

const MACHINE: CgroupFiles = {
  root: '/sys/fs/cgroup',
  membership: '/proc/self/cgroup',
  write: writeFileSync,
  isSystemdService: process.env.SYSTEMD_EXEC_PID === String(process.pid),
};

/** Returns undefined when this process may not create groups, as for most unprivileged users. */
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
 * Version 2. A group with processes cannot have limited subgroups, so this process moves into a sibling of the
 * replicas' groups. NOTE: not under systemd, which could not restart the service while replicas run. There
 * `DelegateSubgroup=` does it.
 */
function openUnified(own: string, { root, write, isSystemdService }: CgroupFiles): Cgroups | undefined {
  const folder = join(root, basename(own) === SERVICE_GROUP ? dirname(own) : own);
  if (!readFileSync(join(folder, 'cgroup.controllers'), 'utf8').split(/\s/).includes('memory')) return undefined;
  const enable = (): void => write(join(folder, 'cgroup.subtree_control'), '+memory +cpu +pids');
  try {
    enable();
  } catch {
    const pids = readFileSync(join(folder, 'cgroup.procs'), 'utf8').trim().split('\n');
    // Never move processes of other programs.
    if (isSystemdService || pids.some((pid) => pid !== String(process.pid))) return undefined;
    mkdirSync(join(folder, SERVICE_GROUP), { recursive: true });
    write(join(folder, SERVICE_GROUP, 'cgroup.procs'), String(process.pid));
    enable();
  }
  return {
    remove: (name) => removeAll([join(folder, name)]),
    create: (name, { cpuMillis, memoryMb }, report) =>
      createAll(report, [
        {
          path: join(folder, name),
          configure: (path) => {
            write(join(path, 'memory.max'), String(memoryMb * 2 ** 20));
            write(join(path, 'cpu.max'), `${(cpuMillis * CPU_PERIOD_US) / 1_000} ${CPU_PERIOD_US}`);
            write(join(path, 'pids.max'), String(MAX_PROCESSES));
            // Without it the kernel kills a single process, and the others may wait for it forever.
            write(join(path, 'memory.oom.group'), '1');
            attempt(() => write(join(path, 'memory.swap.max'), '0'));
          },
        },
      ]),
  };
}

/** Version 1: one tree per controller. */
function openLegacy(own: readonly [string, string, string][], { root, write }: CgroupFiles): Cgroups | undefined {
  const folderOf = (controller: string): string | undefined => {
    const line = own.find(([, controllers]) => controllers.split(',').includes(controller));
    const folder = line === undefined ? undefined : join(root, controller, line[2]);
    return folder !== undefined && existsSync(join(folder, 'cgroup.procs')) ? folder : undefined;
  };
  const [memory, cpu, pids] = ['memory', 'cpu', 'pids'].map(folderOf);
  if (memory === undefined) return undefined;
  // Throws if this process has no permission.
  const probe = join(memory, `capstan_probe_${process.pid}`);
  mkdirSync(probe);
  rmdirSync(probe);
  return {
    remove: (name) => removeAll([memory, cpu, pids].flatMap((tree) => (tree === undefined ? [] : [join(tree, name)]))),
    create: (name, { cpuMillis, memoryMb }, report) =>
      createAll(report, [
        {
          path: join(memory, name),
          configure: (path) => write(join(path, 'memory.limit_in_bytes'), String(memoryMb * 2 ** 20)),
        },
        {
          path: cpu && join(cpu, name),
          optional: 'CPU time',
          configure: (path) => {
            write(join(path, 'cpu.cfs_period_us'), String(CPU_PERIOD_US));
            write(join(path, 'cpu.cfs_quota_us'), String(Math.round((cpuMillis * CPU_PERIOD_US) / 1_000)));
          },
        },
        {
          path: pids && join(pids, name),
          optional: 'the number of processes',
          configure: (path) => write(join(path, 'pids.max'), String(MAX_PROCESSES)),
        },
      ]),
  };
}

interface Group {
  /** undefined: the machine has no groups of this kind. */
  path: string | undefined;
  /** What it limits, if a replica starts without it. */
  optional?: string;
  configure: (path: string) => void;
}

/** Creates the groups that can be created. Returns an empty list unless all that are required can. */
function createAll(report: (problem: string) => void, groups: readonly Group[]): string[] {
  const created: string[] = [];
  for (const { path, optional, configure } of groups) {
    try {
      if (path === undefined) throw new Error('the machine has no such controller');
      createGroup(path, configure);
      created.push(path);
    } catch (error) {
      const { message } = error as Error;
      if (optional === undefined) {
        for (const other of created) attempt(() => rmdirSync(other));
        report(`No control group limits this replica, so its memory is monitored and CPU time is shared: ${message}`);
        return [];
      }
      report(`No control group limits ${optional} of this replica: ${message}`);
    }
  }
  return created;
}

/** A group of an earlier start still contains that start's counters, and perhaps processes. */
function createGroup(path: string, configure: (path: string) => void): void {
  if (existsSync(path)) rmdirSync(path);
  mkdirSync(path);
  try {
    configure(path);
  } catch (error) {
    attempt(() => rmdirSync(path));
    throw error;
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
    // Not supported, or not permitted.
  }
}
