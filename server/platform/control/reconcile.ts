import { deploymentState } from '../deployments/deployment-state';
import { isHolding, rollBackCanary, settleCanary } from './canary-step';
import { applyDeadlines } from './deadlines';
import type { ReconcileContext } from './reconcile-context';
import {
  type DeploymentRecord,
  findVersion,
  isRollingOut,
  minAwakeReplicas,
  stopVersion,
  type VersionRecord,
} from './records';
import { mayHaveReplicas, removeGone, restartExited } from './replicas';
import { rollOut, startActive } from './roll-out';
import { scale, scaleToZeroWhenIdle } from './scaling';
import { fail, signal } from './version-status';

const MAX_ROUNDS = 20;

/**
 * Moves a deployment towards its desired state until nothing more can be done now. Changes only `deployment`: the
 * controller makes the driver follow after the record is saved.
 */
export function reconcile(deployment: DeploymentRecord, context: ReconcileContext): void {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const before = JSON.stringify(deployment);
    reconcileOnce(deployment, context);
    deployment.observed = observedState(deployment);
    if (JSON.stringify(deployment) === before) return;
  }
  throw new Error(`deployment ${deployment.id} did not converge after ${MAX_ROUNDS} rounds`);
}

export function observedState(deployment: DeploymentRecord) {
  const active = findVersion(deployment, deployment.activeId);
  const target = findVersion(deployment, deployment.targetId);
  return deploymentState({
    desired: deployment.desired,
    isUpstream: deployment.upstream !== undefined,
    active: active === undefined ? undefined : { state: active.status.state, isWaking: active.isWaking },
    target: target === undefined ? undefined : { state: target.status.state },
    wasReady: deployment.wasReady,
  });
}

function reconcileOnce(deployment: DeploymentRecord, context: ReconcileContext): void {
  for (const version of deployment.versions) {
    followDownload(version, context.nowMs);
    applyDeadlines(version, context);
    if (!mayHaveReplicas(version)) for (const replica of version.replicas) replica.state = 'stopping';
    removeGone(version, context);
    if (version.status.state === 'stopping' && version.replicas.length === 0)
      version.status = signal(version.status, 'ended', context.nowMs);
  }
  if (deployment.desired === 'running') reconcileRunning(deployment, context);
  else stopAll(deployment, context.nowMs);
  settleCanary(deployment, context);

  const { activeId, targetId } = deployment;
  for (const version of deployment.versions)
    if (version.id !== activeId && version.id !== targetId) stopVersion(version, context.nowMs);

  const active = findVersion(deployment, activeId);
  if (active === undefined) return;
  // The load before a pause, a failure or an idle time says nothing about the next start.
  if (deployment.desired !== 'running' || active.status.state === 'error' || active.status.state === 'idle')
    deployment.desiredReplicas = minAwakeReplicas(deployment);
  restartExited(active, context);
  if (deployment.desired !== 'running') return;
  if (isRollingOut(deployment)) {
    if (isHolding(deployment)) scale(deployment, active, context);
    return;
  }
  scale(deployment, active, context);
  scaleToZeroWhenIdle(deployment, active, context);
}

/** A queued version waits for the model that it needs. The time until then does not count as time in the queue. */
function followDownload(version: VersionRecord, nowMs: number): void {
  const { status, download } = version;
  if (status.state !== 'queued') return;
  if (download === null) {
    if (status.reason !== 'downloading_model') return;
    version.status = { ...status, reason: null, message: null };
    version.queuedAt = nowMs;
  } else if (download.hasFailed) {
    const failure = { reason: 'model_download_failed', message: download.message } as const;
    version.status = fail(status, 'queueExpired', failure, nowMs);
  } else {
    version.status = { ...status, reason: 'downloading_model', message: download.message };
  }
}

function reconcileRunning(deployment: DeploymentRecord, context: ReconcileContext): void {
  if (rollBackCanary(deployment, context)) return;
  const active = findVersion(deployment, deployment.activeId);
  const target = findVersion(deployment, deployment.targetId);
  if (target !== undefined) rollOut(deployment, active, target, context);
  // A stopped active version of a running deployment was restarted or resumed.
  else if (active !== undefined) startActive(deployment, active, context);
}

/**
 * Stops all versions of a paused or deleted deployment and ends its roll-out. The next start runs the version that
 * served last, or the target if no version was ever ready.
 */
function stopAll(deployment: DeploymentRecord, nowMs: number): void {
  for (const version of deployment.versions) stopVersion(version, nowMs);
  if (deployment.targetId === null) return;
  const active = findVersion(deployment, deployment.activeId);
  if (active === undefined || !deployment.wasReady) deployment.activeId = deployment.targetId;
  deployment.targetId = deployment.rolloutStrategy = null;
}
