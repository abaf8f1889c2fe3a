interface ErrorKind {
  status: number;
  type: 'invalid_request_error' | 'authentication_error' | 'permission_error' | 'rate_limit_error' | 'server_error';
  /** Default of the `Retry-After` header, in seconds. */
  retryAfterS?: number;
  /** A retry would fail too. The response then has `X-Should-Retry: false`, which the official clients obey. */
  isFinal?: boolean;
}

/** All errors of the server, by their code on the wire. */
export const ERROR_KINDS = {
  malformed_request: { status: 400, type: 'invalid_request_error' },
  invalid_json: { status: 400, type: 'invalid_request_error' },
  invalid_type: { status: 400, type: 'invalid_request_error' },
  invalid_value: { status: 400, type: 'invalid_request_error' },
  missing_required_parameter: { status: 400, type: 'invalid_request_error' },
  unsupported_value: { status: 400, type: 'invalid_request_error' },
  unsupported_task: { status: 400, type: 'invalid_request_error' },
  context_length_exceeded: { status: 400, type: 'invalid_request_error' },
  invalid_api_key: { status: 401, type: 'authentication_error' },
  permission_denied: { status: 403, type: 'permission_error' },
  ip_not_allowed: { status: 403, type: 'permission_error' },
  model_not_found: { status: 404, type: 'invalid_request_error' },
  deployment_not_found: { status: 404, type: 'invalid_request_error' },
  file_not_found: { status: 404, type: 'invalid_request_error' },
  batch_not_found: { status: 404, type: 'invalid_request_error' },
  response_not_found: { status: 404, type: 'invalid_request_error' },
  completion_not_found: { status: 404, type: 'invalid_request_error' },
  thread_not_found: { status: 404, type: 'invalid_request_error' },
  unknown_url: { status: 404, type: 'invalid_request_error' },
  method_not_allowed: { status: 405, type: 'invalid_request_error' },
  request_timeout: { status: 408, type: 'invalid_request_error' },
  request_too_large: { status: 413, type: 'invalid_request_error' },
  unsupported_media_type: { status: 415, type: 'invalid_request_error' },
  headers_too_large: { status: 431, type: 'invalid_request_error' },
  queue_full: { status: 429, type: 'rate_limit_error', retryAfterS: 1 },
  rate_limit_exceeded: { status: 429, type: 'rate_limit_error', retryAfterS: 1 },
  budget_exceeded: { status: 429, type: 'rate_limit_error', isFinal: true },
  internal_error: { status: 500, type: 'server_error' },
  not_implemented: { status: 501, type: 'server_error', isFinal: true },
  upstream_unavailable: { status: 502, type: 'server_error' },
  deployment_not_ready: { status: 503, type: 'server_error', retryAfterS: 5 },
  deployment_paused: { status: 503, type: 'server_error' },
  deployment_stopping: { status: 503, type: 'server_error' },
  deployment_failed: { status: 503, type: 'server_error' },
  model_loading: { status: 503, type: 'server_error', retryAfterS: 2 },
  model_load_failed: { status: 503, type: 'server_error', retryAfterS: 5 },
  shutting_down: { status: 503, type: 'server_error' },
  engine_dead: { status: 503, type: 'server_error' },
  auth_unavailable: { status: 503, type: 'server_error', retryAfterS: 1 },
  upstream_timeout: { status: 504, type: 'server_error' },
  storage_full: { status: 507, type: 'server_error', isFinal: true },
} as const satisfies Record<string, ErrorKind>;

export type ApiErrorCode = keyof typeof ERROR_KINDS;

/** The error that handlers throw. Only {@link renderError} writes it to the wire. */
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
    const { retryAfterS, isFinal }: ErrorKind = ERROR_KINDS[code];
    this.headers = {
      ...(retryAfterS === undefined ? {} : { 'Retry-After': String(retryAfterS) }),
      ...(isFinal === true ? { 'X-Should-Retry': 'false' } : {}),
      ...options.headers,
    };
  }

  get status(): number {
    return ERROR_KINDS[this.code].status;
  }
}

/** Returns the JSON of an error, for a response body or an event of a stream. */
export function renderError({ code, message, param }: ApiError): string {
  return JSON.stringify({ error: { message, type: ERROR_KINDS[code].type, param, code } });
}
