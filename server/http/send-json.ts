import type { HttpReply } from './transport';
import { formatUsage, type ReplicaUsage, USAGE_HEADER } from './replica-headers';

/** Sends a response. @param usage Token usage to report to the gateway in a header. */
export function sendJson(reply: HttpReply, body: object, requestId?: string, usage?: ReplicaUsage): void {
  sendJsonText(reply, JSON.stringify(body), requestId, usage);
}

/** Like {@link sendJson}, for a body that is JSON text already. */
export function sendJsonText(reply: HttpReply, text: string, requestId?: string, usage?: ReplicaUsage): void {
  const headers = {
    ...(requestId === undefined ? {} : { 'X-Request-Id': requestId }),
    ...(usage === undefined ? {} : { [USAGE_HEADER]: formatUsage(usage) }),
  };
  reply.send(200, { 'Content-Type': 'application/json', ...headers }, text);
}
