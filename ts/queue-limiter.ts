import type { NativeStats } from './addon-types';
import { DEFAULT_PRIORITY } from './call-context';
import { CapstanError } from './errors';

/** Limits of the queue, and what waits in the engine. */
export interface QueueLimits {
  /** Sequences that can run at the same time. They do not count as waiting. */
  maxRunning: number;
  maxRequests: number;
  /** Infinity: no limit. */
  maxTokens: number;
  stats: () => QueueStats;
}

/** `numBackground` and `queuedBackgroundTokens` are the parts of the other counts that are background work. */
export type QueueStats = Pick<
  NativeStats,
  'numRunning' | 'numWaiting' | 'numBackground' | 'queuedPromptTokens' | 'queuedBackgroundTokens'
>;

const CHARS_PER_TOKEN = 4;

/** For a text that is not tokenized yet. */
export function estimateTokens(text: string): number {
  return Math.ceil(text.length / CHARS_PER_TOKEN);
}

/** The place in the queue of a call that is being prepared. */
export interface Reservation {
  /** Counts the tokens of the prompt; those of a text are estimated. @throws CapstanError `queue_full`. */
  setPrompt(prompt: string | Int32Array): void;
  /** Counts the tokens of several prompts together, perhaps estimated. */
  countTokens(count: number): void;
  /** @param numSubmitted Tokens that this call has in the engine. @throws CapstanError `queue_full`. */
  checkTokens(numSubmitted: number): void;
  /** Frees the place: the engine counts the call from now on, or it has ended. */
  release(): void;
  /** Aborted by {@link Reservation.release}. */
  readonly signal: AbortSignal;
}

/** Calls that are being prepared, and their tokens. */
interface Preparing {
  numCalls: number;
  numTokens: number;
}

/**
 * Bounds the calls that wait: in the engine's queue, and before it while their prompts are rendered and tokenized.
 * Background work counts against background work only.
 */
export class QueueLimiter {
  readonly #limits: QueueLimits;
  readonly #urgent: Preparing = { numCalls: 0, numTokens: 0 };
  readonly #background: Preparing = { numCalls: 0, numTokens: 0 };

  constructor(limits: QueueLimits) {
    this.#limits = limits;
  }

  /** @throws CapstanError `queue_full` if the queue cannot take another call. */
  check(priority = DEFAULT_PRIORITY): void {
    const { maxRunning, maxRequests, maxTokens } = this.#limits;
    const { numOpen, numTokens } = this.#count(priority);
    if (numOpen >= maxRunning + maxRequests) throw queueFull(numOpen - maxRunning, maxRequests, 'sequences');
    if (numTokens >= maxTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }

  /** Returns what counts against a call. */
  #count(priority: number): { numOpen: number; numTokens: number } {
    const { numRunning, numWaiting, numBackground, queuedPromptTokens, queuedBackgroundTokens } = this.#limits.stats();
    const isBackground = priority > DEFAULT_PRIORITY;
    const { numCalls, numTokens } = this.#background;
    return {
      numOpen: numRunning + numWaiting + this.#urgent.numCalls + (isBackground ? numCalls : -numBackground),
      numTokens: queuedPromptTokens + this.#urgent.numTokens + (isBackground ? numTokens : -queuedBackgroundTokens),
    };
  }

  /** @throws CapstanError `queue_full` if the queue cannot take another call. */
  reserve(priority = DEFAULT_PRIORITY): Reservation {
    this.check(priority);
    const preparing = priority > DEFAULT_PRIORITY ? this.#background : this.#urgent;
    let numTokens = 0;
    let isReleased = false;
    // Created on demand, because most calls never use it.
    let controller: AbortController | undefined;
    preparing.numCalls++;
    const count = (tokens: number): void => {
      preparing.numTokens += tokens - numTokens;
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
        count(typeof prompt === 'string' ? estimateTokens(prompt) : prompt.length);
        if (typeof prompt !== 'string') this.#checkTokens(priority, numTokens);
      },
      countTokens: (tokens) => {
        if (!isReleased) count(tokens);
      },
      checkTokens: (numSubmitted) => {
        if (!isReleased) this.#checkTokens(priority, numTokens + numSubmitted);
      },
      release: () => {
        if (isReleased) return;
        isReleased = true;
        preparing.numCalls--;
        preparing.numTokens -= numTokens;
        controller?.abort();
      },
    };
  }

  /** A prompt may exceed the limit if nothing else waits; otherwise it could never run. */
  #checkTokens(priority: number, ownTokens: number): void {
    const { maxTokens } = this.#limits;
    if (maxTokens === Infinity) return;
    const { numTokens } = this.#count(priority);
    if (numTokens > maxTokens && numTokens > ownTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }
}

function queueFull(numWaiting: number, max: number, noun: 'sequences' | 'prompt tokens'): CapstanError {
  return new CapstanError('queue_full', `The queue is full: ${numWaiting} of at most ${max} ${noun} are waiting`, {
    expected: `at most ${max} ${noun}`,
    received: String(numWaiting),
  });
}
