import { CapstanError } from './errors';

interface Limits {
  maxRunning: number;
  maxWaiting: number;
  /** Who waits for what, for the error. */
  noun: string;
}

/** Runs jobs, so many at once; the others wait in line, so many at most. */
export class JobLine {
  readonly #limits: Limits;
  readonly #waiting: (() => void)[] = [];
  #numRunning = 0;

  constructor(limits: Limits) {
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
