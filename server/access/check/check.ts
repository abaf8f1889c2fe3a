import { bearerKey, type RawHeaders } from './authorization';
import { type BudgetMeter, periodEndMs } from './budget';
import { callerAddress } from './caller-address';
import type { CidrList } from './cidr';
import { type Fingerprint, Fingerprinter, fingerprintText } from './fingerprint';
import { Grant, type GrantIssuer } from './grants';
import { parseKey } from '../../base/key-format';
import { covers, mayCall } from '../../base/reach';
import { counted } from '../../base/words';
import type { KeyUses } from './uses';
import type { KeyBudget } from '../keys/values';
import type { KeyLimiter, LimitReached } from './limiter';
import {
  type AccessOutcome,
  budgetExceeded,
  type Denied,
  type Identity,
  INVALID_KEY,
  IP_NOT_ALLOWED,
  NOT_PERMITTED,
  rateLimited,
  UNAVAILABLE,
} from './outcome';
import type { DeploymentRef } from '../owners';
import type { KeyEntry, KeyTable } from './table';
import type { Verdict, Verifier } from './verifier';

/** The deployment that a request wants to use, and its owner. */
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
  /** Peers whose `X-Forwarded-For` is trusted. */
  trustedProxies?: CidrList;
  /** Whether running requests are aborted when their key loses access. */
  isCutting: boolean;
  /** Wall clock, used for expiry. */
  now: () => number;
  /** Returns false once the table is too old to be trusted. */
  isFresh: () => boolean;
  /**
   * Reads the changes that other processes have committed. Returns undefined if it does not read now. Does not reject.
   */
  catchUp?: () => Promise<void> | undefined;
}

/** A key as the client sent it. */
interface Presented {
  key: string;
  publicId: string;
  fingerprint: Fingerprint;
  address: string;
}

/** Whose request it is. Without a fingerprint the key is known by its id, and its secret does not matter. */
interface Caller {
  fingerprint: Fingerprint | undefined;
  address: string;
}

/** A request with a valid key. */
interface Verified {
  entry: KeyEntry;
  presented: Presented;
}

/** A key of the command line. */
interface FixedKey {
  fixedOwnerId: string;
}

const SLOW_FAILURE_RETRY_S = 3;
/** The id of all fixed keys. */
const FIXED_KEY_ID = 'fixed';

/**
 * Checks keys by request headers. A key that this process has verified costs one hash and one look-up, without a
 * promise. The first use of a key is verified with argon2 off the event loop.
 */
export class KeyCheck implements GrantIssuer {
  readonly #parts: CheckParts;
  readonly #fingerprinter = new Fingerprinter();
  /** Owner of each fixed key by fingerprint. The fingerprint is keyed, so look-up timing reveals nothing. */
  readonly #fixed = new Map<string, string>();
  /** Running requests to abort when their key loses access. Undefined if they may finish. */
  readonly #watched: Set<Grant> | undefined;

  constructor(parts: CheckParts) {
    this.#parts = parts;
    this.#watched = parts.isCutting ? new Set() : undefined;
  }

  /** Adds a key of the command line: a user-level key of this owner that is never stored. */
  addFixed(key: string, ownerId: string): void {
    this.#fixed.set(fingerprintText(this.#fingerprinter.of(key)), ownerId);
  }

  /** Marks a secret that this process created as verified, which saves an argon2 run. */
  rememberSecret(publicId: string, version: number, secret: string): void {
    this.#parts.table.addFingerprint(publicId, version, undefined, this.#fingerprinter.of(secret));
  }

  check(request: CheckedRequest, target: CheckTarget): AccessOutcome | Promise<AccessOutcome> {
    const found = this.#find(request);
    if ('fixedOwnerId' in found) return admitFixed(found, target);
    const admit = (verified: Verified | Denied): AccessOutcome =>
      'ok' in verified ? verified : this.#admit(verified.entry, verified.presented, target, this.#parts.now());
    return found instanceof Promise ? found.then(admit) : admit(found);
  }

