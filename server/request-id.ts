import { randomBytes } from 'node:crypto';
import { header, type HttpRequest } from './http/transport';

/** The client's own id, if it is fit for a header and a log; else a random one. */
export function requestIdOf(request: Pick<HttpRequest, 'headers'>): string {
  const given = header(request, 'x-request-id');
  return given !== undefined && /^[\x21-\x7e]{1,128}$/.test(given) ? given : randomBytes(16).toString('hex');
}
