/** The error catalogue: status, type and code, and the messages of server-side errors. */
import { CapstanError, ERROR_CODES } from '../../../ts';
import { ApiError, type ApiErrorCode, ERROR_KINDS, renderError } from '../../../server/base/errors';
import { toApiError } from '../../../server/base/to-api-error';

const rows: [code: ApiErrorCode, status: number, type: string, retryAfter?: RegExp][] = [
  ['malformed_request', 400, 'invalid_request_error'],
  ['invalid_json', 400, 'invalid_request_error'],
  ['invalid_type', 400, 'invalid_request_error'],
  ['invalid_value', 400, 'invalid_request_error'],
  ['missing_required_parameter', 400, 'invalid_request_error'],
  ['unsupported_value', 400, 'invalid_request_error'],
  ['unsupported_task', 400, 'invalid_request_error'],
  ['context_length_exceeded', 400, 'invalid_request_error'],
  ['invalid_api_key', 401, 'authentication_error'],
  ['permission_denied', 403, 'permission_error'],
  ['ip_not_allowed', 403, 'permission_error'],
  ['budget_exceeded', 429, 'rate_limit_error'],
  ['model_not_found', 404, 'invalid_request_error'],
  ['unknown_url', 404, 'invalid_request_error'],
  ['method_not_allowed', 405, 'invalid_request_error'],
  ['request_timeout', 408, 'invalid_request_error'],
  ['request_too_large', 413, 'invalid_request_error'],
  ['unsupported_media_type', 415, 'invalid_request_error'],
  ['headers_too_large', 431, 'invalid_request_error'],
  ['rate_limit_exceeded', 429, 'rate_limit_error', /^\d+$/],
  ['queue_full', 429, 'rate_limit_error', /^\d+$/],
  ['internal_error', 500, 'server_error'],
  ['not_implemented', 501, 'server_error'],
  ['model_loading', 503, 'server_error', /^\d+$/],
  ['shutting_down', 503, 'server_error'],
  ['engine_dead', 503, 'server_error'],
  ['auth_unavailable', 503, 'server_error', /^\d+$/],
  ['deployment_not_found', 404, 'invalid_request_error'],
  ['response_not_found', 404, 'invalid_request_error'],
  ['completion_not_found', 404, 'invalid_request_error'],
  ['thread_not_found', 404, 'invalid_request_error'],
  ['file_not_found', 404, 'invalid_request_error'],
  ['batch_not_found', 404, 'invalid_request_error'],
  ['storage_full', 507, 'server_error'],
  ['model_load_failed', 503, 'server_error', /^\d+$/],
  ['deployment_not_ready', 503, 'server_error', /^\d+$/],
  ['deployment_paused', 503, 'server_error'],
  ['deployment_stopping', 503, 'server_error'],
  ['deployment_failed', 503, 'server_error'],
  ['upstream_unavailable', 502, 'server_error'],
  ['upstream_timeout', 504, 'server_error'],
];

test.each(rows)('%s is %d %s', (...[code, status, type, retryAfter]) => {
  const error = new ApiError(code, 'why', { param: 'field' });
  expect(error.status).toBe(status);
  expect(renderError(error)).toBe(JSON.stringify({ error: { message: 'why', type, param: 'field', code } }));
  if (retryAfter === undefined) expect(error.headers).not.toHaveProperty('Retry-After');
  else expect(error.headers['Retry-After']).toMatch(retryAfter);
});

test.each<[ApiErrorCode, string | undefined]>([
  ['not_implemented', 'false'],
  ['budget_exceeded', 'false'],
  ['queue_full', undefined],
  ['internal_error', undefined],
])('%s asks clients with X-Should-Retry: %s', (code, expected) => {
  expect(new ApiError(code, 'why').headers['X-Should-Retry']).toBe(expected);
});

test('the table above covers every code', () => {
  expect(rows.map(([code]) => code).sort()).toEqual(Object.keys(ERROR_KINDS).sort());
});

test.each(ERROR_CODES)('the library error %s becomes an error without internal paths', (code) => {
  const error = toApiError(new CapstanError(code, 'maxTokens: /secret/path at line 3', { param: 'maxTokens' }));
  if (error.status < 500)
    expect([error.param, error.message]).toEqual(['max_tokens', 'max_tokens: /secret/path at line 3']);
  else expect(renderError(error)).not.toContain('secret');
});

test.each<[param: string, wire: string]>([
  ['topP', 'top_p'],
  ['stopTokenIds[3]', 'stop_token_ids'],
  ['messages[0].toolCallId', 'messages[0].tool_call_id'],
  ['tools[1].function.parameters', 'tools[1].function.parameters'],
  ['logitBias', 'logit_bias'],
])('%s is %s on the wire', (param, wire) => {
  expect(toApiError(CapstanError.argument(param, 'x', 'y')).param).toBe(wire);
});

test('any other thrown value becomes internal_error', () => {
  for (const thrown of [new Error('/secret'), 'secret', undefined, null, { message: 'secret' }]) {
    const error = toApiError(thrown);
    expect([error.status, error.code, error.message]).toEqual([
      500,
      'internal_error',
      'The server could not finish this request',
    ]);
  }
});
