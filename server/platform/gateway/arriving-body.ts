import { ApiError } from 'capstan/internal';

/** Most bytes of bodies that arrive, of one owner and of all. */
export interface HeldLimits {
  ownerBytes: number;
  totalBytes: number;
}

/** Counts the bytes of bodies that arrive, so that no owner takes the space of the others. */
export class HeldBytes {
  readonly #limits: HeldLimits;
  /** What the bodies do, for messages. */
  readonly #state: string;
  #numHeld = 0;
  readonly #byOwner = new Map<string, number>();

  constructor(limits: HeldLimits, state: string) {
    this.#limits = limits;
    this.#state = state;
  }

  /** Throws ApiError. */
  hold(ownerId: string, numBytes: number): void {
    const ofOwner = this.#byOwner.get(ownerId) ?? 0;
    if (ofOwner + numBytes > this.#limits.ownerBytes)
      throw new ApiError('queue_full', `The queue is full: ${ofOwner} bytes of your request bodies ${this.#state}`);
    if (this.#numHeld + numBytes > this.#limits.totalBytes)
      throw new ApiError('queue_full', `The queue is full: ${this.#numHeld} bytes of request bodies ${this.#state}`);
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

  /** @param expected What must arrive in time, for messages. */
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
