import type { Usage } from '../../../ts';
import type { HttpReply } from '../../http/transport';
import { formatUsage, USAGE_HEADER } from '../../http/replica-headers';

/** Sends a response. @param usage Token usage to report to the gateway in a header. */
export function sendJson(reply: HttpReply, body: object, requestId?: string, usage?: Usage): void {
  const headers = {
    ...(requestId === undefined ? {} : { 'X-Request-Id': requestId }),
    ...(usage === undefined ? {} : { [USAGE_HEADER]: formatUsage(usage) }),
  };
  reply.send(200, { 'Content-Type': 'application/json', ...headers }, JSON.stringify(body));
}
