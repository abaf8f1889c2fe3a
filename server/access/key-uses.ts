import { dayOf } from './budget';

/** What a key did since the last writing, on one day of UTC. */
export interface KeyUse {
  keyId: string;
  /** Of the latest use. */
  atMs: number;
  address: string;
  day: number;
  numRequests: number;
  numTokens: number;
}

/** Uses of keys until they are written in a batch; the hot path touches a map and nothing else. */
export class KeyUses {
  #uses = new Map<string, KeyUse>();
  /** Of days gone by: what midnight found unwritten. */
  #closed: KeyUse[] = [];
  #writing = new Map<string, KeyUse>();
  #writingClosed: readonly KeyUse[] = [];

  /** A good key was presented; `numRequests` is 0 when it was refused for another reason. */
  record(keyId: string, atMs: number, address: string, numRequests: number): void {
    const use = this.#use(keyId, atMs, address);
    use.atMs = atMs;
    use.address = address;
    use.numRequests += numRequests;
  }

  addTokens(keyId: string, atMs: number, address: string, numTokens: number): void {
    if (numTokens > 0) this.#use(keyId, atMs, address).numTokens += numTokens;
  }

  /** Tokens from that day on that are not in the database yet. */
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

  /** Hands what there is to `write`; what it does not take is kept for the next time. One writing at a time. */
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

  /** What could not be written, beside what came meanwhile. */
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
