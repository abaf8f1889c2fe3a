import { AccessError, type AccessErrorCode, ApiError, type ApiErrorCode, DISK_FULL } from 'capstan/internal';
import { ServiceError, type ServiceErrorCode } from '../store/errors';
import { ProviderFault } from '../sign-in/provider-fault';
import type { Problem } from './objects';

interface ProblemKind {
  status: number;
  title: string;
}

/** All errors of the management API, by code. */
export const PROBLEMS = {
  malformed_request: { status: 400, title: 'The request cannot be read' },
  invalid_json: { status: 400, title: 'The body is not valid JSON' },
  invalid_request: { status: 400, title: 'The request does not match its schema' },
  unauthenticated: { status: 401, title: 'Sign in, or send a management token' },
  bad_credentials: { status: 401, title: 'The sign-in failed' },
  otp_required: { status: 401, title: 'The second factor is missing' },
  sign_in_refused: { status: 403, title: 'The sign-in was refused' },
  forbidden: { status: 403, title: 'You are not allowed to do this' },
  session_required: { status: 403, title: 'A console session is required' },
  wrong_host: { status: 421, title: 'This host name is not for the console' },
  cross_site: { status: 403, title: 'The request does not come from the console' },
  quota_exceeded: { status: 403, title: 'The quota is exceeded' },
  not_found: { status: 404, title: 'Not found' },
  method_not_allowed: { status: 405, title: 'Method not allowed' },
  request_timeout: { status: 408, title: 'The request did not arrive in time' },
  conflict: { status: 409, title: 'The request conflicts with the current state' },
  wrong_state: { status: 409, title: 'Not possible in the current state' },
  busy: { status: 409, title: 'Another change is in progress' },
  insufficient_gpu: { status: 409, title: 'There are not enough free GPUs' },
  gone: { status: 410, title: 'Already used, or expired' },
  stale: { status: 412, title: 'The object was changed by another request' },
  request_too_large: { status: 413, title: 'The body is too large' },
  unsupported_media_type: { status: 415, title: 'The body must be JSON' },
  expired_range: { status: 416, title: 'The requested lines have expired' },
  invalid_argument: { status: 422, title: 'A value is not valid here' },
  idempotency_mismatch: { status: 422, title: 'This Idempotency-Key belongs to another request' },
  precondition_required: { status: 428, title: 'If-Match is missing' },
  too_many_attempts: { status: 429, title: 'Too many attempts' },
  internal_error: { status: 500, title: 'The server could not complete the request' },
  not_implemented: { status: 501, title: 'Not implemented' },
  provider_error: { status: 502, title: 'The identity provider cannot be used' },
  hub_error: { status: 502, title: 'The model hub cannot be read' },
  upstream_unavailable: { status: 502, title: 'The deployment does not respond' },
  unavailable: { status: 503, title: 'The service is unavailable' },
  upstream_timeout: { status: 504, title: 'The deployment did not respond in time' },
  storage_full: { status: 507, title: 'The disk of the service is full' },
} as const satisfies Record<string, ProblemKind>;

export type ProblemCode = keyof typeof PROBLEMS;

/** An error in one value. `pointer`: a JSON pointer into the body, or `?name` for a query parameter. */
export type FieldError = Problem['errors'][number];

/**
 * The error that handlers throw, besides ServiceError and AccessError. Only {@link renderProblem} writes it to the
 * wire.
 */
export class ApiProblem extends Error {
  readonly code: ProblemCode;
  readonly errors: readonly FieldError[];
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    code: ProblemCode,
    message: string,
    options: { errors?: readonly FieldError[]; headers?: Record<string, string>; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.code = code;
    this.errors = options.errors ?? [];
    this.headers = options.headers ?? {};
  }

  get status(): number {
    return PROBLEMS[this.code].status;
  }
}

const ACCESS_ERRORS: Readonly<Record<AccessErrorCode, ProblemCode>> = {
  invalid_argument: 'invalid_argument',
  not_found: 'not_found',
  conflict: 'conflict',
  stale: 'stale',
  forbidden: 'forbidden',
  database_error: 'unavailable',
};

const SERVICE_ERRORS: Readonly<Record<ServiceErrorCode, ProblemCode>> = {
  invalid_argument: 'invalid_argument',
  not_found: 'not_found',
  conflict: 'conflict',
  stale: 'stale',
  forbidden: 'forbidden',
  wrong_state: 'wrong_state',
  gone: 'gone',
  bad_credentials: 'bad_credentials',
  otp_required: 'otp_required',
  sign_in_refused: 'sign_in_refused',
  too_many_attempts: 'too_many_attempts',
  quota_exceeded: 'quota_exceeded',
  busy: 'busy',
  lease_lost: 'unavailable',
};

/** Errors that the transport throws while a body is read. */
const TRANSPORT_ERRORS: Partial<Record<ApiErrorCode, ProblemCode>> = {
  malformed_request: 'malformed_request',
  request_timeout: 'request_timeout',
  request_too_large: 'request_too_large',
  shutting_down: 'unavailable',
};

/** Converts any thrown value. `cause` keeps internal errors for the log. */
export function toProblem(error: unknown): ApiProblem {
  if (error instanceof ApiProblem) return error;
  if (error instanceof ServiceError)
    return new ApiProblem(SERVICE_ERRORS[error.code], error.message, { headers: retryAfter(error) });
  if (error instanceof ProviderFault) return new ApiProblem('provider_error', error.message);
  if (error instanceof Error && DISK_FULL.test(error.message))
    return new ApiProblem('storage_full', 'The disk of the service is full. Nothing was changed', { cause: error });
  if (error instanceof AccessError) {
    const code = ACCESS_ERRORS[error.code];
    return code === 'unavailable'
      ? new ApiProblem(code, 'The database does not respond', { headers: { 'Retry-After': '1' }, cause: error })
      : new ApiProblem(code, error.message);
  }
  if (error instanceof ApiError) {
    const code = TRANSPORT_ERRORS[error.code];
    if (code !== undefined) return new ApiProblem(code, error.message);
  }
  return new ApiProblem('internal_error', 'The server could not complete the request', { cause: error });
}

function retryAfter({ message }: ServiceError): Record<string, string> {
  const [, seconds] = /try again in (\d+) s/.exec(message) ?? [];
  return seconds === undefined ? {} : { 'Retry-After': seconds };
}

/** Renders application/problem+json (RFC 9457). */
export function renderProblem({ code, message, errors, status }: ApiProblem, requestId: string): string {
  return JSON.stringify({
    type: `urn:capstan:problem:${code}`,
    title: PROBLEMS[code].title,
    status,
    detail: message,
    code,
    errors: [...errors],
    request_id: requestId,
  } satisfies Problem);
}
