/** Time and timers. Tests replace it with a clock that they advance. */
export interface Clock {
  /** Milliseconds since 1970 when the process started, plus monotonic time. Steps of the system clock do not count. */
  now(): number;
  /** Calls `run` after `ms`. Returns a function that cancels the timer. */
  after(ms: number, run: () => void): () => void;
  sleep(ms: number): Promise<void>;
}

/** Unlike `performance.now()`, the same in all threads. */
const monotonicMs = (): number => Number(process.hrtime.bigint() / 1_000_000n);

/** Time of day minus monotonic time. Threads of one process share it, so that their loop times are equal. */
export const LOOP_OFFSET_MS = Date.now() - monotonicMs();

/** Returns the clock of the control loop: deadlines neither come early nor late when the system clock is set. */
export function loopClock(offsetMs: number): () => number {
  return () => offsetMs + monotonicMs();
}

export const SYSTEM_CLOCK: Clock = {
  now: loopClock(LOOP_OFFSET_MS),
  after: (ms, run) => {
    const timer = setTimeout(run, ms).unref();
    return () => clearTimeout(timer);
  },
  sleep: (ms) =>
    new Promise((resolve) => {
      setTimeout(resolve, ms).unref();
    }),
};
