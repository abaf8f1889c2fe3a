import { isServing } from '../deployments/version-state';
import { endReplica } from './observe';
import type { ReconcileContext } from './reconcile-context';
import type { ControlPolicy, ReplicaRecord, VersionRecord } from './records';
import { type Exit, fail, signal } from './version-status';

/**
 * Returns the end of a limit on something that began at `beganMs`. The time before `observedSinceMs` does not count: a
 * replica may have become ready while no service ran.
 */
export function deadline(beganMs: number, limitMs: number, observedSinceMs: number): number {
  return Math.max(beganMs, observedSinceMs) + limitMs;
}

/** Fails a preparation or start that took too long, ends a backoff, and ends replicas that were unready for long. */
export function applyDeadlines(version: VersionRecord, context: ReconcileContext): void {
  const { nowMs, observedSinceMs, policy } = context;
  if (version.status.state === 'preparing' && nowMs >= preparationEnd(version, observedSinceMs))
    version.status = fail(version.status, 'prepareFailed', preparationTimeout(version), nowMs);
  if (nowMs >= startEnd(version, observedSinceMs)) {
    const misplaced = version.replicas.find((replica) => replica.misplaced !== null)?.misplaced;
    version.status = fail(version.status, 'startExpired', misplaced ?? startTimeout(version), nowMs);
  }
  const { state, retryAt } = version.status;
  if (state === 'backoff' && retryAt !== null && nowMs >= retryAt && hasEnded(version)) {
    version.status = signal(version.status, 'retry', nowMs);
    for (const replica of version.replicas) replica.retryAt = nowMs;
  }
  if (!isServing(version.status.state)) return;
  for (const replica of version.replicas) {
    const exit = overdueExit(version, replica, context);
    if (exit !== undefined) endReplica(version, replica, exit, nowMs, policy);
  }
}

/** Returns whether no process of the exited replicas is left, so that their GPUs are free. */
export function hasEnded({ replicas }: VersionRecord): boolean {
  return replicas.every(({ state, isGone }) => state !== 'exited' || isGone);
}

/** Returns when a version that is preparing fails. */
export function preparationEnd({ replicas, startDeadlineMs }: VersionRecord, observedSinceMs: number): number {
  return deadline(Math.min(...replicas.map(({ createdAt }) => createdAt)), startDeadlineMs, observedSinceMs);
}

/** Returns when a version that is starting fails, or Infinity in another state. */
export function startEnd(
  { status: { state, startedAt }, startDeadlineMs }: VersionRecord,
  observedSinceMs: number,
): number {
  return state === 'starting' && startedAt !== null ? deadline(startedAt, startDeadlineMs, observedSinceMs) : Infinity;
}

/** Returns when a replica of a serving version ends: unready for too long, or not ready in time. Else Infinity. */
export function replicaEnd(
  { state, unreadyAt, startedAt, createdAt }: ReplicaRecord,
  startDeadlineMs: number,
  { unreadyDeadlineMs }: ControlPolicy,
  observedSinceMs: number,
): number {
  if (state === 'unready' && unreadyAt !== null) return deadline(unreadyAt, unreadyDeadlineMs, observedSinceMs);
  if (state === 'starting' || state === 'created')
    return deadline(startedAt ?? createdAt, startDeadlineMs, observedSinceMs);
  return Infinity;
}

function preparationTimeout({ startDeadlineMs }: VersionRecord): { reason: 'start_timeout'; message: string } {
  return { reason: 'start_timeout', message: `no process was started within ${startDeadlineMs / 1000} s` };
}

function startTimeout({ startDeadlineMs }: VersionRecord): { reason: 'start_timeout'; message: string } {
  return { reason: 'start_timeout', message: `was not ready within ${startDeadlineMs / 1000} s` };
}

/** Returns how a replica of a serving version ends, or undefined while it is within its deadlines. */
function overdueExit(
  version: VersionRecord,
  replica: ReplicaRecord,
  { nowMs, observedSinceMs, policy }: ReconcileContext,
): Exit | undefined {
  if (nowMs < replicaEnd(replica, version.startDeadlineMs, policy, observedSinceMs)) return undefined;
  if (replica.state !== 'unready') return { exitCode: null, ...startTimeout(version) };
  const message = `failed its health checks for ${policy.unreadyDeadlineMs / 1000} s`;
  return { exitCode: null, reason: 'readiness_lost', message };
}
