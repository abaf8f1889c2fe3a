/** A larger deviation from the monotonic clock counts as a step. */
const DRIFT_MS = 1_000;
/** A step is accepted after this time. */
const BELIEVE_AFTER_MS = 60_000;

/**
 * Returns a wall clock that ignores short steps. While the system clock is more than a second off, it follows the
 * monotonic clock. It accepts the new time after a minute. A glitch thus neither revives an expired key nor ends a
 * valid one.
 */
export function steadyClock(wallMs: () => number, monotonicMs: () => number): () => number {
  let offsetMs = wallMs() - monotonicMs();
  let suspected: { offsetMs: number; sinceMs: number } | undefined;
  return () => {
    const elapsedMs = monotonicMs();
    const seenMs = wallMs() - elapsedMs;
    if (Math.abs(seenMs - offsetMs) <= DRIFT_MS) {
      suspected = undefined;
      offsetMs = seenMs;
    } else if (suspected === undefined || Math.abs(seenMs - suspected.offsetMs) > DRIFT_MS) {
      suspected = { offsetMs: seenMs, sinceMs: elapsedMs };
    } else if (elapsedMs - suspected.sinceMs >= BELIEVE_AFTER_MS) {
      suspected = undefined;
      offsetMs = seenMs;
    }
    return Math.floor(elapsedMs + offsetMs);
  };
}
