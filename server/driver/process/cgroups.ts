import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = '/sys/fs/cgroup';
const CPU_PERIOD_US = 100_000;
const MAX_PROCESSES = 4_096;

interface Limits {
  cpuMillis: number;
  memoryMb: number;
}

/** Control groups for replicas, below that of this service, of whichever version the machine has. */
export interface Cgroups {
  /** The groups of a replica, made with its limits; empty where it could not be. */
  create(name: string, limits: Limits): string[];
}

/** Undefined where this process may make none, as most ordinary users. */
export function openCgroups(): Cgroups | undefined {
  const own = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n').map((line) => line.split(':') as [string, string, string]);
  try {
    return existsSync(join(ROOT, 'cgroup.controllers')) ? openUnified(join(ROOT, own.find(([number]) => number === '0')?.[2] ?? '')) : openLegacy(own);
  } catch {
    return undefined;
  }
}

/** Version 2: groups with processes of their own have no groups below them that count, so that this process moves into one beside the replicas'. */
function openUnified(folder: string): Cgroups | undefined {
  if (!readFileSync(join(folder, 'cgroup.controllers'), 'utf8').split(/\s/).includes('memory')) return undefined;
  const enable = (): void => writeFileSync(join(folder, 'cgroup.subtree_control'), '+memory +cpu +pids');
  try {
    enable();
  } catch {
    const pids = readFileSync(join(folder, 'cgroup.procs'), 'utf8').trim().split('\n');
    // Others' processes are not ours to move.
    if (pids.some((pid) => pid !== String(process.pid))) return undefined;
    mkdirSync(join(folder, 'capstan_service'), { recursive: true });
    writeFileSync(join(folder, 'capstan_service', 'cgroup.procs'), String(process.pid));
    enable();
  }
  return {
    create: (name, { cpuMillis, memoryMb }) => createIn([join(folder, name)], (path) => {
      writeFileSync(join(path, 'memory.max'), String(memoryMb * 2 ** 20));
      writeFileSync(join(path, 'cpu.max'), `${cpuMillis * CPU_PERIOD_US / 1_000} ${CPU_PERIOD_US}`);
      writeFileSync(join(path, 'pids.max'), String(MAX_PROCESSES));
      // Else one of its processes would be ended, and the rest wait for it for ever.
      writeFileSync(join(path, 'memory.oom.group'), '1');
      if (existsSync(join(path, 'memory.swap.max'))) writeFileSync(join(path, 'memory.swap.max'), '0');
    }),
  };
}

function openLegacy(own: readonly [string, string, string][]): Cgroups | undefined {
  const folderOf = (controller: string): string | undefined => {
    const line = own.find(([, controllers]) => controllers.split(',').includes(controller));
    const folder = line === undefined ? undefined : join(ROOT, controller, line[2]);
    return folder !== undefined && existsSync(join(folder, 'cgroup.procs')) ? folder : undefined;
  };
  const [memory, cpu, pids] = ['memory', 'cpu', 'pids'].map(folderOf);
  if (memory === undefined) return undefined;
  // Fails where this process may not.
  const probe = join(memory, `capstan_probe_${process.pid}`);
  mkdirSync(probe);
  rmdirSync(probe);
  return {
    create: (name, { cpuMillis, memoryMb }) => createIn([memory, cpu, pids].flatMap((folder) => (folder === undefined ? [] : [join(folder, name)])), (path) => {
      const set = (file: string, value: string | number): void => {
        if (existsSync(join(path, file))) writeFileSync(join(path, file), String(value));
      };
      set('memory.limit_in_bytes', memoryMb * 2 ** 20);
      set('cpu.cfs_period_us', CPU_PERIOD_US);
      set('cpu.cfs_quota_us', Math.round(cpuMillis * CPU_PERIOD_US / 1_000));
      set('pids.max', MAX_PROCESSES);
    }),
  };
}

function createIn(paths: readonly string[], configure: (path: string) => void): string[] {
  try {
    for (const path of paths) {
      // One of an earlier start counts what that one used.
      if (existsSync(path)) rmdirSync(path);
      mkdirSync(path);
      configure(path);
    }
    return [...paths];
  } catch {
    for (const path of paths) if (existsSync(path)) tryRemove(path);
    return [];
  }
}

function tryRemove(path: string): void {
  try {
    rmdirSync(path);
  } catch {
    // Still used; it is empty of limits that matter.
  }
}
