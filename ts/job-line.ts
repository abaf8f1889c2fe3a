import { CapstanError } from './errors';

/** Runs jobs, so many at once; the others wait in line, so many at most. */
export class JobLine {
  readonly #limits: { maxRunning: number; maxWaiting: number };
  readonly #waiting: (() => void)[] = [];
  #numRunning = 0;

  constructor(limits: { maxRunning: number; maxWaiting: number }) {
    this.#limits = limits;
  }

  /**
   * @param signal Takes a job that has not begun out of the line.
   * @throws CapstanError `queue_full` when the line is, `aborted`, or what the job throws.
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
    const { maxRunning, maxWaiting } = this.#limits;
    if (this.#numRunning < maxRunning) {
      this.#numRunning++;
      return undefined;
    }
    const numWaiting = this.#waiting.length;
    if (numWaiting >= maxWaiting) {
      throw new CapstanError('queue_full', `The queue is full: ${numWaiting} of at most ${maxWaiting} grammars wait to be compiled`, { expected: `at most ${maxWaiting} grammars`, received: String(numWaiting) });
    }
    return new Promise((resolve, reject) => {
      const begin = () => {
        signal.removeEventListener('abort', leave);
        this.#numRunning++;
        resolve();
      };
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(begin), 1);
        reject(abortedError(signal));
      };
      this.#waiting.push(begin);
      signal.addEventListener('abort', leave, { once: true });
    });
  }
}

export function abortedError({ reason }: AbortSignal): CapstanError {
  return new CapstanError('aborted', 'The call was aborted', { cause: reason });
}