  /** Verifies the key of a request before it is known which deployment the request wants. Counts no request. */
  identify(request: CheckedRequest): Identity | Denied | Promise<Identity | Denied> {
    const found = this.#find(request);
    if ('fixedOwnerId' in found) return fixedIdentity(found);
    const toIdentity = (verified: Verified | Denied): Identity | Denied =>
      'ok' in verified ? verified : this.#identity(verified.entry, verified.presented);
    return found instanceof Promise ? found.then(toIdentity) : toIdentity(found);
  }

  /**
   * Checks a key by its id, for work that continues without its client, such as the lines of a batch. Budgets apply,
   * limits per minute and of concurrent requests do not.
   * @param address Where the client started the work.
   */
  resume(keyId: string, address: string, target: CheckTarget): AccessOutcome {
    if (keyId === FIXED_KEY_ID)
      return this.#fixed.size > 0 ? { ok: true, keyId, ownerId: target.ownerId, done: nothing } : INVALID_KEY;
    const { table, now, isFresh, uses } = this.#parts;
    if (!isFresh()) return UNAVAILABLE;
    const entry = table.withId(keyId);
    const nowMs = now();
    if (entry === undefined || !isUsable(entry, nowMs)) return INVALID_KEY;
    const denial = isBound(entry, target) ? this.#budgetDenial(entry, nowMs) : NOT_PERMITTED;
    if (denial !== undefined) return denial;
    uses.record(keyId, nowMs, address, 1);
    let isOpen = true;
    const done = (tokens = 0): void => {
      if (isOpen) uses.addTokens(keyId, now(), address, tokens);
      isOpen = false;
    };
    return { ok: true, keyId, ownerId: entry.ownerId, done };
  }

  /**
   * Finds a key by its id, for requests that this process sends for its owner without a client, such as the lines of a
   * batch. Budgets and limits apply as to any other request.
   * @param address Where the client started the work.
   */
  identifyById(keyId: string, address: string): Identity | Denied {
    const { table, now, isFresh } = this.#parts;
    if (!isFresh()) return UNAVAILABLE;
    const entry = table.withId(keyId);
    return entry !== undefined && isUsable(entry, now())
      ? this.#identity(entry, { fingerprint: undefined, address })
      : INVALID_KEY;
  }

  /** Aborts the running requests whose key has lost access. */
  recheck(): void {
    this.#watched?.forEach((grant) => grant.recheck());
  }

  get numWatched(): number {
    return this.#watched?.size ?? 0;
  }

  denialOf({ publicId, keyId, ownerId, fingerprint, targetId, address, reach }: Grant): Denied | undefined {
    const { table, now } = this.#parts;
    const entry = table.get(publicId);
    const nowMs = now();
    if (entry?.keyId !== keyId || !isUsable(entry, nowMs) || !hasSecret(table, entry, fingerprint, nowMs))
      return INVALID_KEY;
    if (targetId !== undefined) return refusal(entry, { id: targetId, ownerId }, address);
    return covers(entry.deployments, reach) ? networkRefusal(entry, address) : NOT_PERMITTED;
  }

  finish({ keyId, address, release }: Grant, tokens: number): void {
    release?.(tokens);
    this.#parts.uses.addTokens(keyId, this.#parts.now(), address, tokens);
  }

  #find(request: CheckedRequest): Verified | FixedKey | Denied | Promise<Verified | Denied> {
    const presented = this.#present(request);
    if (!('key' in presented)) return presented;
    const verified = this.#verify(presented);
    return verified instanceof Promise
      ? verified.then((outcome) => this.#unlessBehind(outcome, presented))
      : this.#unlessBehind(verified, presented);
  }

  /** Verifies an invalid key again after the newest changes, because another process may have just created it. */
  #unlessBehind(verified: Verified | Denied, presented: Presented): Verified | Denied | Promise<Verified | Denied> {
    const reading = verified === INVALID_KEY ? this.#parts.catchUp?.() : undefined;
    return reading === undefined ? verified : reading.then(() => this.#verify(presented));
  }

