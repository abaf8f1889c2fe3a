import { CapstanError, type Usage } from '../../ts';
import { ApiError, renderError, toApiError } from '../errors';
import { ClientTooSlow, SseStream } from '../http/sse';
import { header, type HttpReply, type HttpRequest } from '../http/transport';
import { formatUsage, USAGE_COMMENT } from '../replica-headers';
import type { CallIdentity } from '../routes';
import type { OpenAiContext } from './context';

/** The header's id goes before the body's, and that before a random one. */
export function requestIdOf(
  context: Pick<OpenAiContext, 'requestId'>,
  request: HttpRequest,
  own: string | undefined,
): string {
  return header(request, 'x-request-id') === context.requestId ? context.requestId : (own ?? context.requestId);
}

/** Owners share nothing, whatever salts their clients choose; a client's salt holds no slash. */
export function cacheSaltOf({ cacheSalt: owner }: CallIdentity, own = ''): string {
  return owner === '' ? own : `${owner}/${own}`;
}

/** An error of the library as the client would say it: `names` has the client's word for the library's. */
export function inClientsWords(error: unknown, names: Readonly<Record<string, string>>): ApiError {
  const apiError = toApiError(error);
  const { code, message, param, headers, cause } = apiError;
  if (param === null) return apiError;
  const own = /^\w+/.exec(param)?.[0] ?? '';
  const theirs = Object.hasOwn(names, own) ? names[own] : own;
  const isSchema = cause instanceof CapstanError && SCHEMA_PARAM.test(cause.param ?? '');
  if (theirs === own && !isSchema) return apiError;
  // A function of older clients is not wrapped in a tool.
  const renamed = (theirs + param.slice(own.length)).replace(/^(functions\[\d+\])\.function/, '$1');
  // What is wrong inside a schema, pattern or grammar says where in it, not in which field.
  const isInside = isSchema || own === 'structured_output';
  const text = message.startsWith(own)
    ? theirs + message.slice(own.length)
    : isInside
      ? `${renamed}: ${message}`
      : message;
  return new ApiError(isSchema ? 'unsupported_value' : code, text, { param: renamed, headers: { ...headers }, cause });
}

/** Where the library reads JSON Schemas, of which it knows a part. */
const SCHEMA_PARAM = /^structuredOutput\.schema|^tools\[\d+\]\.function\.parameters/;

/** Streams what `send` sends, and the terminator; an error after the first byte is an event of the stream. @param send Resolves with what the call has used, where that is told. */
export async function streamReply(
  context: OpenAiContext,
  request: HttpRequest,
  reply: HttpReply,
  requestId: string,
  send: (sse: SseStream) => Promise<Usage | undefined>,
): Promise<void> {
  const sse = new SseStream(reply, { 'X-Request-Id': requestId }, context.sse);
  try {
    const usage = await send(sse);
    await sse.finish(usage === undefined ? undefined : USAGE_COMMENT + formatUsage(usage));
  } catch (error) {
    if (error instanceof ClientTooSlow || request.signal.aborted) return sse.destroy();
    const apiError = toApiError(error);
    if (apiError.status === 500)
      context.log.error({ requestId, err: apiError.cause ?? apiError }, 'a stream ended with an error');
    await sse
      .send(renderError(apiError))
      .then(() => sse.finish())
      .catch(() => sse.destroy());
  }
}
