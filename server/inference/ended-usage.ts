import type { ReplicaUsage } from '../http/replica-headers';

/** Ended requests of each kind whose usage is kept, the newest ones. */
const MAX_KEPT = 1_024;

/** Ends a request. `wasCut`: its response may have ended before it reported the usage. */
export type EndUsage = (usage: ReplicaUsage, wasCut: boolean) => void;

/**
 * The usage of requests with an allowance. The gateway asks for it when a response did not report it, for example
 * because its client disconnected.
 */
export class EndedUsage {
  /** Open requests are never dropped. The server limits how many there are. */
  readonly #open = new Map<string, Promise<ReplicaUsage>>();
  /** Kept apart, so that many complete responses do not push out one that was cut. */
  readonly #cut = new Map<string, Promise<ReplicaUsage>>();
  readonly #complete = new Map<string, Promise<ReplicaUsage>>();

  /** Returns what to call at the end of the request. */
  begin(id: string): EndUsage {
    const { promise, resolve } = withResolvers<ReplicaUsage>();
    this.#open.set(id, promise);
    return (usage, wasCut) => {
      resolve(usage);
      if (!this.#open.delete(id)) return;
      const kept = wasCut ? this.#cut : this.#complete;
      kept.set(id, promise);
      if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value as string);
    };
  }

  /** Waits for the end of the request. Returns undefined for an unknown one. */
  take(id: string): Promise<ReplicaUsage> | undefined {
    for (const kept of [this.#open, this.#cut, this.#complete]) {
      const usage = kept.get(id);
      if (usage === undefined) continue;
      kept.delete(id);
      return usage;
    }
    return undefined;
  }
}

function withResolvers<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
