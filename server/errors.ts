import { CapstanError, type CapstanErrorCode } from '../ts';
import { RevokedError } from './access/grants';

interface ErrorKind {
  status: number;
  type: 'invalid_request_error' | 'authentication_error' | 'permission_error' | 'rate_limit_error' | 'server_error';
  /** Seconds after which to try again. */
  retryAfterS?: number;
}

/** Every error that the server answers, by its code on the wire. */
export const ERROR_KINDS = {
  malformed_request: { status: 400, type: 'invalid_request_error' },
  invalid_json: { status: 400, type: 'invalid_request_error' },
  invalid_type: { status: 400, type: 'invalid_request_error' },
  invalid_value: { status: 400, type: 'invalid_request_error' },
  missing_required_parameter: { status: 400, type: 'invalid_request_error' },
  unsupported_value: { status: 400, type: 'invalid_request_error' },
  context_length_exceeded: { status: 400, type: 'invalid_request_error' },
  invalid_api_key: { status: 401, type: 'authentication_error' },
  permission_denied: { status: 403, type: 'permission_error' },
  ip_not_allowed: { status: 403, type: 'permission_error' },
  model_not_found: { status: 404, type: 'invalid_request_error' },
  deployment_not_found: { status: 404, type: 'invalid_request_error' },
  unknown_url: { status: 404, type: 'invalid_request_error' },
  method_not_allowed: { status: 405, type: 'invalid_request_error' },
  request_timeout: { status: 408, type: 'invalid_request_error' },
  request_too_large: { status: 413, type: 'invalid_request_error' },
  unsupported_media_type: { status: 415, type: 'invalid_request_error' },
  queue_full: { status: 429, type: 'rate_limit_error', retryAfterS: 1 },
  rate_limit_exceeded: { status: 429, type: 'rate_limit_error', retryAfterS: 1 },
  budget_exceeded: { status: 429, type: 'rate_limit_error' },
  internal_error: { status: 500, type: 'server_error' },
  not_implemented: { status: 501, type: 'server_error' },
  upstream_unavailable: { status: 502, type: 'server_error' },
  deployment_not_ready: { status: 503, type: 'server_error', retryAfterS: 5 },
  deployment_paused: { status: 503, type: 'server_error' },
  deployment_stopping: { status: 503, type: 'server_error' },
  deployment_failed: { status: 503, type: 'server_error' },
  model_loading: { status: 503, type: 'server_error', retryAfterS: 2 },
  shutting_down: { status: 503, type: 'server_error' },
  engine_dead: { status: 503, type: 'server_error' },
  auth_unavailable: { status: 503, type: 'server_error', retryAfterS: 1 },
  upstream_timeout: { status: 504, type: 'server_error' },
} as const satisfies Record<string, ErrorKind>;

export type ApiErrorCode = keyof typeof ERROR_KINDS;

/** What handlers throw; {@link renderError} alone writes it. */
export class ApiError extends Error {
  readonly code: ApiErrorCode;
  readonly param: string | null;
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    code: ApiErrorCode,
    message: string,
    options: { param?: string | null; headers?: Record<string, string>; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.code = code;
    this.param = options.param ?? null;
    const { retryAfterS }: ErrorKind = ERROR_KINDS[code];
    this.headers = { ...(retryAfterS === undefined ? {} : { 'Retry-After': String(retryAfterS) }), ...options.headers };
  }

  get status(): number {
    return ERROR_KINDS[this.code].status;
  }
}

/** The envelope, of an answer or of an event in a stream. */
export function renderError({ code, message, param }: ApiError): string {
  return JSON.stringify({ error: { message, type: ERROR_KINDS[code].type, param, code } });
}

const ENGINE_ERRORS: Readonly<Record<CapstanErrorCode, ApiErrorCode>> = {
  invalid_argument: 'invalid_value',
  context_length_exceeded: 'context_length_exceeded',
  template_error: 'unsupported_value',
  queue_full: 'queue_full',
  engine_closed: 'shutting_down',
  device_lost: 'engine_dead',
  aborted: 'internal_error',
  numeric_error: 'internal_error',
  out_of_memory: 'internal_error',
  io_error: 'internal_error',
  invalid_model: 'internal_error',
  unsupported_model: 'internal_error',
  addon_not_found: 'internal_error',
  internal_error: 'internal_error',
};

/** What a message may say: of our own faults no more than that they are ours. */
const OWN_FAULTS: Partial<Record<ApiErrorCode, string>> = {
  internal_error: 'The server could not finish this request',
  engine_dead: 'The engine no longer answers',
  shutting_down: 'The server is shutting down',
};

/** Whatever was thrown, as the wire says it; `cause` keeps the original for the log. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  // Why a call was aborted, when it was not for its client.
  if (error instanceof CapstanError && error.code === 'aborted' && error.cause instanceof ApiError) return error.cause;
  if (error instanceof CapstanError && error.code === 'aborted' && error.cause instanceof RevokedError)
    return toRevoked(error.cause);
  if (error instanceof RevokedError) return toRevoked(error);
  if (!(error instanceof CapstanError))
    return new ApiError('internal_error', OWN_FAULTS.internal_error!, { cause: error });
  const code = ENGINE_ERRORS[error.code];
  const ownFault = OWN_FAULTS[code];
  if (ownFault !== undefined) return new ApiError(code, ownFault, { cause: error });
  const name = error.param === undefined ? null : toWireName(error.param);
  const message =
    name !== null && error.message.startsWith(`${error.param}:`)
      ? name + error.message.slice(error.param!.length)
      : error.message;
  // Items of plain lists are not parameters of their own.
  const param = name === null || /^(messages|tools)\b/.test(name) ? name : name.replace(/[[.].*/, '');
  return new ApiError(code, message, { param, cause: error });
}

function toRevoked(error: RevokedError): ApiError {
  return new ApiError(error.denial.code, error.message, { headers: { ...error.denial.headers }, cause: error });
}

/** The library's spelling to the wire's: `messages[0].toolCallId` to `messages[0].tool_call_id`. */
function toWireName(param: string): string {
  return param.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
