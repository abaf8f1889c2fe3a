import { isServing } from '../deployments/version-state';
import { canaryOf, isHolding } from './canary-step';
import { deadline, hasEnded, preparationEnd, replicaEnd, startEnd } from './deadlines';
import {
  type Activity,
  type ControlPolicy,
  type DeploymentRecord,
  findVersion,
  isRollingOut,
  minAwakeReplicas,
  type VersionRecord,
} from './records';

/** How often the load is checked while it may need more replicas, or fewer. */
const SCALE_UP_CHECK_MS = 1_000;
const SCALE_DOWN_CHECK_MS = 10_000;

/** Returns when to reconcile again even if nothing happens until then. Returns null if never. */
export function nextStepAt(
  deployment: DeploymentRecord,
  activity: Activity,
  policy: ControlPolicy,
  nowMs: number,
  observedSinceMs: number,
): number | null {
  const times = deployment.versions.flatMap((version) => versionTimes(version, policy, observedSinceMs));
  const active = findVersion(deployment, deployment.activeId);
  if (
    deployment.desired === 'running' &&
    active !== undefined &&
    isServing(active.status.state) &&
    (!isRollingOut(deployment) || isHolding(deployment))
  )
    times.push(...loadTimes(deployment, active, activity, policy, nowMs));
  const target = findVersion(deployment, deployment.targetId);
  if (
    target !== undefined &&
    isServing(target.status.state) &&
    target.status.readyAt !== null &&
    !isHolding(deployment)
  )
    times.push(
      deadline(canaryOf(deployment)?.decidedAt ?? target.status.readyAt, target.startDeadlineMs, observedSinceMs),
    );
  const next = Math.min(...times);
  return next === Infinity ? null : next;
}

function versionTimes(version: VersionRecord, policy: ControlPolicy, observedSinceMs: number): number[] {
  const { status, replicas, queuedAt, startDeadlineMs } = version;
  const { state, retryAt } = status;
  // The end of a download starts a step.
  if (state === 'queued' && version.download !== null) return [];
  if (state === 'queued') return [deadline(queuedAt, policy.queueDeadlineMs, observedSinceMs)];
  if (state === 'preparing') return [preparationEnd(version, observedSinceMs)];
  if (state === 'backoff') return retryAt !== null && hasEnded(version) ? [retryAt] : [];
  const times = replicas.flatMap((replica) => {
    if (replica.state === 'exited' && replica.isGone && replica.retryAt !== null) return [replica.retryAt];
    return isServing(state) ? [replicaEnd(replica, startDeadlineMs, policy, observedSinceMs)] : [];
  });
  return [...times, startEnd(version, observedSinceMs)];
}

function loadTimes(
  deployment: DeploymentRecord,
  active: VersionRecord,
  { numOpen, lastAt }: Activity,
  policy: ControlPolicy,
  nowMs: number,
): number[] {
  const times: number[] = [];
  if (deployment.idleTimeoutMs !== null && numOpen === 0 && active.status.state === 'running' && !isHolding(deployment))
    times.push(Math.max(lastAt, active.status.readyAt ?? 0) + deployment.idleTimeoutMs);
  if (
    deployment.desiredReplicas < deployment.maxReplicas &&
    numOpen > deployment.desiredReplicas * policy.openPerReplica
  )
    times.push(nowMs + SCALE_UP_CHECK_MS);
  if (deployment.desiredReplicas > minAwakeReplicas(deployment)) times.push(nowMs + SCALE_DOWN_CHECK_MS);
  return times;
}
