import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { join } from 'node:path';

/** Where a replica keeps what its supervisor and this service tell each other. */
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

  /** Links to its inputs, where there are no namespaces. */
  get inputs(): string {
    return join(this.path, 'input');
  }

  get spool(): string {
    return join(this.path, 'spool');
  }

  get stopFile(): string {
    return join(this.path, 'stop');
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
    };
  }
}

/** The supervisor of a replica: a process is known by its id, its start and the boot that both belong to. */
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
  /** It was asked to end, and had to be made to. */
  wasStopped: boolean;
  wasKilled: boolean;
  /** It ran out of memory, as the kernel counts in its control group or as its supervisor measured; `enough`: the kernel counts, and it did not; undefined: nobody counts. */
  memory: 'watch' | 'cgroup' | 'enough' | undefined;
}

export function toReference({ pid, startTime, bootId }: SupervisorState): string {
  return `${pid}:${startTime}:${bootId}`;
}

export function isAlive({ pid, startTime, bootId }: SupervisorState): boolean {
  return bootId === currentBootId() && startTimeOf(pid) === startTime;
}

let bootId: string | undefined;
function currentBootId(): string {
  return (bootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim());
}

/** In ticks since boot; undefined for no process, or one that only waits to be reaped. */
function startTimeOf(pid: number): string | undefined {
  const fields = statFields(pid);
  return fields === undefined || fields[0] === 'Z' ? undefined : fields[19];
}

/** Of /proc/PID/stat from the state on: before it is a name, which may hold anything. */
export function statFields(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return text.slice(text.lastIndexOf(')') + 2).split(' ');
  } catch {
    return undefined;
  }
}

async function readFields(file: string): Promise<Record<string, string> | undefined> {
  const text = await readFile(file, 'utf8').catch(() => undefined);
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
