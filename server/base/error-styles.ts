import { type ApiError, ERROR_KINDS, renderError } from './errors';

/** How an interface writes its errors. */
export interface ErrorStyle {
  /** Returns the JSON of an error response. */
  body(error: ApiError, requestId: string): string;
  /** Returns the last events of a stream, terminator included. */
  events(error: ApiError, requestId: string): string;
  /**
   * Returns the last events of a stream that began before the response arrived.
   * @param body The response's JSON value.
   */
  bodyEvents(body: unknown): string;
}

/** The end of a stream of OpenAI's older interfaces. */
export const DONE = 'data: [DONE]\n\n';

const OPENAI: ErrorStyle = {
  body: (error) => renderError(error),
  events: (error) => `data: ${renderError(error)}\n\n${DONE}`,
  bodyEvents: (body) => `data: ${JSON.stringify(body)}\n\n${DONE}`,
};

const RESPONSES: ErrorStyle = {
  body: (error) => renderError(error),
  events: (error) => namedEvent('error', responseErrorEvent(error)),
  bodyEvents: (body) => {
    const { error } = body as { error?: object };
    return namedEvent('error', { type: 'error', ...error, error });
  },
};

const ANTHROPIC: ErrorStyle = {
  body: anthropicBody,
  events: (error, requestId) => `event: error\ndata: ${anthropicBody(error, requestId)}\n\n`,
  bodyEvents: (body) => namedEvent('error', body as object),
};

/** The routes of Anthropic's interface alone. */
const ANTHROPIC_PATHS: ReadonlySet<string> = new Set(['/v1/messages', '/v1/messages/count_tokens']);
export const MODELS_PATH = '/v1/models';
export const CHAT_PATH = '/v1/chat/completions';
export const RESPONSES_PATH = '/v1/responses';
export const INPUT_TOKENS_PATH = `${RESPONSES_PATH}/input_tokens`;

/** @param path Without the prefix of a deployment. */
export function isAnthropicPath(path: string): boolean {
  return ANTHROPIC_PATHS.has(path);
}

/** Whether a path is that of the list of models or of one model. @param path Without the prefix of a deployment. */
export function isModelsPath(path: string): boolean {
  return path === MODELS_PATH || path.startsWith(`${MODELS_PATH}/`);
}

type Headers = readonly (readonly [name: string, value: string])[];

/**
 * Whether a request uses Anthropic's interface: it may have its key in `x-api-key`. OpenAI's interface has the same
 * paths of models, so the header `anthropic-version` decides there.
 * @param path Without the prefix of a deployment.
 */
export function isAnthropicRequest(path: string, headers: Headers): boolean {
  return isAnthropicPath(path) || (isModelsPath(path) && headers.some(([name]) => name === 'anthropic-version'));
}

/** Returns how the interface of a request writes errors. @param path Without the prefix of a deployment. */
export function errorStyleOf(path: string, headers: Headers = []): ErrorStyle {
  if (isAnthropicRequest(path, headers)) return ANTHROPIC;
  return path === RESPONSES_PATH ? RESPONSES : OPENAI;
}

/** Returns the data of the `error` event of the Responses interface. The official client raises what is in `error`. */
export function responseErrorEvent({ code, message, param }: ApiError): object {
  return { type: 'error', code, message, param, error: { message, type: ERROR_KINDS[code].type, param, code } };
}

/** Returns the text of one event with a name. */
export function namedEvent(name: string, data: object): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

function anthropicBody({ status, message, code }: ApiError, requestId: string): string {
  // The official client sends the whole conversation again after this code.
  const details = code === 'thread_not_found' ? { details: { error_code: code } } : {};
  const error = { type: anthropicType(status), message, ...details };
  return JSON.stringify({ type: 'error', error, request_id: requestId });
}

const ANTHROPIC_TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
};

/** Returns Anthropic's type of an error. */
export function anthropicType(status: number): string {
  return ANTHROPIC_TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
}
