import { bearerKey, type RawHeaders } from './authorization';
import { type BudgetMeter, periodEndMs } from './budget';
import { callerAddress } from './caller-address';
import type { CidrList } from './cidr';
import { type Fingerprint, Fingerprinter, fingerprintText } from './fingerprint';
import { Grant, type GrantKeeper } from './grants';
import { parseKey } from './key-format';
import type { KeyUses } from './key-uses';
import type { KeyBudget } from './key-values';
import type { KeyLimiter, LimitReached } from './limiter';
import {
  type AccessOutcome,
  budgetExceeded,
  type Denied,
  INVALID_KEY,
  IP_NOT_ALLOWED,
  NOT_PERMITTED,
  rateLimited,
  UNAVAILABLE,
} from './outcome';
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
  uses: KeyUses;
  budgets: BudgetMeter;
  /** Peers whose `X-Forwarded-For` counts. */
  trustedProxies?: CidrList;
  /** Whether requests that run are ended when their key loses its right. */
  isCutting: boolean;
  /** Wall clock: expiry is read from it at every request. */
  now: () => number;
  /** False once the table is too old to be trusted. */
  isFresh: () => boolean;
}

/** A key as it was presented. */
interface Presented {
  key: string;
  fingerprint: Fingerprint;
  target: CheckTarget;
  /** Known once it matters: only first presentations, uses and address lists look at it. */
  address: string;
}

const SLOW_FAILURE_RETRY_S = 3;

/**
 * The key check, by headers alone. Once a key has been seen it is one hash and one look-up, without a promise; the first presentation in
 * a process is verified by argon2 off the event loop.
 */
export class KeyCheck implements GrantKeeper {
  readonly #parts: CheckParts;
  readonly #fingerprinter = new Fingerprinter();
  /** Owner of each fixed key by fingerprint; the fingerprint's secret makes look-ups by it safe to time. */
  readonly #fixed = new Map<string, string>();
  /** Running requests that want to hear of it when their key loses its right. */
  readonly #watched: Set<Grant> | undefined;

  constructor(parts: CheckParts) {
    this.#parts = parts;
    this.#watched = parts.isCutting ? new Set() : undefined;
  }

