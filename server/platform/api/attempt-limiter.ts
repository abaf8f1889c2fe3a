import { addressBlock } from 'capstan/internal';
import { ApiProblem } from './problem';

const MINUTE_MS = 60_000;
const MAX_SOURCES = 10_000;

/** Limits attempts to guess secrets, per address (IPv6 by /64) or any other source string. */
export class AttemptLimiter {
  readonly #perMinute: number;
  readonly #now: () => number;
  readonly #sources = new Map<string, { tokens: number; atMs: number }>();

  constructor(perMinute: number, now: () => number) {
    this.#perMinute = perMinute;
    this.#now = now;
  }

  /** Throws ApiProblem `too_many_attempts` when the source has used up its attempts. */
  check(source: string, message = 'too many failed attempts from this address'): void {
    const tokens = this.#tokens(addressBlock(source));
    if (tokens < 1)
      throw new ApiProblem('too_many_attempts', message, {
        headers: { 'Retry-After': String(Math.ceil(((1 - tokens) * 60) / this.#perMinute)) },
      });
  }

  /** Counts an attempt. */
  count(source: string): void {
    const block = addressBlock(source);
    this.#set(block, Math.max(0, this.#tokens(block) - 1));
  }

  /** Reverses `count` after an attempt that succeeded. */
  forgive(source: string): void {
    const block = addressBlock(source);
    this.#set(block, Math.min(this.#perMinute, this.#tokens(block) + 1));
  }

  #set(block: string, tokens: number): void {
    // Re-insert, so that the first entry of the map is the least recent source.
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
