import type { ReplicaUsage } from '../http/replica-headers';

/** Requests whose usage is kept, the newest ones. */
const MAX_KEPT = 1_024;

/**
 * The usage of requests with an allowance. The gateway asks for it when a response did not report it, for example
 * because its client disconnected.
 */
export class EndedUsage {
  readonly #byId = new Map<string, Promise<ReplicaUsage>>();

  /** Returns what to call at the end of the request. */
  begin(id: string): (usage: ReplicaUsage) => void {
    let end!: (usage: ReplicaUsage) => void;
    this.#byId.set(
      id,
      new Promise((resolve) => {
        end = resolve;
      }),
    );
    if (this.#byId.size > MAX_KEPT) this.#byId.delete(this.#byId.keys().next().value as string);
    return end;
  }

  /** Waits for the end of the request. Returns undefined for an unknown one. */
  take(id: string): Promise<ReplicaUsage> | undefined {
    const usage = this.#byId.get(id);
    this.#byId.delete(id);
    return usage;
  }
}
