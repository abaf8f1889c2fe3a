import { isIPv6 } from 'node:net';
import { verifySecret } from './hash';

export interface VerifierOptions {
  /** Argon2 runs at once. */
  maxRunning: number;
  /** Presentations that may wait for one; beyond it they are turned away. */
  maxWaiting: number;
  /** Wrong secrets per minute and address that are worth an argon2 run. */
  maxFailuresPerMinute: number;
  monotonicMs: () => number;
  verify?: (hash: string, secret: string) => Promise<boolean>;
}

export type Verdict = 'match' | 'mismatch' | 'busy' | 'limited';

const MINUTE_MS = 60_000;
const MAX_ADDRESSES = 10_000;
/** Wrong presentations remembered, so that a client that repeats its own costs nothing and spends nobody's share. */
const MAX_MISMATCHES = 10_000;

/** The slow half of the check: argon2id of a first presentation, one run for equal ones, few at once, and little for an address that keeps failing. */
export class Verifier {
  readonly #options: Required<VerifierOptions>;
  readonly #flights = new Map<string, Promise<boolean>>();
  readonly #mismatches = new Set<string>();
  readonly #failures = new Map<string, { tokens: number; atMs: number }>();
  readonly #waiting: (() => void)[] = [];
  #numRunning = 0;

  constructor(options: VerifierOptions) {
    this.#options = { ...options, verify: options.verify ?? verifySecret };
  }

  /** `flight` names the secret and what was presented for it: a verdict counts for that alone, and for ever. */
  async verify(flight: string, hash: string, secret: string, address: string): Promise<Verdict> {
    if (this.#mismatches.has(flight)) return 'mismatch';
    const source = addressBlock(address);
    if (!this.#mayFail(source)) return 'limited';
    let running = this.#flights.get(flight);
    if (running === undefined) {
      if (this.#numRunning >= this.#options.maxRunning && this.#waiting.length >= this.#options.maxWaiting)
        return 'busy';
      running = this.#run(hash, secret).finally(() => this.#flights.delete(flight));
      this.#flights.set(flight, running);
    }
    if (await running) return 'match';
    if (!this.#mismatches.has(flight)) {
      this.#countFailure(source);
      this.#remember(flight);
    }
    return 'mismatch';
  }

  #remember(flight: string): void {
    this.#mismatches.add(flight);
    if (this.#mismatches.size > MAX_MISMATCHES)
      this.#mismatches.delete(this.#mismatches.values().next().value as string);
  }

  async #run(hash: string, secret: string): Promise<boolean> {
    if (this.#numRunning >= this.#options.maxRunning) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#numRunning++;
    try {
      return await this.#options.verify(hash, secret);
    } finally {
      // The place goes to the next in line, or is free.
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
    // Again at the end: the first of the map is the one that failed longest ago.
    this.#failures.delete(source);
    this.#failures.set(source, { tokens: Math.max(0, tokens), atMs: this.#options.monotonicMs() });
    if (this.#failures.size > MAX_ADDRESSES) this.#failures.delete(this.#failures.keys().next().value as string);
  }

  #refilled({ tokens, atMs }: { tokens: number; atMs: number }): number {
    const { maxFailuresPerMinute, monotonicMs } = this.#options;
    return Math.min(maxFailuresPerMinute, tokens + ((monotonicMs() - atMs) * maxFailuresPerMinute) / MINUTE_MS);
  }
}

/** IPv6 by /64, which one subscriber has; an IPv4 address inside IPv6 as itself. */
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
