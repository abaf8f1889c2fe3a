import { randomBytes } from 'node:crypto';
import { ApiError } from '../base/errors';
import type { HttpRequest } from './transport';

/** Default of `TransportOptions.lingerMs`. */
export const DEFAULT_LINGER_MS = 2000;

/** How the end of the body is marked. */
export interface Framing {
  isChunked: boolean;
  /** Undefined if chunked, 0 without a body. */
  contentLength: number | undefined;
}

/**
 * Throws an ApiError for several lengths, unusual encodings or several hosts. Parsers disagree about such requests,
 * which allows request smuggling past a proxy. The caller must close the connection.
 */
export function checkFraming(headers: HttpRequest['headers']): Framing {
  if (headers.filter(([name]) => name === 'host').length > 1)
    throw new ApiError('malformed_request', 'Host: expected one header, got several');
  const lengths = headers.filter(([name]) => name === 'content-length').map(([, value]) => value);
  const encodings = headers.filter(([name]) => name === 'transfer-encoding').map(([, value]) => value);
  const isAmbiguous =
    lengths.length + encodings.length > 1 ||
    lengths.some((value) => !/^\d{1,15}$/.test(value)) ||
    encodings.some((value) => value.toLowerCase() !== 'chunked');
  if (isAmbiguous) {
    throw new ApiError(
      'malformed_request',
      'The length of the body is ambiguous: expected one Content-Length or "Transfer-Encoding: chunked"',
    );
  }
  return { isChunked: encodings.length > 0, contentLength: encodings.length > 0 ? undefined : Number(lengths[0] ?? 0) };
}

export function tooLarge(maxBytes: number): ApiError {
  return new ApiError('request_too_large', `The body is too large: expected at most ${maxBytes} bytes`);
}

/** A web framework has read the body and has not kept it. */
export function bodyTaken(): ApiError {
  return new ApiError(
    'internal_error',
    'The body was read before this handler. Mount the handler before the code that reads bodies, or keep the body in ' +
      'the property `body` of a request of node:http',
  );
}

export function bodyTimeout(): ApiError {
  return new ApiError('request_timeout', 'The body did not arrive in time');
}

export function clientDisconnected(): ApiError {
  return new ApiError('request_timeout', 'The client disconnected before the body was complete');
}

/** Returns the headers of an error that the transport itself answers, before any handler. */
export function refusalHeaders(error: ApiError): Record<string, string> {
  return { 'Content-Type': 'application/json', 'X-Request-Id': randomBytes(16).toString('hex'), ...error.headers };
}
