import { CapstanError } from './errors';

/** Limits of the queue, and what waits in the engine. */
export interface QueueLimits {
  /** Sequences that can run at the same time. They do not count as waiting. */
  maxRunning: number;
  maxRequests: number;
  /** Infinity: no limit. */
  maxTokens: number;
  stats: () => { numRunning: number; numWaiting: number; queuedPromptTokens: number };
}

/** Estimate for a text that is not tokenized yet. */
const CHARS_PER_TOKEN = 4;

/** The place in the queue of a call that is being prepared. */
export interface Reservation {
  /** Counts the tokens of the prompt; those of a text are estimated. @throws CapstanError `queue_full`. */
  setPrompt(prompt: string | Int32Array): void;
  /** As `setPrompt`, for several prompts together. */
  setTokens(count: number): void;
  /** Frees the place: the call was submitted to the engine, or it has ended. */
  release(): void;
  /** Aborted by {@link Reservation.release}. */
  readonly signal: AbortSignal;
}

/** Bounds the calls that wait: in the engine's queue, and before it while their prompts are rendered and tokenized. */
export class QueueLimiter {
  readonly #limits: QueueLimits;
  #numCalls = 0;
  #numTokens = 0;

  constructor(limits: QueueLimits) {
    this.#limits = limits;
  }

  /** @throws CapstanError `queue_full` if the queue cannot take another call. */
  check(): void {
    const { maxRunning, maxRequests, maxTokens } = this.#limits;
    const { numRunning, numWaiting, queuedPromptTokens } = this.#limits.stats();
    const numOpen = numRunning + numWaiting + this.#numCalls;
    if (numOpen >= maxRunning + maxRequests) throw queueFull(numOpen - maxRunning, maxRequests, 'sequences');
    const numTokens = queuedPromptTokens + this.#numTokens;
    if (numTokens >= maxTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }

  /** @throws CapstanError `queue_full` if the queue cannot take another call. */
  reserve(): Reservation {
    this.check();
    let numTokens = 0;
    let isReleased = false;
    // Created on demand, because most calls never use it.
    let controller: AbortController | undefined;
    this.#numCalls++;
    const count = (tokens: number): void => {
      this.#numTokens += tokens - numTokens;
      numTokens = tokens;
    };
    return {
      get signal() {
        controller ??= new AbortController();
        if (isReleased) controller.abort();
        return controller.signal;
      },
      setPrompt: (prompt) => {
        if (isReleased) return;
        count(typeof prompt === 'string' ? Math.ceil(prompt.length / CHARS_PER_TOKEN) : prompt.length);
        if (typeof prompt !== 'string') this.#checkTokens(numTokens);
      },
      setTokens: (tokens) => {
        if (isReleased) return;
        count(tokens);
        this.#checkTokens(tokens);
      },
      release: () => {
        if (isReleased) return;
        isReleased = true;
        this.#numCalls--;
        this.#numTokens -= numTokens;
        controller?.abort();
      },
    };
  }

  /** A prompt may exceed the limit if nothing else waits; otherwise it could never run. */
  #checkTokens(ownTokens: number): void {
    const { maxTokens, stats } = this.#limits;
    if (maxTokens === Infinity) return;
    const numTokens = stats().queuedPromptTokens + this.#numTokens;
    if (numTokens > maxTokens && numTokens > ownTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }
}

function queueFull(numWaiting: number, max: number, noun: 'sequences' | 'prompt tokens'): CapstanError {
  return new CapstanError('queue_full', `The queue is full: ${numWaiting} of at most ${max} ${noun} are waiting`, {
    expected: `at most ${max} ${noun}`,
    received: String(numWaiting),
  });
}
