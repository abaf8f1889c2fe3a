import type { KeyUse } from './feed';

/** The last use of each key since the last writing; the hot path touches a map and nothing else. */
export class LastUses {
  #uses = new Map<string, KeyUse>();

  record(keyId: string, atMs: number, address: string): void {
    const use = this.#uses.get(keyId);
    if (use === undefined) this.#uses.set(keyId, { keyId, atMs, address });
    else {
      use.atMs = atMs;
      use.address = address;
    }
  }

  /** Hands what there is to `write`; what it does not take is kept, unless a newer use came meanwhile. */
  async flush(write: (uses: readonly KeyUse[]) => Promise<void>): Promise<void> {
    const taken = this.#uses;
    if (taken.size === 0) return;
    this.#uses = new Map();
    try {
      await write([...taken.values()]);
    } catch (error) {
      for (const [keyId, use] of taken) if (!this.#uses.has(keyId)) this.#uses.set(keyId, use);
      throw error;
    }
  }
}
