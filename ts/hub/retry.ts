import { CapstanError } from '../errors';
import type { HubSystem } from './system';
import { throwIfAborted } from './system';

const FIRST_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;
/** A server that asks for a longer pause is not waited for. */
const MAX_RETRY_AFTER_MS = 300_000;

/** A fault that may be gone at the next attempt. */
export class TransientError extends Error {
  /** How long the server asks to wait. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, options: { retryAfterMs?: number | undefined; cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.retryAfterMs = options.retryAfterMs;
  }
}

export interface RetryOptions {
  /** For the message: `cannot download config.json of Qwen/Qwen3-4B`. */
  what: string;
  /** Attempts without progress. */
  maxAttempts: number;
  signal: AbortSignal;
}

/**
 * Runs `attempt` until it succeeds, fails with another error than TransientError, or has failed `maxAttempts` times in
 * a row. `attempt` calls `onProgress` when it has received something; then the count starts again.
 */
export async function withRetries<T>(
  { what, maxAttempts, signal }: RetryOptions,
  { now, sleep }: Pick<HubSystem, 'now' | 'sleep'>,
  attempt: (onProgress: () => void) => Promise<T>,
): Promise<T> {
  for (let failures = 0; ;) {
    throwIfAborted(signal, 'download');
    try {
      return await attempt(() => (failures = 0));
    } catch (error) {
      throwIfAborted(signal, 'download');
      if (!(error instanceof TransientError)) throw error;
      failures++;
      const waitMs = error.retryAfterMs ?? Math.min(FIRST_WAIT_MS * 2 ** (failures - 1), MAX_WAIT_MS);
      if (failures >= maxAttempts || waitMs > MAX_RETRY_AFTER_MS) throw failed(what, error, now());
      await sleep(waitMs, signal).catch(() => throwIfAborted(signal, 'download'));
    }
  }
}

function failed(what: string, { message, retryAfterMs, cause }: TransientError, nowMs: number): CapstanError {
  const advice =
    retryAfterMs === undefined
      ? 'Try again later. What was downloaded is kept.'
      : `Try again after ${new Date(nowMs + retryAfterMs).toISOString()}.`;
  return new CapstanError('download_failed', `${what}: ${message}. ${advice}`, { cause });
}

/** Returns the milliseconds of a `Retry-After` header: seconds, or a date. */
export function retryAfterMs(value: string | undefined, nowMs: number): number | undefined {
  if (value === undefined) return undefined;
  const ms = /^\d{1,9}$/.test(value) ? Number(value) * 1000 : Date.parse(value) - nowMs;
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}
