import type { CanaryState } from '../canary/canary-schema';
import { isInactive, isServing } from '../deployments/version-state';
import type { ReconcileContext } from './reconcile-context';
import {
  type CanaryRecord,
  type DeploymentRecord,
  desiredWithin,
  findVersion,
  isLive,
  type VersionRecord,
} from './records';
import { addReplica, freeOrdinal } from './replicas';

/** States of a canary whose roll-out is over. */
const DECIDED: ReadonlySet<CanaryState> = new Set(['promoted', 'rolled_back', 'cancelled']);

/** Returns the canary of the current roll-out, or undefined. */
export function canaryOf({ canary, targetId }: DeploymentRecord): CanaryRecord | undefined {
  return canary !== null && canary.versionId === targetId ? canary : undefined;
}

/** Whether the roll-out waits for a decision, and both versions serve. */
export function isHolding(deployment: DeploymentRecord): boolean {
  const target = findVersion(deployment, deployment.targetId);
  return canaryOf(deployment)?.state === 'running' && target !== undefined && isServing(target.status.state);
}

/** Ends the roll-out of a canary that must not go on. Its version stops. Returns whether it did. */
export function rollBackCanary(deployment: DeploymentRecord, { emit }: ReconcileContext): boolean {
  const canary = canaryOf(deployment);
  if (canary?.state !== 'rolling_back') return false;
  const { number } = findVersion(deployment, canary.versionId)!;
  canary.state = 'rolled_back';
  deployment.targetId = deployment.rolloutStrategy = null;
  emit({ type: 'rollout.rolled_back', data: { version: number, message: canary.reason } });
  return true;
}

/** Adds replicas to a promoted canary until it has as many as the active version. */
export function growCanary(deployment: DeploymentRecord, target: VersionRecord, context: ReconcileContext): void {
  if (!isServing(target.status.state)) return;
  const hasCapacity = () => context.pool.shortage(target.resources, 1) === undefined;
  const numKept = target.replicas.filter((replica) => isLive(replica) || replica.state === 'exited').length;
  for (let count = numKept; count < desiredWithin(deployment) && hasCapacity(); count++)
    addReplica(target, freeOrdinal(target), context);
}

/** Records how the canary ended, if its roll-out is over. */
export function settleCanary(deployment: DeploymentRecord, { emit, nowMs }: ReconcileContext): void {
  const { canary } = deployment;
  if (canary === null || DECIDED.has(canary.state)) return;
  const version = findVersion(deployment, canary.versionId);
  const number = version?.number ?? null;
  if (canary.versionId === deployment.activeId) {
    canary.state = 'promoted';
    emit({ type: 'rollout.promoted', data: { version: number } });
  } else if (canary.versionId !== deployment.targetId) {
    canary.state = 'cancelled';
  } else if (version !== undefined && isInactive(version.status.state)) {
    const reason = `the version failed: ${version.status.message ?? version.status.state}`;
    Object.assign(canary, { state: 'rolled_back', reason, decidedAt: nowMs });
    emit({ type: 'rollout.rolled_back', data: { version: number, message: reason } });
  }
}
