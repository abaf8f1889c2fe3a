import { type CallContext, CapstanError, type Usage } from '../../../ts';
import { ApiError } from '../../base/errors';
import { DONE, errorStyleOf } from '../../base/error-styles';
import { toApiError } from '../../base/to-api-error';
import { ClientTooSlow, SseStream } from '../../http/sse';
import { header, type HttpReply, type HttpRequest } from '../../http/transport';
import { formatUsage, USAGE_COMMENT } from '../../http/replica-headers';
import type { ClientIdentity } from '../../http/routes';
import type { OpenAiContext } from './context';

/** Returns the id of the `X-Request-Id` header, else the body's `request_id`, else the random id of the context. */
export function resolveRequestId(
  context: Pick<OpenAiContext, 'requestId'>,
  request: HttpRequest,
  bodyId: string | undefined,
): string {
  const isFromHeader = header(request, 'x-request-id') === context.requestId;
  return isFromHeader ? context.requestId : (bodyId ?? context.requestId);
}

/**
 * Returns the salt of the prefix cache. A client's own salt holds no slash, so it cannot reach the partition of another
 * owner.
 */
export function cacheSaltOf({ cacheSalt: ownerSalt }: ClientIdentity, clientSalt = ''): string {
  return ownerSalt === '' ? clientSalt : `${ownerSalt}/${clientSalt}`;
}

/** Returns what a call of the engine needs of its request. @param clientSalt The `cache_salt` of the body. */
export function callContext(
  { identity, signal, priority = 0, allowance }: Pick<OpenAiContext, 'identity' | 'signal' | 'priority' | 'allowance'>,
  requestId: string,
  clientSalt: string | undefined,
): CallContext {
  return {
    signal,
    requestId,
    cacheSalt: cacheSaltOf(identity, clientSalt),
    priority,
    ...(allowance === undefined ? {} : { onPrompt: allowance.onPrompt }),
  };
}

/**
 * Converts an error of the library to an ApiError with the client's field names.
 * @param names Client names by library name.
 */
export function toClientError(error: unknown, names: Readonly<Record<string, string>>): ApiError {
  const apiError = toApiError(error);
  const { code, message, param, headers, cause } = apiError;
  if (param === null) return apiError;
  const libraryName = /^\w+/.exec(param)?.[0] ?? '';
  const clientName = Object.hasOwn(names, libraryName) ? names[libraryName] : libraryName;
  const isSchema = cause instanceof CapstanError && SCHEMA_PARAM.test(cause.param ?? '');
  if (clientName === libraryName && !isSchema) return apiError;

  // The items of the older `functions` field are not wrapped in tools.
  const clientParam = (clientName + param.slice(libraryName.length)).replace(/^(functions\[\d+\])\.function/, '$1');
  let clientMessage = message;
  if (message.startsWith(libraryName)) clientMessage = clientName + message.slice(libraryName.length);
  // Errors inside a schema, pattern or grammar name the place inside it, but not the field.
  else if (isSchema || libraryName === 'structured_output') clientMessage = `${clientParam}: ${message}`;
  const options = { param: clientParam, headers: { ...headers }, cause };
  return new ApiError(isSchema ? 'unsupported_value' : code, clientMessage, options);
}

/** Library fields that hold JSON Schemas. The library supports a subset of JSON Schema. */
const SCHEMA_PARAM = /^structuredOutput\.schema|^tools\[\d+\]\.function\.parameters/;

/** How an interface keeps a stream alive and ends it. */
export interface StreamForm {
  /** Default: an empty comment. */
  ping?: string;
  /** The text after the last event. */
  terminator: string;
  /** Returns the last events of a stream that fails, terminator included. */
  errorEvents(error: ApiError): string;
}

/**
 * Streams a response. An error after the first byte becomes an event of the stream, and the terminator still follows.
 * @param send Sends all events. Resolves with the token usage if the response reports it to the gateway.
 */
export async function streamReply(
  context: OpenAiContext,
  request: HttpRequest,
  reply: HttpReply,
  requestId: string,
  send: (sse: SseStream) => Promise<Usage | undefined>,
  form: StreamForm = OPENAI_STREAM,
): Promise<void> {
  const { ping } = form;
  const options = ping === undefined ? context.sse : { ...context.sse, ping };
  const sse = new SseStream(reply, { 'X-Request-Id': requestId }, options);
  try {
    const usage = await send(sse);
    await sse.finish(form.terminator + (usage === undefined ? '' : `${USAGE_COMMENT}${formatUsage(usage)}\n\n`));
  } catch (error) {
    if (error instanceof ClientTooSlow || request.signal.aborted) return sse.destroy();
    const apiError = toApiError(error);
    if (apiError.status === 500)
      context.log.error({ requestId, err: apiError.cause ?? apiError }, 'a stream ended with an error');
    await sse.finish(form.errorEvents(apiError)).catch(() => sse.destroy());
  }
}

const OPENAI_STREAM: StreamForm = {
  terminator: DONE,
  errorEvents: (error) => errorStyleOf('').events(error, ''),
};
