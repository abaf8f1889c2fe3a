import { ApiError } from 'capstan/internal';

export interface HeldLimits {
  /** Maximum bytes of all owners together, and of one owner. */
  totalBytes: number;
  ownerBytes: number;
  /** What is held and why, for errors. */
  what: string;
}

/**
 * Counts the bytes that the gateway holds. An owner gets at most half of what the others leave, so that no number
 * of owners takes all the space.
 */
export class HeldBytes {
  readonly #limits: HeldLimits;
  #numHeld = 0;
  readonly #byOwner = new Map<string, number>();

  constructor(limits: HeldLimits) {
    this.#limits = limits;
  }

  /** Throws ApiError `queue_full`, and then holds nothing more. */
  hold(ownerId: string, numBytes: number): void {
    const { totalBytes, ownerBytes, what } = this.#limits;
    const ofOwner = this.#byOwner.get(ownerId) ?? 0;
    if (ofOwner + numBytes > ownerBytes)
      throw new ApiError('queue_full', `The queue is full: ${ofOwner} bytes of your ${what}`);
    const ofOthers = this.#numHeld - ofOwner;
    if (ofOwner + numBytes > (totalBytes - ofOthers) / 2)
      throw new ApiError('queue_full', `The queue is full: ${this.#numHeld} bytes of ${what}`);
    this.#add(ownerId, numBytes);
  }

  release(ownerId: string, numBytes: number): void {
    this.#add(ownerId, -numBytes);
  }

  #add(ownerId: string, numBytes: number): void {
    this.#numHeld += numBytes;
    const ofOwner = (this.#byOwner.get(ownerId) ?? 0) + numBytes;
    if (ofOwner === 0) this.#byOwner.delete(ownerId);
    else this.#byOwner.set(ownerId, ofOwner);
  }
}

/** The pieces of a body, with one time limit over all of them. */
export class TimedPieces {
  readonly #pieces: AsyncIterator<Buffer, undefined>;
  readonly #timer: NodeJS.Timeout;
  #late: ApiError | undefined;
  #fail: ((error: ApiError) => void) | undefined;

  /** @param expected What must arrive in time. */
  constructor(pieces: AsyncIterable<Buffer>, timeoutMs: number, expected: string) {
    this.#pieces = pieces[Symbol.asyncIterator]() as AsyncIterator<Buffer, undefined>;
    this.#timer = setTimeout(() => {
      this.#late = tooSlow(timeoutMs, expected);
      this.#fail?.(this.#late);
    }, timeoutMs);
  }

  /** Returns undefined at the end. */
  next(): Promise<Buffer | undefined> {
    return new Promise((resolve, reject) => {
      if (this.#late !== undefined) return reject(this.#late);
      this.#fail = reject;
      this.#pieces.next().then(({ value }) => resolve(value), reject);
    });
  }

  stopClock(): void {
    clearTimeout(this.#timer);
  }

  close(): void {
    this.stopClock();
    // A piece that the client no longer sends ends by the transport's own limit.
    this.#pieces.return?.().catch(() => {});
  }
}

function tooSlow(timeoutMs: number, expected: string): ApiError {
  return new ApiError(
    'request_timeout',
    `The body did not arrive in time: expected ${expected} within ${timeoutMs / 1000} s`,
  );
}
