import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { join } from 'node:path';

/** The folder through which a replica's supervisor and the service exchange files. */
export class ReplicaFolder {
  readonly path: string;

  constructor(root: string, replicaId: string) {
    if (!/^[a-z]{2,10}_[0-9A-Za-z]{1,64}$/.test(replicaId))
      throw new Error(`expected an id such as rep_01ABC, got '${replicaId.slice(0, 100)}'`);
    this.path = join(root, replicaId);
  }

  get home(): string {
    return join(this.path, 'home');
  }

  /** Links to the inputs, used without namespaces. */
  get inputs(): string {
    return join(this.path, 'input');
  }

  get spool(): string {
    return join(this.path, 'spool');
  }

  get stopFile(): string {
    return join(this.path, 'stop');
  }

  /** The limit of the shared folder that the supervisor enforces, in place of the one at its start. */
  get cacheLimitFile(): string {
    return join(this.path, 'cache_limit');
  }

  get noteFile(): string {
    return join(this.path, 'note.json');
  }

  get exitFile(): string {
    return join(this.path, 'exit');
  }

  async supervisor(): Promise<SupervisorState | undefined> {
    const fields = await readFields(join(this.path, 'state'));
    return fields === undefined
      ? undefined
      : { pid: Number(fields.pid), startTime: fields.start, bootId: fields.boot, childPid: Number(fields.child) };
  }

  async exit(): Promise<ReplicaExit | undefined> {
    const fields = await readFields(this.exitFile);
    if (fields === undefined) return undefined;
    const signal = Number(fields.signal);
    return {
      exitCode: signal === 0 ? Number(fields.code) : null,
      signal: signal === 0 ? null : signalName(signal),
      wasStopped: fields.stopped === '1',
      wasKilled: fields.killed === '1',
      memory:
        fields.memory === 'watch' || fields.memory === 'cgroup' || fields.memory === 'enough'
          ? fields.memory
          : undefined,
      // Supervisors of earlier releases report only `over`.
      disk: fields.disk === 'over' ? 'bytes' : DISK_LIMITS.find((limit) => limit === fields.disk),
    };
  }
}

const DISK_LIMITS = ['bytes', 'entries', 'cache', 'hidden'] as const;

/** The supervisor process of a replica, identified by process id, start time and boot id. */
export interface SupervisorState {
  pid: number;
  startTime: string;
  bootId: string;
  /** The workload, or the first process of its namespaces. */
  childPid: number;
}

export interface ReplicaExit {
  exitCode: number | null;
  signal: string | null;
  /** It ended on request; `wasKilled`: with SIGKILL after the grace period. */
  wasStopped: boolean;
  wasKilled: boolean;
  /**
   * Memory at the end. `cgroup`: the kernel killed it at its limit. `watch`: the supervisor did. `enough`: the kernel
   * counted and the limit was not reached. undefined: not counted.
   */
  memory: 'watch' | 'cgroup' | 'enough' | undefined;
  /**
   * The supervisor killed it for its use of the disk. `bytes`: it had written too much to its home. `entries`: it had
   * too many files to be measured. `cache`: its cache folder held too much. `hidden`: the disk was almost full, and it
   * held files whose size is unknown.
   */
  disk: (typeof DISK_LIMITS)[number] | undefined;
}

export function toReference({ pid, startTime, bootId }: SupervisorState): string {
  return `${pid}:${startTime}:${bootId}`;
}

/** Returns true when /proc cannot be read, for example without a free file descriptor: no replica is ended then. */
export function isAlive({ pid, startTime, bootId }: SupervisorState): boolean {
  try {
    return bootId === currentBootId() && startTimeOf(pid) === startTime;
  } catch {
    return true;
  }
}

let bootId: string | undefined;
function currentBootId(): string {
  return (bootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim());
}

/** Start time in ticks since boot. undefined for no process, or a zombie. @throws Error if it cannot be read */
function startTimeOf(pid: number): string | undefined {
  const fields = readStat(pid);
  return fields === undefined || fields[0] === 'Z' ? undefined : fields[19];
}

/** Fields of /proc/PID/stat from the state on, or undefined if they cannot be read. */
export function statFields(pid: number): string[] | undefined {
  try {
    return readStat(pid);
  } catch {
    return undefined;
  }
}

/** The process name before the state may contain any character. Returns undefined if there is no such process. */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return text.slice(text.lastIndexOf(')') + 2).split(' ');
  } catch (error) {
    if (isMissing(error) || (error as NodeJS.ErrnoException).code === 'ESRCH') return undefined;
    throw error;
  }
}

export function isMissing(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ENOENT';
}

/** Returns undefined if the file does not exist. @throws Error if it cannot be read: nothing is known then. */
async function readFields(file: string): Promise<Record<string, string> | undefined> {
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    if (isMissing(error)) return undefined;
    throw error;
  });
  return text === undefined
    ? undefined
    : Object.fromEntries(
        text
          .trim()
          .split('\n')
          .map((line) => line.split(' ', 2) as [string, string]),
      );
}

function signalName(number: number): string {
  return Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ?? `SIG${number}`;
}
