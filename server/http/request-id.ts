import { randomUUID } from 'node:crypto';
import { header, type HttpRequest } from './transport';

/** Returns the client's `X-Request-Id` if it is 1 to 128 visible ASCII characters, otherwise a random id. */
export function requestIdOf(request: Pick<HttpRequest, 'headers'>): string {
  const id = header(request, 'x-request-id');
  // Node draws the random bytes of many UUIDs at once.
  return id !== undefined && /^[\x21-\x7e]{1,128}$/.test(id) ? id : randomUUID().replaceAll('-', '');
}
