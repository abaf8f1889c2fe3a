import type { Target } from '../gateway/targets';
import type { ReconciledContainer } from '../control/container-control';
import type { ReconciledDeployment } from '../control/deployment-control';
import { findVersion, isLive, readyReplicas } from '../control/records';

/** Returns the gateway's routing entry for a deployment, or undefined when it is being deleted. */
export function targetOf({
  deployment,
  secrets,
}: Pick<ReconciledDeployment, 'deployment' | 'secrets'>): Target | undefined {
  if (deployment.desired === 'deleted') return undefined;
  const active = findVersion(deployment, deployment.activeId);
  // A stopping version takes no new requests.
  const serving =
    active?.status.state === 'running' || active?.status.state === 'degraded' ? readyReplicas(active) : [];
  return {
    deploymentId: deployment.id,
    slug: deployment.slug,
    name: deployment.name,
    aliases: deployment.aliases,
    fallbacks: deployment.fallbacks.deployments.map(({ id }) => id),
    fallbackAfterMs: deployment.fallbacks.firstByteMs,
    createdMs: deployment.createdMs,
    ownerId: deployment.ownerId,
    accessControl: deployment.accessControl,
    state: deployment.observed,
    replicas: serving.flatMap(({ id, address }) =>
      address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin: active?.isBuiltin ?? false }],
    ),
    coldStartWaitMs: deployment.coldStartWaitMs,
    cacheScope: deployment.cacheScope,
  };
}

/** Returns the slug of a training container. It contains a dash, so it never equals a deployment's slug. */
export function containerSlug(containerId: string): string {
  return containerId.replace('_', '-');
}

/**
 * Returns the routing entry for a running container, or undefined when it does not run. Only keys of its owner reach
 * it. Its readiness is ignored, because the service does not know what it serves.
 */
export function containerTargetOf({
  container,
  secrets,
}: Pick<ReconciledContainer, 'container' | 'secrets'>): Target | undefined {
  if (container.state !== 'preparing' && container.state !== 'running') return undefined;
  return {
    deploymentId: container.id,
    isContainer: true,
    slug: containerSlug(container.id),
    name: null,
    aliases: [],
    fallbacks: [],
    fallbackAfterMs: null,
    createdMs: 0,
    ownerId: container.ownerId,
    accessControl: true,
    state: 'running',
    replicas: container.replicas
      .filter(isLive)
      .flatMap(({ id, address }) =>
        address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin: container.isBuiltin }],
      ),
    coldStartWaitMs: 0,
    cacheScope: 'key',
  };
}
