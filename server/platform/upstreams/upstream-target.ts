import type { TargetReplica } from '../gateway/targets';
import type { UpstreamRecord } from './upstreams';

/** Returns the only "replica" of a deployment with an upstream. A new version is a new one, with its own connections. */
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
