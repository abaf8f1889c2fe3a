import type { TargetReplica } from '../gateway/targets';
import type { UpstreamRecord } from './upstreams';

/** Returns the upstream of a deployment as its only replica. Each version has its own connections. */
export function openUpstream(
  deploymentId: string,
  { number, url, model, interfaces }: UpstreamRecord,
  secret: string,
): TargetReplica {
  return {
    id: `upstream ${deploymentId} ${number}`,
    address: { type: 'url', url },
    secret,
    isBuiltin: false,
    upstream: { url, model, interfaces },
  };
}
