import { setTimeout as sleep } from 'node:timers/promises';
import type { BudgetUse } from '../check/budget';
import type { KeyRecord, TableDigest } from './feed';
import type { AccessStore } from '../store/store';
import type { KeyTable } from '../check/table';

export interface FollowerOptions {
  /** Poll interval. */
  pollMs: number;
  /** Interval between two digest comparisons. */
  compareMs: number;
  monotonicMs: () => number;
  /** Called after each successful poll. */
  onRead: () => void;
  /** Called after each read of the feed, even if nothing changed. */
  onApplied: () => void;
  /** Called with the budget use of each key read. */
  onBudgetUse: (use: BudgetUse) => void;
  onError: (error: unknown) => void;
  /** Called if the digests differ: the database was changed without a revision. */
  onMismatch: () => void;
}

const PAGE_SIZE = 2_000;

/** Keeps the key table up to date: loads all keys, then follows the revision feed. Reads never overlap. */
export class Follower {
  readonly #store: AccessStore;
  readonly #table: KeyTable;
  readonly #options: FollowerOptions;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #epoch: string | undefined;
  #appliedRev = 0;
  #confirmedAtMs = -Infinity;
  #comparedAtMs: number;
  #reading: Promise<void> | undefined;
  #next: Promise<void> | undefined;
  #loop: Promise<void> | undefined;

  constructor(store: AccessStore, table: KeyTable, options: FollowerOptions) {
    this.#store = store;
    this.#table = table;
    this.#options = options;
    this.#comparedAtMs = options.monotonicMs();
  }

  get appliedRev(): number {
    return this.#appliedRev;
  }

  /** Time since the start of the last complete read. */
  get staleMs(): number {
    return this.#options.monotonicMs() - this.#confirmedAtMs;
  }

  /** Loads the table, then follows until {@link close}. Rejects when the first load fails. */
  async start(): Promise<void> {
    await this.sync();
    this.#loop = this.#follow();
  }

  /** Reads the feed now instead of at the next poll. */
  wake(): void {
    this.#wake.abort();
  }

  /** Resolves once the table contains every change committed before this call. */
  sync(): Promise<void> {
    // The read in progress may have started before the caller's change, so schedule one more. Concurrent callers share
    // it.
    if (this.#reading !== undefined)
      return (this.#next ??= this.#reading
        .catch(() => {})
        .then(() => {
          this.#next = undefined;
          return this.sync();
        }));
    const reading = this.#read().finally(() => {
      this.#reading = undefined;
    });
    this.#reading = reading;
    return reading;
  }

  async close(): Promise<void> {
    this.#stop.abort();
    this.#wake.abort();
    await this.#loop;
    await this.#reading?.catch(() => {});
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      // `ref: false`: the timer does not keep the process alive.
      await sleep(this.#options.pollMs, undefined, { signal: this.#wake.signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      this.#wake = new AbortController();
      await this.sync().then(this.#options.onRead, this.#options.onError);
    }
  }

  async #read(): Promise<void> {
    const startedMs = this.#options.monotonicMs();
    const state = await this.#store.readState();
    if (state.epoch !== this.#epoch || state.rev < this.#appliedRev) await this.#reload();
    else if (state.rev > this.#appliedRev) await this.#applyChanges();
    if (startedMs - this.#comparedAtMs >= this.#options.compareMs) await this.#compare(startedMs);
    this.#confirmedAtMs = startedMs;
    this.#options.onApplied();
  }

  async #applyChanges(): Promise<void> {
    const changes = await this.#store.readChanges(this.#appliedRev);
    // A different database, or one that has pruned revisions that this table has not applied.
    if (changes.epoch !== this.#epoch || !changes.isComplete) return this.#reload();
    for (const keyId of changes.deletedKeyIds) this.#table.remove(keyId);
    for (const key of changes.keys) this.#apply(key);
    this.#appliedRev = changes.rev;
  }

  /**
   * Loads all keys in pages, so that the event loop stays free. Then applies the changes since before the first page,
   * so that no change is lost.
   */
  async #reload(): Promise<void> {
    const { rev, epoch } = await this.#store.readState();
    const seen = new Set<string>();
    // A different database or an older copy: the entries here are meaningless. Accept no key until the load is
    // complete.
    if (epoch !== this.#epoch || rev < this.#appliedRev) {
      this.#table.retain(seen);
      this.#confirmedAtMs = -Infinity;
    }
    for (let afterId = ''; ;) {
      const page = await this.#store.readPage(afterId, PAGE_SIZE);
      for (const key of page) {
        seen.add(key.id);
        this.#apply(key);
      }
      if (page.length < PAGE_SIZE) break;
      afterId = page[page.length - 1].id;
    }
    this.#table.retain(seen);
    this.#epoch = epoch;
    this.#appliedRev = rev;
    await this.#applyChanges();
  }

  #apply(record: KeyRecord): void {
    this.#table.apply(record);
    if (record.budgetUse !== null) this.#options.onBudgetUse(record.budgetUse);
  }

  async #compare(nowMs: number): Promise<void> {
    const found = await this.#store.readDigest();
    if (found === undefined || found.state.rev !== this.#appliedRev || found.state.epoch !== this.#epoch) return;
    this.#comparedAtMs = nowMs;
    if (isSameDigest(found.digest, this.#table.digest)) return;
    this.#options.onMismatch();
    await this.#reload();
  }
}

function isSameDigest(a: TableDigest, b: TableDigest): boolean {
  return (Object.keys(a) as (keyof TableDigest)[]).every((name) => a[name] === b[name]);
}
