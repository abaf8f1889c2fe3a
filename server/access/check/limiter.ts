import type { KeyLimits } from '../keys/values';

const WINDOW_MS = 60_000;

/** The limit that refused a request. */
export interface LimitReached {
  limit: keyof KeyLimits;
  allowed: number;
  retryAfterS: number;
}

/** Sliding-window counter. The previous window counts in proportion to its overlap with the last minute. */
interface Window {
  startMs: number;
  current: number;
  previous: number;
}

interface KeyUsage {
  requests: Window;
  tokens: Window;
  numOpen: number;
}

/** Limits of each key, in memory and per process: requests and tokens per sliding minute, and concurrent requests. */
export class KeyLimiter {
  readonly #usages = new Map<string, KeyUsage>();
  readonly #monotonicMs: () => number;

  constructor(monotonicMs: () => number) {
    this.#monotonicMs = monotonicMs;
  }

  get size(): number {
    return this.#usages.size;
  }

  /** Counts a request and returns the function to call at its end, or returns the limit that refuses it. */
  admit(keyId: string, { rpm, tpm, parallel }: KeyLimits): LimitReached | ((tokens: number) => void) {
    const nowMs = this.#monotonicMs();
    const usage = this.#usage(keyId, nowMs);
    if (parallel !== null && usage.numOpen >= parallel) return { limit: 'parallel', allowed: parallel, retryAfterS: 1 };
    // The token count of a request is not known yet, so admit it while any tokens are left.
    const requestsMs = rpm === null ? 0 : waitFor(usage.requests, rpm - 1, nowMs);
    const tokensMs = tpm === null ? 0 : waitFor(usage.tokens, tpm - 1, nowMs);
    if (rpm !== null && requestsMs > 0 && requestsMs >= tokensMs)
      return { limit: 'rpm', allowed: rpm, retryAfterS: seconds(requestsMs) };
    if (tpm !== null && tokensMs > 0) return { limit: 'tpm', allowed: tpm, retryAfterS: seconds(tokensMs) };
    usage.requests.current++;
    usage.numOpen++;
    return (tokens) => {
      usage.numOpen--;
      roll(usage.tokens, this.#monotonicMs());
      usage.tokens.current += tokens;
    };
  }

  /** Removes keys that were idle for two windows. */
  sweep(): void {
    const nowMs = this.#monotonicMs();
    for (const [keyId, { requests, tokens, numOpen }] of this.#usages) {
      const lastMs = Math.max(requests.startMs, tokens.startMs);
      if (numOpen === 0 && nowMs - lastMs >= 2 * WINDOW_MS) this.#usages.delete(keyId);
    }
  }

  #usage(keyId: string, nowMs: number): KeyUsage {
    let usage = this.#usages.get(keyId);
    if (usage === undefined) {
      usage = {
        requests: { startMs: nowMs, current: 0, previous: 0 },
        tokens: { startMs: nowMs, current: 0, previous: 0 },
        numOpen: 0,
      };
      this.#usages.set(keyId, usage);
    }
    roll(usage.requests, nowMs);
    roll(usage.tokens, nowMs);
    return usage;
  }
}

function seconds(ms: number): number {
  return Math.max(1, Math.ceil(ms / 1000));
}

function roll(window: Window, nowMs: number): void {
  const numWindows = Math.floor((nowMs - window.startMs) / WINDOW_MS);
  if (numWindows < 1) return;
  window.previous = numWindows === 1 ? window.current : 0;
  window.current = 0;
  window.startMs += numWindows * WINDOW_MS;
}

/**
 * Returns the milliseconds until the estimate for the last minute is at most `room`, or 0 if it is. The estimate is the
 * current count plus the previous count times its overlap, rounded down. The caller has called {@link roll}.
 */
function waitFor({ startMs, current, previous }: Window, room: number, nowMs: number): number {
  const elapsedMs = nowMs - startMs;
  if (current + Math.floor(previous * (1 - elapsedMs / WINDOW_MS)) <= room) return 0;
  if (current <= room) return fadeMs(previous, room - current) - elapsedMs;
  return WINDOW_MS - elapsedMs + fadeMs(current, room);
}

/** Returns how far into the next window the weighted `count` first rounds down to `room`. */
function fadeMs(count: number, room: number): number {
  return Math.max(0, WINDOW_MS * (1 - (room + 1) / count)) + 1;
}
