import { CapstanError } from './errors';

/** What waits in the engine, and how much may. */
export interface Queue {
  maxRequests: number;
  /** Infinity without a limit. */
  maxTokens: number;
  waiting: () => { numWaiting: number; queuedPromptTokens: number };
}

/** Tokens of a text are counted when it is tokenized; until then, by this. */
const CHARS_PER_TOKEN = 4;

/** A call on its way to the engine. */
export interface Place {
  /** What is known of its prompt: a text, or its tokens. */
  expect(prompt: string | Int32Array): void;
  /** It is the engine's now, or over. */
  leave(): void;
  /** Aborted when it leaves. */
  readonly signal: AbortSignal;
}

/** Bounds what waits: in the engine's queue, and before it while prompts are rendered and tokenized. */
export class WaitingRoom {
  readonly #queue: Queue;
  #numCalls = 0;
  #numTokens = 0;

  constructor(queue: Queue) {
    this.#queue = queue;
  }

  /** @throws CapstanError `queue_full` when no further call may wait. */
  check(): void {
    const { maxRequests, maxTokens } = this.#queue;
    const { numWaiting, queuedPromptTokens } = this.#queue.waiting();
    const numCalls = numWaiting + this.#numCalls;
    if (numCalls >= maxRequests) throw queueFull(numCalls, maxRequests, 'sequences');
    const numTokens = queuedPromptTokens + this.#numTokens;
    if (numTokens >= maxTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }

  enter(): Place {
    this.check();
    let numTokens = 0;
    let isHere = true;
    // Few have something to stop.
    let left: AbortController | undefined;
    this.#numCalls++;
    return {
      get signal() {
        left ??= new AbortController();
        if (!isHere) left.abort();
        return left.signal;
      },
      expect: (prompt) => {
        if (!isHere) return;
        const counted = typeof prompt === 'string' ? Math.ceil(prompt.length / CHARS_PER_TOKEN) : prompt.length;
        this.#numTokens += counted - numTokens;
        numTokens = counted;
        if (typeof prompt !== 'string') this.#checkTokens(counted);
      },
      leave: () => {
        if (!isHere) return;
        isHere = false;
        this.#numCalls--;
        this.#numTokens -= numTokens;
        left?.abort();
      },
    };
  }

  /** A prompt may be longer than the limit where nothing else waits. */
  #checkTokens(ownTokens: number): void {
    const { maxTokens, waiting } = this.#queue;
    if (maxTokens === Infinity) return;
    const numTokens = waiting().queuedPromptTokens + this.#numTokens;
    if (numTokens > maxTokens && numTokens > ownTokens) throw queueFull(numTokens, maxTokens, 'prompt tokens');
  }
}

function queueFull(numWaiting: number, max: number, noun: 'sequences' | 'prompt tokens'): CapstanError {
  return new CapstanError('queue_full', `The queue is full: ${numWaiting} of at most ${max} ${noun} wait`, {
    expected: `at most ${max} ${noun}`,
    received: String(numWaiting),
  });
}
