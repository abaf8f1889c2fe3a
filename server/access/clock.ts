/** What a clock may be off without having been set. */
const DRIFT_MS = 1_000;
/** A step is believed once it has lasted this long. */
const BELIEVE_AFTER_MS = 60_000;

/**
 * Wall time that no sudden step disturbs: while the system's clock stands more than a second off where it should, time goes on by the
 * monotonic clock, until the new setting has lasted a minute. A glitch thus neither revives an expired key nor ends a good one.
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
