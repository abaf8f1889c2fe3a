import { isServing } from './version-state';
import {
  type Activity,
  type ControlPolicy,
  type DeploymentWork,
  findVersion,
  isRollingOut,
  leastReplicas,
  type VersionWork,
} from './work';

/** How often load is looked at while it may ask for more replicas, or for fewer. */
const GROW_LOOK_MS = 1_000;
const SHRINK_LOOK_MS = 10_000;

/** When there may be something to do though nothing happens; null: never. */
export function dueAt(work: DeploymentWork, activity: Activity, policy: ControlPolicy, nowMs: number): number | null {
  const times = work.versions.flatMap((version) => versionTimes(version, policy));
  const active = findVersion(work, work.activeId);
  if (work.desired === 'running' && active !== undefined && isServing(active.life.state) && !isRollingOut(work))
    times.push(...loadTimes(work, active, activity, policy, nowMs));
  const target = findVersion(work, work.targetId);
  if (target !== undefined && isServing(target.life.state) && target.life.readyAt !== null)
    times.push(target.life.readyAt + target.startDeadlineMs);
  return times.length === 0 ? null : Math.min(...times);
}

function versionTimes({ life, replicas, queuedAt, startDeadlineMs }: VersionWork, policy: ControlPolicy): number[] {
  const { state, startedAt, retryAt } = life;
  if (state === 'queued') return [queuedAt + policy.queueDeadlineMs];
  if (state === 'backoff') return retryAt === null ? [] : [retryAt];
  const times = replicas.flatMap((replica) => {
    if (replica.state === 'exited' && replica.retryAt !== null) return [replica.retryAt];
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
  work: DeploymentWork,
  active: VersionWork,
  { numOpen, lastAt }: Activity,
  policy: ControlPolicy,
  nowMs: number,
): number[] {
  const times: number[] = [];
  if (work.idleTimeoutMs !== null && numOpen === 0 && active.life.state === 'running')
    times.push(Math.max(lastAt, active.life.readyAt ?? 0) + work.idleTimeoutMs);
  if (work.wanted < work.max && numOpen > work.wanted * policy.openPerReplica) times.push(nowMs + GROW_LOOK_MS);
  if (work.wanted > leastReplicas(work)) times.push(nowMs + SHRINK_LOOK_MS);
  return times;
}
