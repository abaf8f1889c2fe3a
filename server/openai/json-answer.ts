import type { Usage } from '../../ts';
import type { HttpReply } from '../http/transport';
import { formatUsage, USAGE_HEADER } from '../replica-headers';

/** @param usage Where it is told beside the body. */
export function sendJson(reply: HttpReply, body: object, requestId?: string, usage?: Usage): void {
  const headers = {
    ...(requestId === undefined ? {} : { 'X-Request-Id': requestId }),
    ...(usage === undefined ? {} : { [USAGE_HEADER]: formatUsage(usage) }),
  };
  reply.send(200, { 'Content-Type': 'application/json', ...headers }, JSON.stringify(body));
}
