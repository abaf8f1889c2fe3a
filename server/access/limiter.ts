import type { KeyLimits } from './key-values';

const WINDOW_MS = 60_000;

/** A limit that is used up: which, how much it allows, and when it is worth trying again. */
export interface LimitReached {
  limit: keyof KeyLimits;
  allowed: number;
  retryAfterS: number;
}

/** Counts of the last two windows; the one before counts by the share of it that the last minute still covers. */
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

/** Limits of single keys, in memory and per process: requests and tokens per sliding minute, requests open at once. */
export class KeyLimiter {
  readonly #usages = new Map<string, KeyUsage>();
  readonly #monotonicMs: () => number;

  constructor(monotonicMs: () => number) {
    this.#monotonicMs = monotonicMs;
  }

  get size(): number {
    return this.#usages.size;
  }

  /** Counts a request and returns what is to be called at its end; or says which limit is used up. */
  admit(keyId: string, { rpm, tpm, parallel }: KeyLimits): LimitReached | ((tokens: number) => void) {
    const nowMs = this.#monotonicMs();
    const usage = this.#usage(keyId, nowMs);
    if (parallel !== null && usage.numOpen >= parallel) return { limit: 'parallel', allowed: parallel, retryAfterS: 1 };
    // A request of unknown length is let in while anything is left of the minute's tokens.
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

  /** Forgets keys that were idle for two windows. */
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
 * Milliseconds until the last minute's estimate is at most `room`, 0 when it is. The estimate is all of the current window and, rounded
 * down, the covered share of the one before. The window must have been rolled.
 */
function waitFor({ startMs, current, previous }: Window, room: number, nowMs: number): number {
  const elapsedMs = nowMs - startMs;
  if (current + Math.floor(previous * (1 - elapsedMs / WINDOW_MS)) <= room) return 0;
  if (current <= room) return fadeMs(previous, room - current) - elapsedMs;
  return WINDOW_MS - elapsedMs + fadeMs(current, room);
}

/** Into the next window, when what is left of `count` rounds down to `room`: just after this. */
function fadeMs(count: number, room: number): number {
  return Math.max(0, WINDOW_MS * (1 - (room + 1) / count)) + 1;
}
