import type { HeldBytes, HeldLimits } from '../held-bodies';

/** Of all converted responses together, and of those of one owner: about 900 streams of 2,000 tokens. */
export const RESPONSE_LIMITS: HeldLimits = {
  totalBytes: 512 * 1024 * 1024,
  ownerBytes: 128 * 1024 * 1024,
  what: 'converted responses are held. Try again later',
};

/** The memory of one converted response. */
export class ResponseMemory {
  readonly #held: HeldBytes;
  readonly #ownerId: string;
  #numBytes = 0;

  constructor(held: HeldBytes, ownerId: string) {
    this.#held = held;
    this.#ownerId = ownerId;
  }

  /** Sets how many bytes the response holds. Throws ApiError `queue_full`. */
  resize(numBytes: number): void {
    const added = numBytes - this.#numBytes;
    if (added > 0) this.#held.hold(this.#ownerId, added);
    else this.#held.release(this.#ownerId, -added);
    this.#numBytes = numBytes;
  }
}
