import type { Reach } from '../../base/reach';
import type { DeploymentRef } from '../owners';

/** An admitted request. */
export interface Granted {
  ok: true;
  /** `key_…`, or `fixed` for a fixed key. */
  keyId: string;
  /** Selects the prefix cache salt and the share of the queue. */
  ownerId: string;
  /**
   * Aborts with a `RevokedError` when the key loses access: deleted, disabled, expired, rotated or unbound. Absent for
   * fixed keys and with `onRevoke: 'finish'`.
   */
  readonly signal?: AbortSignal | undefined;
  /** Absent: the key may call only the granted deployment. */
  readonly reach?: Reach;
  /** Ends the request and records its tokens. The caller must call it. Only the first call counts. */
  done(tokens?: number): void;
}

/** A running request that is not sent to a deployment. */
export interface Watch {
  /** As {@link Granted.signal}. */
  readonly signal?: AbortSignal | undefined;
  /** Call it when the request ends. */
  done(): void;
}

/** A verified key. The caller finds the deployment that the request wants, then calls `admit`. */
export interface Identity {
  ok: true;
  /** `key_…`, or `fixed` for a fixed key. */
  keyId: string;
  /** Owner of the key. It can call deployments of this owner only. */
  ownerId: string;
  readonly reach: Reach;
  /** Checks access, budget and limits, and counts the request. */
  admit(target: Pick<DeploymentRef, 'id' | 'ownerId'>): AccessOutcome;
  /** Checks budget and limits before the deployment is known. The limits count the request from now on. */
  reserve(): Reservation | Denied;
  /** Watches whether the key keeps its access. Counts no request. */
  watch(): Watch;
}

/** A request that counts against the limits of its key before its deployment is known. */
export interface Reservation {
  ok: true;
  /** Checks access, and budget again. The granted request does not count twice. Call it once. */
  admit(target: Pick<DeploymentRef, 'id' | 'ownerId'>): AccessOutcome;
  /** Call it when the request ends, after `done` of the grant if there is one. */
  release(): void;
}

export type DenialCode =
  | 'invalid_api_key'
  | 'permission_denied'
  | 'ip_not_allowed'
  | 'rate_limit_exceeded'
  | 'budget_exceeded'
  | 'auth_unavailable';

/** A refused request: everything the response needs, and nothing about the key. */
export interface Denied {
  ok: false;
  status: 401 | 403 | 429 | 503;
  code: DenialCode;
  message: string;
  headers: Readonly<Record<string, string>>;
}

export type AccessOutcome = Granted | Denied;

/** The denial for a missing, malformed, unknown, wrong, disabled, expired or deleted key, so they look alike. */
export const INVALID_KEY: Denied = {
  ok: false,
  status: 401,
  code: 'invalid_api_key',
  message:
    'Missing or invalid API key: expected the header "Authorization: Bearer <API_KEY>" with a valid key and exactly one space',
  headers: { 'WWW-Authenticate': 'Bearer' },
};

export const NOT_PERMITTED: Denied = {
  ok: false,
  status: 403,
  code: 'permission_denied',
  message: 'This API key has no permission for this deployment',
  headers: {},
};

export const IP_NOT_ALLOWED: Denied = {
  ok: false,
  status: 403,
  code: 'ip_not_allowed',
  message: 'This API key may not be used from this address',
  headers: {},
};

export const UNAVAILABLE: Denied = {
  ok: false,
  status: 503,
  code: 'auth_unavailable',
  message: 'API keys cannot be checked right now',
  headers: { 'Retry-After': '1' },
};

export function rateLimited(
  retryAfterS: number,
  message: string,
  limitHeaders: Readonly<Record<string, string>> = {},
): Denied {
  return {
    ok: false,
    status: 429,
    code: 'rate_limit_exceeded',
    message,
    headers: { 'Retry-After': String(retryAfterS), ...limitHeaders },
  };
}

/** @param retryAfterS Null for a total budget: a retry fails until the budget is raised. */
export function budgetExceeded(budget: string, retryAfterS: number | null): Denied {
  return {
    ok: false,
    status: 429,
    code: 'budget_exceeded',
    message: `The budget of this API key is used up: ${budget}`,
    headers: retryAfterS === null ? {} : { 'Retry-After': String(retryAfterS) },
  };
}
