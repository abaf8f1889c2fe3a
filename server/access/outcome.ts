/** A request that may go on. */
export interface Granted {
  ok: true;
  /** `key_…`; of a fixed key `fixed`. */
  keyId: string;
  /** Salts of the prefix cache and shares of the queue go by this. */
  ownerId: string;
  /**
   * Fires when the key may no longer do what it is doing: deleted, disabled, expired, rotated away, unbound. Its reason is a `RevokedError`.
   * Absent for fixed keys, and where streams of revoked keys are to finish.
   */
  readonly signal?: AbortSignal | undefined;
  /** To be called once the request has ended, with the tokens that it used; more calls do nothing. */
  done(tokens?: number): void;
}

export type DenialCode =
  | 'invalid_api_key'
  | 'permission_denied'
  | 'ip_not_allowed'
  | 'rate_limit_exceeded'
  | 'budget_exceeded'
  | 'auth_unavailable';

/** A request that may not; says all that its answer needs and nothing of the key. */
export interface Denied {
  ok: false;
  status: 401 | 403 | 429 | 503;
  code: DenialCode;
  message: string;
  headers: Readonly<Record<string, string>>;
}

export type AccessOutcome = Granted | Denied;

/** The same for a key that is missing, ill-formed, unknown, wrong, disabled, expired or deleted. */
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

/** Null: no period follows, so trying again is of no use until the budget is raised. */
export function budgetExceeded(budget: string, retryAfterS: number | null): Denied {
  return {
    ok: false,
    status: 429,
    code: 'budget_exceeded',
    message: `The budget of this API key is used up: ${budget}`,
    headers: retryAfterS === null ? {} : { 'Retry-After': String(retryAfterS) },
  };
}
