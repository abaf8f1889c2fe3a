import { CapstanError } from './errors';

interface Limits {
  maxRunning: number;
  maxWaiting: number;
  /** The waiting jobs in the words of the error message, such as `long texts wait to be tokenized`. */
  noun: string;
}

/** Runs at most `maxRunning` jobs at a time. At most `maxWaiting` others wait in order of arrival. */
export class JobQueue {
  readonly #limits: Limits;
  readonly #waiting: (() => void)[] = [];
  #numRunning = 0;

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  /**
   * Runs a job when its turn comes.
   * @param signal Removes the job from the queue if it has not started. Does not stop a running job.
   * @throws CapstanError `queue_full`, `aborted`, or the error of the job.
   */
  async run<T>(job: () => Promise<T>, signal: AbortSignal): Promise<T> {
    await this.#turn(signal);
    try {
      return await job();
    } finally {
      this.#numRunning--;
      this.#waiting.shift()?.();
    }
  }

  #turn(signal: AbortSignal): Promise<void> | undefined {
    const { maxRunning, maxWaiting, noun } = this.#limits;
    if (this.#numRunning < maxRunning) {
      this.#numRunning++;
      return undefined;
    }
    const numWaiting = this.#waiting.length;
    if (numWaiting >= maxWaiting) {
      throw new CapstanError('queue_full', `The queue is full: ${numWaiting} of at most ${maxWaiting} ${noun}`, {
        expected: `at most ${maxWaiting} ${noun}`,
        received: String(numWaiting),
      });
    }
    return new Promise((resolve, reject) => {
      const start = () => {
        signal.removeEventListener('abort', onAbort);
        this.#numRunning++;
        resolve();
      };
      const onAbort = () => {
        this.#waiting.splice(this.#waiting.indexOf(start), 1);
        reject(abortedError(signal));
      };
      this.#waiting.push(start);
      signal.addEventListener('abort', onAbort, { once: true });
    });
  }
}

export function abortedError({ reason }: AbortSignal): CapstanError {
  return new CapstanError('aborted', 'The call was aborted', { cause: reason });
}
