import { addressBlock } from '../access/verifier';
import { ApiProblem } from './problem';

const MINUTE_MS = 60_000;
const MAX_SOURCES = 10_000;

/** Bounds how often somebody may try what is guarded by a secret, per address (IPv6 by /64) or whatever else tells people apart. */
export class AttemptLimiter {
  readonly #perMinute: number;
  readonly #now: () => number;
  readonly #sources = new Map<string, { tokens: number; atMs: number }>();

  constructor(perMinute: number, now: () => number) {
    this.#perMinute = perMinute;
    this.#now = now;
  }

  /** @throws ApiProblem `too_many_attempts` when too many were counted of late. */
  demand(source: string, message = 'too many failed attempts from this address'): void {
    const tokens = this.#tokens(addressBlock(source));
    if (tokens < 1)
      throw new ApiProblem('too_many_attempts', message, {
        headers: { 'Retry-After': String(Math.ceil(((1 - tokens) * 60) / this.#perMinute)) },
      });
  }

  count(source: string): void {
    const block = addressBlock(source);
    this.#set(block, Math.max(0, this.#tokens(block) - 1));
  }

  /** Takes one back that was counted before it was known to succeed. */
  forgive(source: string): void {
    const block = addressBlock(source);
    this.#set(block, Math.min(this.#perMinute, this.#tokens(block) + 1));
  }

  #set(block: string, tokens: number): void {
    // Again at the end: the first of the map is the one that tried longest ago.
    this.#sources.delete(block);
    this.#sources.set(block, { tokens, atMs: this.#now() });
    if (this.#sources.size > MAX_SOURCES) this.#sources.delete(this.#sources.keys().next().value as string);
  }

  #tokens(block: string): number {
    const known = this.#sources.get(block);
    if (known === undefined) return this.#perMinute;
    return Math.min(
      this.#perMinute,
      known.tokens + (Math.max(0, this.#now() - known.atMs) * this.#perMinute) / MINUTE_MS,
    );
  }
}
