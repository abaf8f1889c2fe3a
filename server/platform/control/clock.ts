/** Time and timers. Tests replace it with a clock that they advance. */
export interface Clock {
  now(): number;
  /** Calls `run` after `ms`. Returns a function that cancels the timer. */
  after(ms: number, run: () => void): () => void;
  sleep(ms: number): Promise<void>;
}

export const SYSTEM_CLOCK: Clock = {
  now: Date.now,
  after: (ms, run) => {
    const timer = setTimeout(run, ms).unref();
    return () => clearTimeout(timer);
  },
  sleep: (ms) =>
    new Promise((resolve) => {
      setTimeout(resolve, ms).unref();
    }),
};
