import type { Target } from '../gateway/targets';
import type { ContainerView } from './container-control';
import type { DeploymentView } from './control';
import { findVersion, isLive, readyReplicas } from './work';

/** What the gateway is to know; undefined when there is no such address any more. */
export function targetOf({ work, secrets }: Pick<DeploymentView, 'work' | 'secrets'>): Target | undefined {
  if (work.desired === 'deleted') return undefined;
  const active = findVersion(work, work.activeId);
  // A version that ends takes no new requests.
  const serving = active?.life.state === 'running' || active?.life.state === 'degraded' ? readyReplicas(active) : [];
  return {
    deploymentId: work.id,
    slug: work.slug,
    ownerId: work.ownerId,
    accessControl: work.accessControl,
    state: work.observed,
    replicas: serving.flatMap(({ id, address }) =>
      address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin: active?.isBuiltin ?? false }],
    ),
    coldStartWaitMs: work.coldStartWaitMs,
    cacheScope: work.cacheScope,
  };
}

/** Of a training container: a slug as no deployment has, for those have no dash. */
export function containerSlug(containerId: string): string {
  return containerId.replace('_', '-');
}

/** A container that runs has an address too, for whoever has a key of its owner: what is tried there is nobody else's. Ready or not, as nobody knows what it serves; undefined while it does not run. */
export function containerTargetOf({ work, secrets }: Pick<ContainerView, 'work' | 'secrets'>): Target | undefined {
  if (work.state !== 'preparing' && work.state !== 'running') return undefined;
  return {
    deploymentId: work.id,
    isContainer: true,
    slug: containerSlug(work.id),
    ownerId: work.ownerId,
    accessControl: true,
    state: 'running',
    replicas: work.replicas
      .filter(isLive)
      .flatMap(({ id, address }) =>
        address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin: work.isBuiltin }],
      ),
    coldStartWaitMs: 0,
    cacheScope: 'key',
  };
}
