import { setTimeout as sleep } from 'node:timers/promises';
import type { BudgetUse } from './budget';
import type { KeyRecord, TableDigest } from './feed';
import type { AccessStore } from './store';
import type { KeyTable } from './table';

export interface FollowerOptions {
  /** Between two looks at the feed. */
  pollMs: number;
  /** Between two comparisons of the sums over all keys. */
  compareMs: number;
  monotonicMs: () => number;
  onRead: () => void;
  /** The table is as the database was; also called where nothing changed. */
  onApplied: () => void;
  /** What keys of the database had used of their budgets. */
  onBudgetUse: (use: BudgetUse) => void;
  onError: (error: unknown) => void;
  /** The sums differed: somebody wrote to the database past the feed. */
  onMismatch: () => void;
}

const PAGE_SIZE = 2_000;

/** Keeps the table as the database is: all of it at the start, then what the revision feed names. Readings never overlap. */
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

  /** How long ago the table was surely the database's. */
  get staleMs(): number {
    return this.#options.monotonicMs() - this.#confirmedAtMs;
  }

  /** Loads the table, then follows until {@link close}. Rejects when the first load fails. */
  async start(): Promise<void> {
    await this.sync();
    this.#loop = this.#follow();
  }

  /** A push: look now instead of at the next poll. */
  poke(): void {
    this.#wake.abort();
  }

  /** The table holds every change that was committed before this call once it resolves. */
  sync(): Promise<void> {
    // A reading under way may have begun before the caller's change: one more is owed, which all who come meanwhile share.
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
      // The timer alone keeps no process alive.
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
    // Another database, or one that has forgotten what this table has not seen.
    if (changes.epoch !== this.#epoch || !changes.isComplete) return this.#reload();
    for (const keyId of changes.deletedKeyIds) this.#table.remove(keyId);
    for (const key of changes.keys) this.#apply(key);
    this.#appliedRev = changes.rev;
  }

  /** In pages, so that the loop stays free. The feed is read from before the first page: nothing that changes meanwhile is lost. */
  async #reload(): Promise<void> {
    const { rev, epoch } = await this.#store.readState();
    const seen = new Set<string>();
    // Revisions of another database, or of an older copy of this one, say nothing of ours. Until all is read nothing is trusted.
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
