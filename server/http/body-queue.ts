import { ApiError } from '../errors';
import { bodyTimeout, tooLarge } from './framing';

/** So much of a body lies here before its client has to wait. */
const HIGH_WATER_BYTES = 256 * 1024;

export interface BodyQueueOptions {
  maxBodyBytes: number;
  /** Between two pieces while one is waited for; for `readAll` of all of it. */
  timeoutMs: number;
  /** Stop and go on reading from the client. */
  pause: () => void;
  resume: () => void;
}

/** A body on its way from a transport to whom it is for: bounded, and read from the client no faster than it is taken. */
export class BodyQueue {
  readonly #options: BodyQueueOptions;
  #chunks: Buffer[] = [];
  #numQueued = 0;
  #numBytes = 0;
  #isPaused = false;
  #isDiscarding = false;
  #outcome: 'ended' | ApiError | undefined;
  #wake: (() => void) | undefined;

  constructor(options: BodyQueueOptions) {
    this.#options = options;
  }

  /** The piece is kept as it is. */
  push(chunk: Buffer): void {
    this.#numBytes += chunk.length;
    if (this.#outcome === undefined && this.#numBytes > this.#options.maxBodyBytes)
      this.fail(tooLarge(this.#options.maxBodyBytes));
    if (this.#isDiscarding || this.#outcome !== undefined) return;
    this.#chunks.push(chunk);
    this.#numQueued += chunk.length;
    if (this.#numQueued >= HIGH_WATER_BYTES && !this.#isPaused) {
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

  /** Nobody wants the rest: it is read and dropped. */
  discard(): void {
    this.#isDiscarding = true;
    this.#chunks = [];
    this.#numQueued = 0;
    this.#notify();
    this.#goOn();
  }

  /** The pieces as they come. Leaving the loop early drops the rest. */
  async *pieces(): AsyncGenerator<Buffer, void> {
    try {
      for (;;) {
        const chunk = this.#take();
        if (chunk !== undefined) yield chunk;
        else if (this.#isOver()) return;
        else await this.#more(this.#options.timeoutMs);
      }
    } finally {
      if (this.#outcome === undefined) this.discard();
    }
  }

  /** The whole body, in the time that a body has. */
  async readAll(): Promise<Buffer> {
    const deadlineMs = performance.now() + this.#options.timeoutMs;
    const chunks: Buffer[] = [];
    for (;;) {
      const chunk = this.#take();
      if (chunk !== undefined) chunks.push(chunk);
      else if (this.#isOver()) return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
      else await this.#more(Math.max(0, deadlineMs - performance.now()));
    }
  }

  #take(): Buffer | undefined {
    const chunk = this.#chunks.shift();
    if (chunk === undefined) return undefined;
    this.#numQueued -= chunk.length;
    if (this.#numQueued < HIGH_WATER_BYTES) this.#goOn();
    return chunk;
  }

  #isOver(): boolean {
    if (this.#outcome instanceof ApiError) throw this.#outcome;
    if (this.#isDiscarding) throw new ApiError('request_timeout', 'The request was answered before its body was read');
    return this.#outcome === 'ended';
  }

  /** NOTE: a connection left waiting would never bring its next request. */
  #settle(outcome: 'ended' | ApiError): void {
    this.#outcome ??= outcome;
    this.#notify();
    this.#goOn();
  }

  #goOn(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#options.resume();
  }

  async #more(timeoutMs: number): Promise<void> {
    await new Promise<void>((resolve) => {
      let isOver = false;
      // After a stall of this process timers fire before what has arrived meanwhile is looked at.
      const timer = setTimeout(
        () =>
          setImmediate(() => {
            if (!isOver) this.fail(bodyTimeout());
          }),
        timeoutMs,
      );
      this.#wake = () => {
        isOver = true;
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
