import { isInactive, isServing } from '../deployments/version-state';
import type { ReconcileContext } from './reconcile-context';
import {
  type DeploymentRecord,
  desiredWithin,
  minAwakeReplicas,
  queueVersion,
  stopVersion,
  type VersionRecord,
} from './records';
import { canaryOf, growCanary, isHolding } from './canary-step';
import { deadline } from './deadlines';
import { addReplica, restartExited } from './replicas';
import { fail, signal } from './version-status';

/** Moves a roll-out one step on: admits the target, waits until it is ready, then makes it the active version. */
export function rollOut(
  deployment: DeploymentRecord,
  active: VersionRecord | undefined,
  target: VersionRecord,
  context: ReconcileContext,
): void {
  const canary = canaryOf(deployment);
  if (isHolding(deployment)) return restartExited(target, context);
  if (canary?.state === 'promoting') growCanary(deployment, target, context);
  if (isFullyReady(target, canary?.decidedAt ?? target.status.readyAt ?? 0, context)) {
    deployment.desiredReplicas = desiredWithin(deployment);
    deployment.activeId = target.id;
    deployment.targetId = deployment.rolloutStrategy = null;
    return;
  }
  if (isInactive(target.status.state)) {
    // The roll-out failed. Start the active version again if it was stopped for the target.
    if (active !== undefined) startActive(deployment, active, context);
    return;
  }
  if (target.status.state === 'queued') admitTarget(deployment, active, target, context);
  restartExited(target, context);
}

/** Queues a stopped active version and starts it when there is capacity, with as many replicas as it had. */
export function startActive(deployment: DeploymentRecord, active: VersionRecord, context: ReconcileContext): void {
  if (active.status.state === 'stopped') queueVersion(active, context.nowMs);
  if (active.status.state === 'queued') grant(deployment, active, desiredWithin(deployment), context);
}

/** All replicas are ready, or the start deadline passed since the first one was, or since the canary was promoted. */
function isFullyReady(
  { status, replicas, startDeadlineMs }: VersionRecord,
  sinceMs: number,
  { nowMs, observedSinceMs }: ReconcileContext,
): boolean {
  if (!isServing(status.state)) return false;
  return (
    replicas.every(({ state }) => state === 'ready') || nowMs >= deadline(sinceMs, startDeadlineMs, observedSinceMs)
  );
}

/**
 * Starts the target beside the active version (surge) when at least the minimum fits: as many replicas as run now, or
 * as many as fit. `scale` adds the others when the old version has stopped. Otherwise stops the active version first
 * (replace) if the strategy allows it. Never stops the active version for a target that would not fit in its place.
 */
function admitTarget(
  deployment: DeploymentRecord,
  active: VersionRecord | undefined,
  target: VersionRecord,
  context: ReconcileContext,
): void {
  if (target.download !== null) return;
  const isCanary = canaryOf(deployment) !== undefined;
  // Both versions serve during a canary, so the active one never stops for it.
  const strategy = isCanary ? 'surge' : (deployment.rolloutStrategy ?? deployment.strategy);
  const count = isCanary ? 1 : minAwakeReplicas(deployment);
  const shortage = context.pool.shortage(target.resources, count);
  const canSurge = shortage === undefined;
  if (active === undefined || isInactive(active.status.state) || (strategy !== 'replace' && canSurge))
    return grant(deployment, target, isCanary ? 1 : desiredWithin(deployment), context);

  const fitsInstead = context.pool.shortage(target.resources, 1, active.replicas) === undefined;
  if (strategy !== 'replace' && !(strategy === 'auto' && fitsInstead)) return keepWaiting(target, count, context);
  if (target.homeState === 'pending' || active.status.state === 'stopping') return;
  context.emit({
    type: 'rollout.replace',
    data: {
      version: target.number,
      message: canSurge
        ? 'the old version stops first: the strategy is replace'
        : `the old version stops first: not enough capacity for both: ${shortage.message}`,
    },
  });
  stopVersion(active, context.nowMs);
}

/** Starts up to `count` replicas, as many as fit. Keeps waiting if not even one fits. */
function grant(deployment: DeploymentRecord, version: VersionRecord, count: number, context: ReconcileContext): void {
  if (version.download !== null) return;
  const { nowMs, pool } = context;
  const hasCapacity = () => pool.shortage(version.resources, 1) === undefined;
  // Replicas of an earlier start hold their resources until they are gone.
  if (version.homeState === 'pending' || version.replicas.length > 0 || !hasCapacity())
    return keepWaiting(version, 1, context);
  version.status = { ...signal(version.status, 'granted', nowMs), reason: null, message: null };
  if (version.id === deployment.activeId) deployment.desiredReplicas = count;
  for (let ordinal = 0; ordinal < count && hasCapacity(); ordinal++) addReplica(version, ordinal, context);
}

/** Leaves the version queued and records what is missing. Fails it after the queue deadline. */
function keepWaiting(
  version: VersionRecord,
  count: number,
  { nowMs, observedSinceMs, policy, pool }: ReconcileContext,
): void {
  const shortage = pool.shortage(version.resources, count);
  if (nowMs < deadline(version.queuedAt, policy.queueDeadlineMs, observedSinceMs)) {
    version.status = { ...version.status, reason: shortage?.reason ?? null, message: shortage?.message ?? null };
    return;
  }
  const { reason, message } = shortage ?? { reason: 'cancelled' as const, message: 'an earlier operation did not end' };
  const failure = { reason, message: `waited ${policy.queueDeadlineMs / 1000} s: ${message}` };
  version.status = fail(version.status, 'queueExpired', failure, nowMs);
}
