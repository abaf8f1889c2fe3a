import { isServing } from '../deployments/version-state';
import type { ReconcileContext } from './reconcile-context';
import type { ReplicaRecord, VersionRecord } from './records';

/** Returns whether the version may have live replicas. Otherwise all of them must stop. */
export function mayHaveReplicas({ status: { state } }: VersionRecord): boolean {
  return state === 'preparing' || state === 'starting' || isServing(state) || state === 'backoff';
}

/** Adds a replica. The caller has checked that the pool has the resources. */
export function addReplica(version: VersionRecord, ordinal: number, context: ReconcileContext): void {
  const { cpuMillis, memoryMb } = version.resources;
  const gpuUuids = context.pool.acquire(version.resources);
  version.replicas.push(newReplica({ ordinal, cpuMillis, memoryMb, gpuUuids, restarts: 0 }, context));
}

/** Returns the lowest ordinal that no replica has, stopping ones included. Logs identify replicas by it. */
export function freeOrdinal({ replicas }: VersionRecord): number {
  let ordinal = 0;
  while (replicas.some((replica) => replica.ordinal === ordinal)) ordinal++;
  return ordinal;
}

/** Removes the records of stopping replicas that have no process. Frees their resources. */
export function removeGone(version: VersionRecord, { pool }: ReconcileContext): void {
  for (const replica of version.replicas.filter(({ state, isGone }) => state === 'stopping' && isGone)) {
    version.replicas = version.replicas.filter((other) => other !== replica);
    pool.release(replica);
  }
}

/**
 * Replaces exited replicas whose backoff has ended and whose processes are gone. The new replica keeps the ordinal, the
 * CPU time, the memory and the GPUs.
 */
export function restartExited(version: VersionRecord, context: ReconcileContext): void {
  if (version.status.state === 'backoff' || !mayHaveReplicas(version)) return;
  const exited = version.replicas.filter(
    ({ state, isGone, retryAt }) => state === 'exited' && isGone && retryAt !== null && context.nowMs >= retryAt,
  );
  for (const old of exited) {
    const { ordinal, memoryMb, gpuUuids, restarts } = old;
    // Replicas of releases without quotas for CPU time have 0.
    const { cpuMillis } = version.resources;
    version.replicas = version.replicas.filter((replica) => replica !== old);
    version.replicas.push(newReplica({ ordinal, cpuMillis, memoryMb, gpuUuids, restarts }, context));
  }
}

function newReplica(
  place: Pick<ReplicaRecord, 'ordinal' | 'cpuMillis' | 'memoryMb' | 'gpuUuids' | 'restarts'>,
  context: ReconcileContext,
): ReplicaRecord {
  return {
    ...context.newReplica(),
    ...place,
    state: 'created',
    reference: null,
    address: null,
    misplaced: null,
    isElsewhere: false,
    isGone: false,
    retryAt: null,
    startedAt: null,
    readyAt: null,
    unreadyAt: null,
    createdAt: context.nowMs,
  };
}
