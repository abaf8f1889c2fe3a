import { isIPv6 } from 'node:net';
import { verifySecret } from './hash';

export interface VerifierOptions {
  /** Maximum concurrent argon2 runs. */
  maxRunning: number;
  /** Maximum verifications that wait for a run. More get `busy`. */
  maxWaiting: number;
  /** Wrong secrets per minute and address. Beyond this limit `verify` returns `limited` without an argon2 run. */
  maxFailuresPerMinute: number;
  monotonicMs: () => number;
  verify?: (hash: string, secret: string) => Promise<boolean>;
}

export type Verdict = 'match' | 'mismatch' | 'busy' | 'limited';

const MINUTE_MS = 60_000;
const MAX_ADDRESSES = 10_000;
/** Cached wrong attempts: a client that repeats one costs no argon2 run and does not use up the failure limit. */
const MAX_MISMATCHES = 10_000;

/**
 * Verifies secrets with argon2id. Equal concurrent attempts share one run, few runs are concurrent, and each address
 * may fail only so often.
 */
export class Verifier {
  readonly #options: Required<VerifierOptions>;
  readonly #runs = new Map<string, Promise<boolean>>();
  readonly #mismatches = new Set<string>();
  readonly #failures = new Map<string, { tokens: number; atMs: number }>();
  readonly #waiting: (() => void)[] = [];
  #numRunning = 0;

  constructor(options: VerifierOptions) {
    this.#options = { ...options, verify: options.verify ?? verifySecret };
  }

  /** @param attempt Identifies the stored secret and the value to verify: the verdict for it never changes. */
  async verify(attempt: string, hash: string, secret: string, address: string): Promise<Verdict> {
    if (this.#mismatches.has(attempt)) return 'mismatch';
    const source = addressBlock(address);
    if (!this.#mayFail(source)) return 'limited';
    let running = this.#runs.get(attempt);
    if (running === undefined) {
      if (this.#numRunning >= this.#options.maxRunning && this.#waiting.length >= this.#options.maxWaiting)
        return 'busy';
      running = this.#run(hash, secret).finally(() => this.#runs.delete(attempt));
      this.#runs.set(attempt, running);
    }
    if (await running) return 'match';
    if (!this.#mismatches.has(attempt)) {
      this.#countFailure(source);
      this.#remember(attempt);
    }
    return 'mismatch';
  }

  #remember(attempt: string): void {
    this.#mismatches.add(attempt);
    if (this.#mismatches.size > MAX_MISMATCHES)
      this.#mismatches.delete(this.#mismatches.values().next().value as string);
  }

  async #run(hash: string, secret: string): Promise<boolean> {
    if (this.#numRunning >= this.#options.maxRunning) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#numRunning++;
    try {
      return await this.#options.verify(hash, secret);
    } finally {
      // Hand the slot to the next waiting verification. `#numRunning` then stays the same.
      const next = this.#waiting.shift();
      if (next === undefined) this.#numRunning--;
      else next();
    }
  }

  #mayFail(source: string): boolean {
    const bucket = this.#failures.get(source);
    return bucket === undefined || this.#refilled(bucket) >= 1;
  }

  #countFailure(source: string): void {
    const bucket = this.#failures.get(source);
    const tokens = (bucket === undefined ? this.#options.maxFailuresPerMinute : this.#refilled(bucket)) - 1;
    // Insert at the end: the first entry of the map is then the oldest, which is evicted first.
    this.#failures.delete(source);
    this.#failures.set(source, { tokens: Math.max(0, tokens), atMs: this.#options.monotonicMs() });
    if (this.#failures.size > MAX_ADDRESSES) this.#failures.delete(this.#failures.keys().next().value as string);
  }

  #refilled({ tokens, atMs }: { tokens: number; atMs: number }): number {
    const { maxFailuresPerMinute, monotonicMs } = this.#options;
    return Math.min(maxFailuresPerMinute, tokens + ((monotonicMs() - atMs) * maxFailuresPerMinute) / MINUTE_MS);
  }
}

/** Returns the /64 of an IPv6 address, because one subscriber has a whole /64. IPv4-mapped addresses count as IPv4. */
export function addressBlock(address: string): string {
  const mapped = /^(?:::ffff:|(?:0{1,4}:){5}ffff:)(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  if (!isIPv6(address)) return address;
  const [head, tail] = address.split('%')[0].split('::');
  const groups = head === '' ? [] : head.split(':');
  if (tail !== undefined) {
    const rest = tail === '' ? [] : tail.split(':');
    while (groups.length + rest.length < 8) groups.push('0');
    groups.push(...rest);
  }
  return groups
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(':');
}
