import { ApiError } from '../base/errors';
import { bodyTimeout, tooLarge } from './framing';

/** Bytes that may be queued before reading from the client pauses. */
const HIGH_WATER_BYTES = 256 * 1024;

export interface BodyQueueOptions {
  maxBodyBytes: number;
  /** For `pieces` the longest wait for the next piece, for `readAll` the time limit of the complete body. */
  timeoutMs: number;
  /** Stops reading from the client. */
  pause: () => void;
  /** Resumes reading from the client. */
  resume: () => void;
}

/**
 * A request body between a transport and its reader. Memory is bounded: reading from the client pauses while the queue
 * is full.
 */
export class BodyQueue {
  readonly #options: BodyQueueOptions;
  #chunks: Buffer[] = [];
  #numQueuedBytes = 0;
  #numBytes = 0;
  #isPaused = false;
  #isDiscarding = false;
  #outcome: 'ended' | ApiError | undefined;
  #wake: (() => void) | undefined;

  constructor(options: BodyQueueOptions) {
    this.#options = options;
  }

  /** Takes ownership of `chunk`. */
  push(chunk: Buffer): void {
    this.#numBytes += chunk.length;
    if (this.#outcome === undefined && this.#numBytes > this.#options.maxBodyBytes)
      this.fail(tooLarge(this.#options.maxBodyBytes));
    if (this.#isDiscarding || this.#outcome !== undefined) return;

    this.#chunks.push(chunk);
    this.#numQueuedBytes += chunk.length;
    if (this.#numQueuedBytes >= HIGH_WATER_BYTES && !this.#isPaused) {
      this.#isPaused = true;
      this.#options.pause();
    }
    this.#notify();
  }

  end(): void {
    this.#settle('ended');
  }

  fail(error: ApiError): void {
    this.#settle(error);
  }

  /** Reads the rest of the body from the client and drops it. */
  discard(): void {
    this.#isDiscarding = true;
    this.#chunks = [];
    this.#numQueuedBytes = 0;
    this.#notify();
    this.#resume();
  }

  /** Yields the pieces as they arrive. Leaving the loop early drops the rest. */
  async *pieces(): AsyncGenerator<Buffer, void> {
    try {
      for (;;) {
        const chunk = this.#take();
        if (chunk !== undefined) yield chunk;
        else if (this.#isOver()) return;
        else await this.#nextChange(this.#options.timeoutMs);
      }
    } finally {
      if (this.#outcome === undefined) this.discard();
    }
  }

  /** Returns the complete body. */
  async readAll(): Promise<Buffer> {
    const deadlineMs = performance.now() + this.#options.timeoutMs;
    const chunks: Buffer[] = [];
    for (;;) {
      const chunk = this.#take();
      if (chunk !== undefined) chunks.push(chunk);
      else if (this.#isOver()) return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
      else await this.#nextChange(Math.max(0, deadlineMs - performance.now()));
    }
  }

  #take(): Buffer | undefined {
    const chunk = this.#chunks.shift();
    if (chunk === undefined) return undefined;
    this.#numQueuedBytes -= chunk.length;
    if (this.#numQueuedBytes < HIGH_WATER_BYTES) this.#resume();
    return chunk;
  }

  #isOver(): boolean {
    if (this.#outcome instanceof ApiError) throw this.#outcome;
    if (this.#isDiscarding) throw new ApiError('request_timeout', 'The response was sent before the body was read');
    return this.#outcome === 'ended';
  }

  /** NOTE: must resume. A connection that stays paused never delivers its next request. */
  #settle(outcome: 'ended' | ApiError): void {
    this.#outcome ??= outcome;
    this.#notify();
    this.#resume();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#options.resume();
  }

  /** Waits for a piece, the end or a failure. Fails the body after `timeoutMs`. */
  async #nextChange(timeoutMs: number): Promise<void> {
    await new Promise<void>((resolve) => {
      let hasChanged = false;
      const onTimeout = () => {
        if (!hasChanged) this.fail(bodyTimeout());
      };
      // After a stall of this process, timers run before the data that arrived during the stall. setImmediate lets that
      // data come first.
      const timer = setTimeout(() => setImmediate(onTimeout), timeoutMs);
      this.#wake = () => {
        hasChanged = true;
        clearTimeout(timer);
        this.#wake = undefined;
        resolve();
      };
    });
  }

  #notify(): void {
    this.#wake?.();
  }
}
