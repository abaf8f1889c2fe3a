import { dayOf } from './budget';

/** Use of a key on one UTC day since the last flush. */
export interface KeyUse {
  keyId: string;
  /** Time of the latest use. */
  atMs: number;
  address: string;
  day: number;
  numRequests: number;
  numTokens: number;
}

/** Collects key uses in memory until they are flushed in a batch. */
export class KeyUses {
  #uses = new Map<string, KeyUse>();
  /** Unwritten uses of earlier days. */
  #closed: KeyUse[] = [];
  #writing = new Map<string, KeyUse>();
  #writingClosed: readonly KeyUse[] = [];

  /** Records the use of a valid key. `numRequests` is 0 if the request was refused for another reason. */
  record(keyId: string, atMs: number, address: string, numRequests: number): void {
    const use = this.#use(keyId, atMs, address);
    use.atMs = atMs;
    use.address = address;
    use.numRequests += numRequests;
  }

  addTokens(keyId: string, atMs: number, address: string, numTokens: number): void {
    if (numTokens > 0) this.#use(keyId, atMs, address).numTokens += numTokens;
  }

  /** Returns the tokens since `sinceDay` that are not in the database yet. */
  unwrittenTokens(keyId: string, sinceDay: number): number {
    let numTokens = 0;
    const add = (use: KeyUse | undefined) => {
      if (use?.keyId === keyId && use.day >= sinceDay) numTokens += use.numTokens;
    };
    add(this.#uses.get(keyId));
    add(this.#writing.get(keyId));
    this.#closed.forEach(add);
    this.#writingClosed.forEach(add);
    return numTokens;
  }

  /**
   * Passes all uses to `write`. If it rejects, keeps them for the next flush. Does nothing while a flush is running.
   */
  async flush(write: (uses: readonly KeyUse[]) => Promise<void>): Promise<void> {
    const taken = [...this.#closed, ...this.#uses.values()];
    if (taken.length === 0 || this.#writing.size + this.#writingClosed.length > 0) return;
    this.#writing = this.#uses;
    this.#writingClosed = this.#closed;
    this.#uses = new Map();
    this.#closed = [];
    try {
      await write(taken);
    } catch (error) {
      taken.forEach((use) => this.#keep(use));
      throw error;
    } finally {
      this.#writing = new Map();
      this.#writingClosed = [];
    }
  }

  #use(keyId: string, atMs: number, address: string): KeyUse {
    const day = dayOf(atMs);
    const known = this.#uses.get(keyId);
    if (known?.day === day) return known;
    if (known !== undefined) this.#closed.push(known);
    const use = { keyId, atMs, address, day, numRequests: 0, numTokens: 0 };
    this.#uses.set(keyId, use);
    return use;
  }

  /** Merges a use that could not be written with newer ones. */
  #keep(old: KeyUse): void {
    const use = this.#uses.get(old.keyId);
    if (use === undefined) this.#uses.set(old.keyId, old);
    else if (use.day !== old.day) this.#closed.push(old);
    else {
      use.numRequests += old.numRequests;
      use.numTokens += old.numTokens;
    }
  }
}
