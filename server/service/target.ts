import type { Target } from '../gateway/targets';
import type { DeploymentView } from './control';
import { findVersion, readyReplicas } from './work';

/** What the gateway is to know; undefined when there is no such address any more. */
export function targetOf({ work, secrets }: Pick<DeploymentView, 'work' | 'secrets'>): Target | undefined {
  if (work.desired === 'deleted') return undefined;
  const active = findVersion(work, work.activeId);
  // A version that ends takes no new requests.
  const serving = active?.life.state === 'running' || active?.life.state === 'degraded' ? readyReplicas(active) : [];
  return {
    deploymentId: work.id, slug: work.slug, ownerId: work.ownerId, accessControl: work.accessControl, state: work.observed,
    replicas: serving.flatMap(({ id, address }) => (address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin: active?.isBuiltin ?? false }])),
    coldStartWaitMs: work.coldStartWaitMs, cacheScope: work.cacheScope,
  };
}
