import { bearerKey, type RawHeaders } from './authorization';
import { Fingerprinter } from './fingerprint';
import { parseKey } from './key-format';
import type { LastUses } from './last-use';
import type { KeyLimiter } from './limiter';
import { type AccessOutcome, INVALID_KEY, NOT_PERMITTED, rateLimited, UNAVAILABLE } from './outcome';
import type { DeploymentRef } from './owners';
import type { KeyEntry, KeyTable } from './table';
import type { Verdict, Verifier } from './verifier';

/** What is asked about: which deployment, and whose. */
export type CheckTarget = Pick<DeploymentRef, 'id' | 'ownerId'>;

export interface CheckedRequest {
  readonly headers: RawHeaders;
  readonly remoteAddress: string;
}

export interface CheckParts {
  table: KeyTable;
  verifier: Verifier;
  limiter: KeyLimiter;
  lastUses: LastUses;
  /** Wall clock: expiry is read from it at every request. */
  now: () => number;
  /** False once the table is too old to be trusted. */
  isFresh: () => boolean;
}

const SLOW_FAILURE_RETRY_S = 3;

/**
 * The key check, by headers alone. Once a key has been seen it is one hash and one look-up, without a promise; the first presentation in
 * a process is verified by argon2 off the event loop.
 */
export class KeyCheck {
  readonly #parts: CheckParts;
  readonly #fingerprinter = new Fingerprinter();
  /** Owner of each fixed key by fingerprint; the fingerprint's secret makes look-ups by it safe to time. */
  readonly #fixed = new Map<string, string>();

  constructor(parts: CheckParts) {
    this.#parts = parts;
  }

  /** A key of the command line: any visible ASCII, user-level, of this owner, in memory alone. */
  addFixed(key: string, ownerId: string): void {
    this.#fixed.set(this.#fingerprinter.of(key).toString('latin1'), ownerId);
  }

  /** A secret that was made in this process needs no argon2 here. */
  learn(publicId: string, version: number, secret: string): void {
    this.#parts.table.learn(publicId, version, undefined, this.#fingerprinter.of(secret));
  }

  check({ headers, remoteAddress }: CheckedRequest, target: CheckTarget): AccessOutcome | Promise<AccessOutcome> {
    const key = bearerKey(headers);
    if (key === undefined) return INVALID_KEY;
    const publicId = parseKey(key);
    if (publicId === undefined && this.#fixed.size === 0) return INVALID_KEY;
    const fingerprint = this.#fingerprinter.of(key);
    if (this.#fixed.size > 0) {
      const ownerId = this.#fixed.get(fingerprint.toString('latin1'));
      if (ownerId !== undefined) return ownerId === target.ownerId ? { ok: true, keyId: 'fixed', ownerId, done } : NOT_PERMITTED;
      if (publicId === undefined) return INVALID_KEY;
    }
    const { table, now, isFresh } = this.#parts;
    if (!isFresh()) return UNAVAILABLE;
    const entry = table.get(publicId as string);
    if (entry === undefined) {
      table.matchNothing(fingerprint);
      return INVALID_KEY;
    }
    const nowMs = now();
    const match = table.match(entry, fingerprint, nowMs);
    if (match === 'match') return this.#admit(entry, target, remoteAddress, nowMs);
    // A key that is refused whatever its secret costs no argon2.
    if (match === 'mismatch' || !isUsable(entry, nowMs)) return INVALID_KEY;
    return this.#verify(entry, key, fingerprint, target, remoteAddress);
  }

  /** Every wait ends with a new look at the table: what changed meanwhile counts. */
  async #verify(entry: KeyEntry, key: string, fingerprint: Buffer, target: CheckTarget, address: string): Promise<AccessOutcome> {
    const { table, verifier, now, isFresh } = this.#parts;
    for (const { version, hash } of table.unknownSecrets(entry, now())) {
      if (hash === undefined) continue;
      const verdict = await verifier.verify(`${entry.keyId}:${version}:${fingerprint.toString('latin1')}`, hash, key, address);
      if (verdict === 'busy' || verdict === 'limited') return turnedAway(verdict);
      if (verdict === 'mismatch') continue;
      if (!isFresh()) return UNAVAILABLE;
      const current = table.learn(entry.publicId, version, hash, fingerprint) ? table.get(entry.publicId) : undefined;
      const nowMs = now();
      if (current === undefined || table.match(current, fingerprint, nowMs) !== 'match') return INVALID_KEY;
      return this.#admit(current, target, address, nowMs);
    }
    return INVALID_KEY;
  }

  /** For a key that is proven: its state, then its right, then its limits. */
  #admit(entry: KeyEntry, target: CheckTarget, address: string, nowMs: number): AccessOutcome {
    if (!isUsable(entry, nowMs)) return INVALID_KEY;
    const { limiter, lastUses } = this.#parts;
    lastUses.record(entry.keyId, nowMs, address);
    if (entry.ownerId !== target.ownerId || (entry.deployments !== null && !entry.deployments.includes(target.id))) return NOT_PERMITTED;
    const { keyId, ownerId, limits } = entry;
    if (limits === null) return { ok: true, keyId, ownerId, done };
    const admission = limiter.admit(keyId, limits);
    return 'retryAfterS' in admission ? rateLimited(admission.retryAfterS) : { ok: true, keyId, ownerId, done: (tokens = 0) => admission.done(tokens) };
  }
}

function isUsable({ isEnabled, expiresAt }: KeyEntry, nowMs: number): boolean {
  return isEnabled && (expiresAt === null || expiresAt > nowMs);
}

function turnedAway(verdict: Extract<Verdict, 'busy' | 'limited'>): AccessOutcome {
  return verdict === 'busy' ? UNAVAILABLE : rateLimited(SLOW_FAILURE_RETRY_S, 'Too many wrong API keys from this address');
}

/** For keys without limits there is nothing to give back. */
function done(): void {}
