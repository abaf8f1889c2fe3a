/** Time and timers, for what waits: tests move it by hand. */
export interface Clock {
  now(): number;
  /** Returns what cancels it. */
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
