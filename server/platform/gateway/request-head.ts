import { ApiError } from 'capstan/internal';

/** A request to a replica. */
export interface UpstreamRequest {
  method: string;
  /** Path and query. */
  target: string;
  /** Alternating names and values, without framing headers. */
  headers: readonly string[];
  body: Buffer | AsyncIterable<Buffer> | undefined;
}

const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const TARGET = /^\/[\x21-\x7e\x80-\xff]*$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;
const BODILESS = new Set(['GET', 'HEAD', 'OPTIONS', 'DELETE', 'TRACE']);

/** Encodes the head in latin1. Throws ApiError for bytes that HTTP forbids; the transports let some of them pass. */
export function requestHead({ method, target, headers, body }: UpstreamRequest): string {
  if (!TOKEN.test(method) || !TARGET.test(target)) throw malformed();
  let head = `${method} ${target} HTTP/1.1\r\n`;
  for (let i = 0; i < headers.length; i += 2) {
    if (!TOKEN.test(headers[i]) || !VALUE.test(headers[i + 1])) throw malformed();
    head += `${headers[i]}: ${headers[i + 1]}\r\n`;
  }
  return `${head}${framing(method, body)}Connection: keep-alive\r\n\r\n`;
}

/** NOTE: every body is framed, whatever the method. */
function framing(method: string, body: UpstreamRequest['body']): string {
  if (body === undefined) return BODILESS.has(method) ? '' : 'Content-Length: 0\r\n';
  return Buffer.isBuffer(body) ? `Content-Length: ${body.length}\r\n` : 'Transfer-Encoding: chunked\r\n';
}

function malformed(): ApiError {
  return new ApiError('malformed_request', 'The method, path or a header contains characters that HTTP does not allow');
}
