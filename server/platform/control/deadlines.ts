import { isServing } from '../deployments/version-state';
import { endReplica } from './observe';
import type { ReconcileContext } from './reconcile-context';
import type { ReplicaRecord, VersionRecord } from './records';
import { type Exit, fail, signal } from './version-status';

/** Fails a preparation or start that took too long, ends a backoff, and ends replicas that were unready for long. */
export function applyDeadlines(version: VersionRecord, context: ReconcileContext): void {
  const { nowMs, policy } = context;
  if (version.status.state === 'preparing' && nowMs >= preparationEnd(version))
    version.status = fail(version.status, 'prepareFailed', preparationTimeout(version), nowMs);
  if (isStartOverdue(version, nowMs)) {
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
export function preparationEnd({ replicas, startDeadlineMs }: VersionRecord): number {
  return Math.min(...replicas.map(({ createdAt }) => createdAt)) + startDeadlineMs;
}

function preparationTimeout({ startDeadlineMs }: VersionRecord): { reason: 'start_timeout'; message: string } {
  return { reason: 'start_timeout', message: `no process was started within ${startDeadlineMs / 1000} s` };
}

function isStartOverdue({ status: { state, startedAt }, startDeadlineMs }: VersionRecord, nowMs: number): boolean {
  return state === 'starting' && startedAt !== null && nowMs >= startedAt + startDeadlineMs;
}

function startTimeout({ startDeadlineMs }: VersionRecord): { reason: 'start_timeout'; message: string } {
  return { reason: 'start_timeout', message: `was not ready within ${startDeadlineMs / 1000} s` };
}

/** Returns how a replica of a serving version ends, or undefined while it is within its deadlines. */
function overdueExit(
  version: VersionRecord,
  { state, unreadyAt, startedAt, createdAt }: ReplicaRecord,
  { nowMs, policy: { unreadyDeadlineMs } }: ReconcileContext,
): Exit | undefined {
  if (state === 'unready' && unreadyAt !== null && nowMs >= unreadyAt + unreadyDeadlineMs)
    return {
      exitCode: null,
      reason: 'readiness_lost',
      message: `failed its health checks for ${unreadyDeadlineMs / 1000} s`,
    };
  const isStarting = state === 'starting' || state === 'created';
  if (isStarting && nowMs >= (startedAt ?? createdAt) + version.startDeadlineMs)
    return { exitCode: null, ...startTimeout(version) };
  return undefined;
}
