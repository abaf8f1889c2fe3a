import { readdirSync, readFileSync } from 'node:fs';
import type { ReplicaUsage } from '../driver';
import { statFields } from './replica-folder';

/** Clock ticks per second in /proc. The same on every Linux. */
const TICKS_PER_S = 100;
const PAGE_BYTES = 4096;

/** Returns the ids of all descendants of a process. */
export function descendantsOf(pid: number): number[] {
  const found: number[] = [...childrenOf(pid)];
  for (let i = 0; i < found.length; i++) found.push(...childrenOf(found[i]));
  return found;
}

function childrenOf(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).flatMap((task) =>
      readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8')
        .split(' ')
        .filter((text) => text !== '')
        .map(Number),
    );
  } catch {
    // The process has ended.
    return [];
  }
}

/** Measures the CPU and memory usage of a replica's processes between calls. */
export class UsageMeter {
  #lastTicks = 0;
  #lastMs = 0;

  /** The first call returns 0 % CPU, because there is no earlier measurement. */
  measure(pids: readonly number[], nowMs = performance.now()): ReplicaUsage {
    let ticks = 0;
    let pages = 0;
    for (const pid of pids) {
      const fields = statFields(pid);
      if (fields === undefined) continue;
      // Fields 14 to 17: own CPU time, and that of children that have ended.
      ticks += fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
      pages += Number(fields[21]);
    }
    const seconds = (nowMs - this.#lastMs) / 1000;
    const cpuPercent =
      this.#lastMs === 0 || seconds <= 0 ? 0 : Math.max(0, ((ticks - this.#lastTicks) / TICKS_PER_S / seconds) * 100);
    this.#lastTicks = ticks;
    this.#lastMs = nowMs;
    return { cpuPercent: Math.round(cpuPercent * 10) / 10, memoryMb: Math.round((pages * PAGE_BYTES) / 2 ** 20) };
  }
}
