import { createHash } from 'node:crypto';
import type { CidrList } from 'capstan/internal';
import type { Choice } from '../balancer';
import type { Call } from '../call';
import { forwardedHeaders, withSecret } from '../headers';
import type { UpstreamRequest } from '../request-head';
import type { Target } from '../targets';

export interface ForwardedFrom {
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
}

/** Returns the request for a replica of this service. */
export function replicaRequest(
  { request, requestId, trace, address, grant, priority }: Call,
  { cacheScope, deploymentId }: Target,
  { replica: { secret } }: Choice,
  body: UpstreamRequest['body'],
  { scheme, trustedProxies }: ForwardedFrom,
): UpstreamRequest {
  const salt = saltOf(cacheScope === 'key' && grant !== undefined ? grant.keyId : deploymentId);
  const options = { requestId, trace, scheme, trustedProxies, address, salt, priority };
  return {
    method: request.method,
    target: request.query === '' ? address.path : `${address.path}?${request.query}`,
    headers: withSecret(forwardedHeaders(request, options), secret),
    body,
  };
}

/** Not a secret: it separates cache scopes, and clients cannot choose it. */
function saltOf(scope: string): string {
  return createHash('sha256').update(`capstan-cache-scope\0${scope}`).digest('base64url');
}