  /** A key of the command line: any visible ASCII, user-level, of this owner, in memory alone. */
  addFixed(key: string, ownerId: string): void {
    this.#fixed.set(fingerprintText(this.#fingerprinter.of(key)), ownerId);
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
      const ownerId = this.#fixed.get(fingerprintText(fingerprint));
      if (ownerId !== undefined)
        return ownerId === target.ownerId ? { ok: true, keyId: 'fixed', ownerId, done: nothing } : NOT_PERMITTED;
      if (publicId === undefined) return INVALID_KEY;
    }
    const { table, now, isFresh, trustedProxies } = this.#parts;
    if (!isFresh()) return UNAVAILABLE;
    const entry = table.get(publicId as string);
    const nowMs = now();
    const match = table.match(entry, fingerprint, nowMs);
    // A key that is refused whatever its secret costs no argon2.
    if (entry === undefined || match === 'mismatch' || !isUsable(entry, nowMs)) return INVALID_KEY;
    const presented = { key, fingerprint, target, address: callerAddress(remoteAddress, headers, trustedProxies) };
    return match === 'match' ? this.#admit(entry, presented, nowMs) : this.#verify(entry, presented);
  }

  /** Ends running requests whose key lost its right meanwhile. */
  recheck(): void {
    this.#watched?.forEach((grant) => grant.recheck());
  }

  get numWatched(): number {
    return this.#watched?.size ?? 0;
  }

  denialOf({ publicId, keyId, ownerId, fingerprint, targetId, address }: Grant): Denied | undefined {
    const { table, now } = this.#parts;
    const entry = table.get(publicId);
    const nowMs = now();
    if (entry?.keyId !== keyId || !isUsable(entry, nowMs) || table.match(entry, fingerprint, nowMs) !== 'match')
      return INVALID_KEY;
    return refusal(entry, { id: targetId, ownerId }, address);
  }

  finish({ keyId, address, release }: Grant, tokens: number): void {
    release?.(tokens);
    this.#parts.uses.addTokens(keyId, this.#parts.now(), address, tokens);
  }

  /** Every wait ends with a new look at the table: what changed meanwhile counts. */
  async #verify(entry: KeyEntry, presented: Presented): Promise<AccessOutcome> {
    const { table, verifier, now, isFresh } = this.#parts;
    const { key, fingerprint, address } = presented;
    for (const { version, hash } of table.unknownSecrets(entry, now())) {
      if (hash === undefined) continue;
      const verdict = await verifier.verify(
        `${entry.keyId}:${version}:${fingerprintText(fingerprint)}`,
        hash,
        key,
        address,
      );
      if (verdict === 'busy' || verdict === 'limited') return turnedAway(verdict);
      if (verdict === 'mismatch') continue;
      if (!isFresh()) return UNAVAILABLE;
      const current = table.learn(entry.publicId, version, hash, fingerprint) ? table.get(entry.publicId) : undefined;
      const nowMs = now();
      if (current === undefined || !isUsable(current, nowMs) || table.match(current, fingerprint, nowMs) !== 'match')
        return INVALID_KEY;
      return this.#admit(current, presented, nowMs);
    }
    return INVALID_KEY;
  }

  /** For a key that is proven and usable: its right, then its budget, then its limits, which count the request. */
  #admit(entry: KeyEntry, { fingerprint, target, address }: Presented, nowMs: number): AccessOutcome {
    const { uses } = this.#parts;
    const denial = refusal(entry, target, address) ?? this.#budgetDenial(entry, nowMs);
    const admission =
      denial === undefined && entry.limits !== null ? this.#parts.limiter.admit(entry.keyId, entry.limits) : undefined;
    const isLimited = typeof admission === 'object';
    uses.record(entry.keyId, nowMs, address, denial === undefined && !isLimited ? 1 : 0);
    if (denial !== undefined) return denial;
    if (isLimited) return limitDenial(admission);
    return new Grant(this, this.#watched, entry, { fingerprint, targetId: target.id, address }, admission);
  }

  #budgetDenial({ keyId, budget }: KeyEntry, nowMs: number): Denied | undefined {
    if (budget === null || !this.#parts.budgets.isExhausted(keyId, budget, nowMs)) return undefined;
    const endMs = periodEndMs(budget.period, nowMs);
    return budgetExceeded(budgetText(budget), endMs === null ? null : Math.max(1, Math.ceil((endMs - nowMs) / 1000)));
  }
}

/** What a key lacks here and from there, whatever its secret. */
function refusal(
  { ownerId, deployments, networks }: KeyEntry,
  target: CheckTarget,
  address: string,
): Denied | undefined {
  if (ownerId !== target.ownerId || (deployments !== null && !deployments.includes(target.id))) return NOT_PERMITTED;
  return networks === null || networks.has(address) ? undefined : IP_NOT_ALLOWED;
}

const LIMIT_NAMES = { rpm: 'requests per minute', tpm: 'tokens per minute', parallel: 'requests at once' } as const;
const LIMIT_HEADERS = { rpm: 'requests', tpm: 'tokens', parallel: undefined } as const;

function limitDenial({ limit, allowed, retryAfterS }: LimitReached): Denied {
  const header = LIMIT_HEADERS[limit];
  return rateLimited(
    retryAfterS,
    `This API key allows ${allowed} ${LIMIT_NAMES[limit]}, and they are used up`,
    header === undefined
      ? {}
      : {
          [`X-RateLimit-Limit-${header}`]: String(allowed),
          [`X-RateLimit-Remaining-${header}`]: '0',
          [`X-RateLimit-Reset-${header}`]: `${retryAfterS}s`,
        },
  );
}

function budgetText({ tokens, period }: KeyBudget): string {
  return period === 'total' ? `${tokens} tokens in all` : `${tokens} tokens per ${period}`;
}

function isUsable({ isEnabled, expiresAt }: KeyEntry, nowMs: number): boolean {
  return isEnabled && (expiresAt === null || expiresAt > nowMs);
}

function turnedAway(verdict: Extract<Verdict, 'busy' | 'limited'>): AccessOutcome {
  return verdict === 'busy'
    ? UNAVAILABLE
    : rateLimited(SLOW_FAILURE_RETRY_S, 'Too many wrong API keys from this address');
}

/** Of a fixed key nothing is counted. */
function nothing(): void {}