  /** Returns the denial of a request without a well-formed key. */
  #present({ headers, remoteAddress }: CheckedRequest): Presented | FixedKey | Denied {
    const key = bearerKey(headers);
    if (key === undefined) return INVALID_KEY;
    const publicId = parseKey(key);
    if (publicId === undefined && this.#fixed.size === 0) return INVALID_KEY;
    const fingerprint = this.#fingerprinter.of(key);
    if (this.#fixed.size > 0) {
      const fixedOwnerId = this.#fixed.get(fingerprintText(fingerprint));
      if (fixedOwnerId !== undefined) return { fixedOwnerId };
      if (publicId === undefined) return INVALID_KEY;
    }
    const address = callerAddress(remoteAddress, headers, this.#parts.trustedProxies);
    return { key, publicId: publicId as string, fingerprint, address };
  }

  #verify(presented: Presented): Verified | Denied | Promise<Verified | Denied> {
    const { table, now, isFresh } = this.#parts;
    if (!isFresh()) return UNAVAILABLE;
    const entry = table.get(presented.publicId);
    const nowMs = now();
    const match = table.match(entry, presented.fingerprint, nowMs);
    // Checked before argon2, so that an expired or disabled key costs nothing.
    if (entry === undefined || match === 'mismatch' || !isUsable(entry, nowMs)) return INVALID_KEY;
    return match === 'match' ? { entry, presented } : this.#verifySlowly(entry, presented);
  }

  #identity(entry: KeyEntry, presented: Caller): Identity | Denied {
    const { ownerId, publicId, keyId, networks } = entry;
    const { table, uses, now } = this.#parts;
    uses.record(keyId, now(), presented.address, 0);
    if (networks?.has(presented.address) === false) return IP_NOT_ALLOWED;
    const admit = (target: CheckTarget, reserved?: (tokens: number) => void): AccessOutcome => {
      // The key may have changed while the body arrived.
      const current = table.get(publicId);
      const nowMs = now();
      if (current === undefined || !isUsable(current, nowMs)) return INVALID_KEY;
      return hasSecret(table, current, presented.fingerprint, nowMs)
        ? this.#admit(current, presented, target, nowMs, reserved)
        : INVALID_KEY;
    };
    return {
      ok: true,
      keyId,
      ownerId,
      reach: entry.deployments,
      admit: (target) => admit(target),
      watch: () => new Grant(this, this.#watched, entry, { ...presented, targetId: undefined }),
      reserve: () => {
        const denial = this.#budgetDenial(entry, now());
        if (denial !== undefined) return denial;
        const admission = entry.limits === null ? nothing : this.#parts.limiter.admit(keyId, entry.limits);
        if (typeof admission === 'object') return limitDenial(admission);
        let isHeld = true;
        const release = (tokens = 0): void => {
          if (isHeld) admission(tokens);
          isHeld = false;
        };
        return { ok: true, admit: (target) => admit(target, release), release: () => release() };
      },
    };
  }

