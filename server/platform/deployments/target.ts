import type { Target, TargetReplica } from '../gateway/targets';
import { canaryOf } from '../control/canary-step';
import type { ReconciledContainer } from '../control/container-control';
import type { ReconciledDeployment } from '../control/deployment-control';
import { type DeploymentRecord, findVersion, isLive, readyReplicas, type VersionRecord } from '../control/records';
import { openUpstream } from '../upstreams/upstream-target';
import { isServing } from './version-state';

/** Returns the gateway's routing entry for a deployment, or undefined when it is being deleted. */
export function targetOf({
  deployment,
  secrets,
}: Pick<ReconciledDeployment, 'deployment' | 'secrets'>): Target | undefined {
  if (deployment.desired === 'deleted') return undefined;
  const active = findVersion(deployment, deployment.activeId);
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
    hasStorage: deployment.upstream !== undefined || active?.isBuiltin === true,
    state: deployment.observed,
    replicas:
      deployment.upstream === undefined
        ? replicasOf(active, secrets)
        : [openUpstream(deployment.id, deployment.upstream, secrets[deployment.id] ?? '')],
    ...canaryShare(deployment, secrets),
    coldStartWaitMs: deployment.coldStartWaitMs,
    cacheScope: deployment.cacheScope,
  };
}

/** A stopping version takes no new requests. */
function replicasOf(version: VersionRecord | undefined, secrets: ReconciledDeployment['secrets']): TargetReplica[] {
  if (version === undefined || !isServing(version.status.state)) return [];
  const { isBuiltin } = version;
  return readyReplicas(version).flatMap(({ id, address }) =>
    address === null ? [] : [{ id, address, secret: secrets[id] ?? '', isBuiltin }],
  );
}

function canaryShare(deployment: DeploymentRecord, secrets: ReconciledDeployment['secrets']): Pick<Target, 'canary'> {
  const canary = canaryOf(deployment);
  if (canary === undefined || canary.state === 'rolling_back') return {};
  const { versionId, percent, header, keyIds } = canary;
  const replicas = replicasOf(findVersion(deployment, versionId), secrets);
  if (replicas.length === 0) return {};
  const at = header?.indexOf(': ') ?? 0;
  return {
    canary: {
      versionId,
      percent,
      header: header === null ? null : { name: header.slice(0, at).toLowerCase(), value: header.slice(at + 2) },
      keyIds,
      replicas,
    },
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
