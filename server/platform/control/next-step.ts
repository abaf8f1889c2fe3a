import { isServing } from '../deployments/version-state';
import { hasEnded, preparationEnd } from './deadlines';
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
): number | null {
  const times = deployment.versions.flatMap((version) => versionTimes(version, policy));
  const active = findVersion(deployment, deployment.activeId);
  if (
    deployment.desired === 'running' &&
    active !== undefined &&
    isServing(active.status.state) &&
    !isRollingOut(deployment)
  )
    times.push(...loadTimes(deployment, active, activity, policy, nowMs));
  const target = findVersion(deployment, deployment.targetId);
  if (target !== undefined && isServing(target.status.state) && target.status.readyAt !== null)
    times.push(target.status.readyAt + target.startDeadlineMs);
  return times.length === 0 ? null : Math.min(...times);
}

function versionTimes(version: VersionRecord, policy: ControlPolicy): number[] {
  const { status, replicas, queuedAt, startDeadlineMs } = version;
  const { state, startedAt, retryAt } = status;
  if (state === 'queued') return [queuedAt + policy.queueDeadlineMs];
  if (state === 'preparing') return [preparationEnd(version)];
  if (state === 'backoff') return retryAt !== null && hasEnded(version) ? [retryAt] : [];
  const times = replicas.flatMap((replica) => {
    if (replica.state === 'exited' && replica.isGone && replica.retryAt !== null) return [replica.retryAt];
    if (replica.state === 'unready' && replica.unreadyAt !== null)
      return [replica.unreadyAt + policy.unreadyDeadlineMs];
    return isServing(state) && (replica.state === 'starting' || replica.state === 'created')
      ? [(replica.startedAt ?? replica.createdAt) + startDeadlineMs]
      : [];
  });
  if (state === 'starting' && startedAt !== null) times.push(startedAt + startDeadlineMs);
  return times;
}

function loadTimes(
  deployment: DeploymentRecord,
  active: VersionRecord,
  { numOpen, lastAt }: Activity,
  policy: ControlPolicy,
  nowMs: number,
): number[] {
  const times: number[] = [];
  if (deployment.idleTimeoutMs !== null && numOpen === 0 && active.status.state === 'running')
    times.push(Math.max(lastAt, active.status.readyAt ?? 0) + deployment.idleTimeoutMs);
  if (
    deployment.desiredReplicas < deployment.maxReplicas &&
    numOpen > deployment.desiredReplicas * policy.openPerReplica
  )
    times.push(nowMs + SCALE_UP_CHECK_MS);
  if (deployment.desiredReplicas > minAwakeReplicas(deployment)) times.push(nowMs + SCALE_DOWN_CHECK_MS);
  return times;
}
