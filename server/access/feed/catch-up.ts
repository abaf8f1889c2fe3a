import { withTimeout } from '../../base/with-timeout';

/** Least time between the starts of two reads. */
const GAP_MS = 50;
/** A request does not wait longer for a read. */
const TIMEOUT_MS = 1_000;
const MAX_WAITING = 256;

/**
 * Reads the feed for requests with a key that the table does not accept. One read serves all requests that came before
 * it, and reads and waiting requests are limited. A flood of wrong keys thus costs little, and delays valid new keys by
 * {@link GAP_MS} at most.
 */
export class CatchUp {
  readonly #read: () => Promise<void>;
  readonly #monotonicMs: () => number;
  #startedMs = -Infinity;
  #numWaiting = 0;
  /** The next read, which has not started. */
  #next: Promise<void> | undefined;

  /** @param read Resolves once every change committed before the call applies here. */
  constructor(read: () => Promise<void>, monotonicMs: () => number) {
    this.#read = read;
    this.#monotonicMs = monotonicMs;
  }

  /**
   * Resolves once every change committed before the call applies here, or after a second. Returns undefined if too many
   * requests wait.
   */
  wait(): Promise<void> | undefined {
    if (this.#numWaiting >= MAX_WAITING) return undefined;
    this.#numWaiting++;
    this.#next ??= this.#readNext();
    return this.#next.finally(() => {
      this.#numWaiting--;
    });
  }

  async #readNext(): Promise<void> {
    const waitMs = this.#startedMs + GAP_MS - this.#monotonicMs();
    // At least one turn, so that `#next` is set before it is cleared.
    await new Promise<void>((resolve) => (waitMs > 0 ? setTimeout(resolve, waitMs).unref() : resolve()));
    this.#next = undefined;
    this.#startedMs = this.#monotonicMs();
    // The follower reports errors at its next poll.
    await withTimeout(
      TIMEOUT_MS,
      this.#read().catch(() => {}),
    );
  }
}
