import { randomBytes } from 'node:crypto';
import { ApiError } from '../errors';
import type { HttpRequest } from './transport';

/** How long the rest of a body that nobody wants is read before its connection is closed. */
export const LINGER_MS = 2000;

/** How the body is delimited. */
export interface Framing {
  isChunked: boolean;
  /** undefined when chunked; 0 without a body. */
  contentLength: number | undefined;
}

/**
 * Parsers disagree about requests with several lengths, odd encodings or several hosts, which is how requests are smuggled past a proxy:
 * refused, and the connection has to be closed.
 */
export function checkFraming(headers: HttpRequest['headers']): Framing {
  if (headers.filter(([name]) => name === 'host').length > 1)
    throw new ApiError('malformed_request', 'Host: expected one such header');
  const lengths = headers.filter(([name]) => name === 'content-length').map(([, value]) => value);
  const encodings = headers.filter(([name]) => name === 'transfer-encoding').map(([, value]) => value);
  const isAmbiguous =
    lengths.length + encodings.length > 1 ||
    lengths.some((value) => !/^\d{1,15}$/.test(value)) ||
    encodings.some((value) => value.toLowerCase() !== 'chunked');
  if (isAmbiguous) {
    throw new ApiError(
      'malformed_request',
      'The length of the body is ambiguous: expected one Content-Length, or Transfer-Encoding: chunked',
    );
  }
  return { isChunked: encodings.length > 0, contentLength: encodings.length > 0 ? undefined : Number(lengths[0] ?? 0) };
}

export function tooLarge(maxBytes: number): ApiError {
  return new ApiError('request_too_large', `The body is too large: expected at most ${maxBytes} bytes`);
}

export function bodyTimeout(): ApiError {
  return new ApiError('request_timeout', 'The body did not arrive in time');
}

/** Of a refusal that no handler hears of. */
export function refusalHeaders(error: ApiError): Record<string, string> {
  return { 'Content-Type': 'application/json', 'X-Request-Id': randomBytes(16).toString('hex'), ...error.headers };
}