  /** Verifies with argon2. Reads the entry again after each wait, because the key may have changed. */
  async #verifySlowly(entry: KeyEntry, presented: Presented): Promise<Verified | Denied> {
    const { table, verifier, now, isFresh } = this.#parts;
    const { key, fingerprint, address } = presented;
    for (const { version, hash } of table.unverifiedSecrets(entry, now())) {
      if (hash === undefined) continue;
      const verdict = await verifier.verify(
        `${entry.keyId}:${version}:${fingerprintText(fingerprint)}`,
        hash,
        key,
        address,
      );
      if (verdict === 'busy' || verdict === 'limited') return verifierDenial(verdict);
      if (verdict === 'mismatch') continue;
      if (!isFresh()) return UNAVAILABLE;
      const isCurrent = table.addFingerprint(entry.publicId, version, hash, fingerprint);
      const current = isCurrent ? table.get(entry.publicId) : undefined;
      const nowMs = now();
      if (current === undefined || !isUsable(current, nowMs) || table.match(current, fingerprint, nowMs) !== 'match')
        return INVALID_KEY;
      return { entry: current, presented };
    }
    return INVALID_KEY;
  }

  /**
   * Checks access, budget and limits of a verified key, in this order. Only an admitted request counts.
   * @param reserved Releases the place within the limits that the request already has.
   */
  #admit(
    entry: KeyEntry,
    { fingerprint, address }: Caller,
    target: CheckTarget,
    nowMs: number,
    reserved?: (tokens: number) => void,
  ): AccessOutcome {
    const { uses } = this.#parts;
    const denial = refusal(entry, target, address) ?? this.#budgetDenial(entry, nowMs);
    const admission =
      reserved ??
      (denial === undefined && entry.limits !== null
        ? this.#parts.limiter.admit(entry.keyId, entry.limits)
        : undefined);
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

function hasSecret(table: KeyTable, entry: KeyEntry, fingerprint: Fingerprint | undefined, nowMs: number): boolean {
  return fingerprint === undefined || table.match(entry, fingerprint, nowMs) === 'match';
}

/** Returns why a key may not use `target` from `address`, or undefined. Does not check the secret. */
function refusal(
  { ownerId, deployments, networks }: KeyEntry,
  target: CheckTarget,
  address: string,
): Denied | undefined {
  return isBound({ ownerId, deployments }, target) ? networkRefusal({ networks }, address) : NOT_PERMITTED;
}

function networkRefusal({ networks }: Pick<KeyEntry, 'networks'>, address: string): Denied | undefined {
  return networks === null || networks.has(address) ? undefined : IP_NOT_ALLOWED;
}

/** Whether a key may use a deployment. */
function isBound({ ownerId, deployments }: Pick<KeyEntry, 'ownerId' | 'deployments'>, target: CheckTarget): boolean {
  return ownerId === target.ownerId && mayCall(deployments, target.id);
}

function admitFixed({ fixedOwnerId: ownerId }: FixedKey, target: CheckTarget): AccessOutcome {
  return ownerId === target.ownerId
    ? { ok: true, keyId: FIXED_KEY_ID, ownerId, reach: null, done: nothing }
    : NOT_PERMITTED;
}

function fixedIdentity(key: FixedKey): Identity {
  return {
    ok: true,
    keyId: FIXED_KEY_ID,
    ownerId: key.fixedOwnerId,
    reach: null,
    admit: (target) => admitFixed(key, target),
    watch: () => ({ done: nothing }),
    reserve: () => ({ ok: true, admit: (target) => admitFixed(key, target), release: nothing }),
  };
}

const LIMIT_TEXTS = {
  rpm: (allowed: number) => `${counted(allowed, 'request')} per minute`,
  tpm: (allowed: number) => `${counted(allowed, 'token')} per minute`,
  parallel: (allowed: number) => counted(allowed, 'concurrent request'),
} as const;
const LIMIT_HEADERS = { rpm: 'requests', tpm: 'tokens', parallel: undefined } as const;

function limitDenial({ limit, allowed, retryAfterS }: LimitReached): Denied {
  const header = LIMIT_HEADERS[limit];
  return rateLimited(
    retryAfterS,
    `This API key has reached its limit of ${LIMIT_TEXTS[limit](allowed)}`,
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
  return `${counted(tokens, 'token')} ${period === 'total' ? 'in total' : `per ${period}`}`;
}

function isUsable({ isEnabled, expiresAt }: KeyEntry, nowMs: number): boolean {
  return isEnabled && (expiresAt === null || expiresAt > nowMs);
}

function verifierDenial(verdict: Extract<Verdict, 'busy' | 'limited'>): Denied {
  return verdict === 'busy'
    ? UNAVAILABLE
    : rateLimited(SLOW_FAILURE_RETRY_S, 'Too many invalid API keys from this address');
}

/** Fixed keys have no limits, budget or usage to update. */
function nothing(): void {}
