import type { Activity, ControlPolicy } from './records';

/** The number of open requests within one second. */
interface Second {
  at: number;
  least: number;
  most: number;
  last: number;
}

/** Counts the open requests of one deployment and remembers their range per second. */
export class ActivityMeter {
  readonly #open = new Map<string, number>();
  readonly #seconds: Second[] = [];
  #total = 0;
  #lastAt: number;

  constructor(nowMs: number) {
    this.#lastAt = nowMs;
  }

  get numOpen(): number {
    return this.#total;
  }

  openOf(replicaId: string): number {
    return this.#open.get(replicaId) ?? 0;
  }

  count(replicaId: string, numOpen: number, nowMs: number, keepMs: number): void {
    const before = this.#total;
    this.#total += numOpen - this.openOf(replicaId);
    if (numOpen === 0) this.#open.delete(replicaId);
    else this.#open.set(replicaId, numOpen);
    this.#lastAt = nowMs;
    const second = Math.floor(nowMs / 1000);
    const current = this.#seconds.at(-1);
    if (current?.at === second) {
      current.least = Math.min(current.least, this.#total);
      current.most = Math.max(current.most, this.#total);
      current.last = this.#total;
    } else {
      this.#seconds.push({
        at: second,
        least: Math.min(before, this.#total),
        most: Math.max(before, this.#total),
        last: this.#total,
      });
    }
    // Keep one second before the window: its last count is the count at the start of the window.
    while (this.#seconds.length > 1 && this.#seconds[1].at * 1000 < nowMs - keepMs - 1000) this.#seconds.shift();
  }

  read(nowMs: number, { scaleUpAfterMs, scaleDownAfterMs }: ControlPolicy): Activity {
    return {
      numOpen: this.#total,
      lastAt: this.#lastAt,
      minOpen: this.#range(nowMs - scaleUpAfterMs).least,
      maxOpen: this.#range(nowMs - scaleDownAfterMs).most,
    };
  }

  #range(sinceMs: number): { least: number; most: number } {
    const since = Math.floor(sinceMs / 1000);
    const range = { least: this.#total, most: this.#total };
    for (let i = this.#seconds.length - 1; i >= 0; i--) {
      const { at, least, most, last } = this.#seconds[i];
      range.least = Math.min(range.least, at < since ? last : least);
      range.most = Math.max(range.most, at < since ? last : most);
      if (at < since) return range;
    }
    // Nothing was open before the first request.
    return { ...range, least: 0 };
  }
}
