import { DISK_FULL } from 'capstan/internal';
import { type Exit, exited, fail, retryDelayMs, signal } from './version-status';
import {
  type ControlPolicy,
  type DeploymentRecord,
  desiredWithin,
  isLive,
  type Observation,
  type ReplicaRecord,
  type VersionRecord,
} from './records';

/** Applies an observation to the record. Late observations and those of unknown replicas change nothing. */
export function observe(
  deployment: DeploymentRecord,
  observation: Observation,
  nowMs: number,
  policy: ControlPolicy,
): void {
  if (observation.type === 'homeReady' || observation.type === 'homeFailed') {
    const version = deployment.versions.find(({ id }) => id === observation.versionId);
    if (version?.homeState !== 'pending') return;
    if (observation.type === 'homeReady') version.homeState = 'ready';
    // The version is still queued, and only a granted version can fail to prepare.
    else
      version.status = fail(
        signal(version.status, 'granted', nowMs),
        'prepareFailed',
        {
          reason: DISK_FULL.test(observation.message) ? 'disk_full' : 'data_binding_missing',
          message: observation.message,
        },
        nowMs,
      );
    return;
  }
  const version = deployment.versions.find(({ replicas }) => replicas.some(({ id }) => id === observation.replicaId));
  const replica = version?.replicas.find(({ id }) => id === observation.replicaId);
  if (version === undefined || replica === undefined) return;
  switch (observation.type) {
    case 'started':
      // A restarted service that finds the replica again may get another address.
      if (isLive(replica)) [replica.reference, replica.address] = [observation.reference, observation.address];
      if (replica.state !== 'created') return;
      replica.state = 'starting';
      replica.startedAt = nowMs;
      return markStarted(version, nowMs);
    case 'notStarted':
      if (replica.state !== 'created') return;
      if (version.status.state === 'preparing')
        version.status = fail(version.status, 'prepareFailed', observation, nowMs);
      else if (observation.reason === 'disk_full')
        retryOnFullDisk(version, replica, observation.message, nowMs, policy);
      else
        endReplica(
          version,
          replica,
          { exitCode: null, reason: observation.reason, message: observation.message },
          nowMs,
          policy,
        );
      return;
    case 'ready':
      if (replica.state !== 'starting' && replica.state !== 'unready') return;
      replica.state = 'ready';
      replica.readyAt ??= nowMs;
      replica.unreadyAt = replica.misplaced = null;
      return markReady(deployment, version, nowMs);
    case 'unready':
      if (replica.state !== 'ready') return;
      replica.state = 'unready';
      replica.unreadyAt = nowMs;
      version.status = signal(version.status, 'replicaLost', nowMs);
      return;
    case 'misplaced':
      if (replica.state === 'starting')
        replica.misplaced = { reason: observation.reason, message: observation.message };
      return;
    case 'placed':
      replica.misplaced = null;
      return;
    case 'exited':
      // The service itself stopped the replica during its shutdown, so this is not a crash.
      if (isLive(replica) && observation.wasStopped) loseReplica(version, replica, nowMs, policy);
      else if (isLive(replica))
        endReplica(
          version,
          replica,
          {
            exitCode: observation.exitCode,
            cause: observation.cause,
            message: observation.message,
            // A start script may print such a line, and may accept the flag at the next start.
            isFinal: version.isBuiltin && observation.refusedFlag === true,
          },
          nowMs,
          policy,
        );
      return;
    case 'lost':
      if (isLive(replica)) loseReplica(version, replica, nowMs, policy);
      return;
    case 'gone':
      if (replica.state === 'exited') replica.isGone = true;
      else version.replicas = version.replicas.filter(({ id }) => id !== replica.id);
  }
}

/**
 * Marks a replica as exited. While other replicas live, it is replaced after a backoff. The exit of the last one puts
 * the whole version into backoff or error.
 */
export function endReplica(
  version: VersionRecord,
  replica: ReplicaRecord,
  exit: Exit,
  nowMs: number,
  policy: ControlPolicy,
): void {
  // The exit may be observed before the start.
  markStarted(version, nowMs);
  replica.state = 'exited';
  const wasHealthy = replica.readyAt !== null && nowMs - replica.readyAt >= policy.crash.healthyMs;
  replica.restarts = wasHealthy ? 1 : replica.restarts + 1;
  if (version.replicas.some(isLive)) {
    replica.retryAt = nowMs + retryDelayMs(replica.restarts, policy.crash);
    version.status = signal(version.status, 'replicaLost', nowMs);
    return;
  }
  // A wrong listening address explains the exit. A failed health check does not: the process listened and then crashed.
  const misplaced =
    exit.cause === undefined && replica.misplaced?.reason !== 'health_check_failed' ? replica.misplaced : null;
  version.status = exited(version.status, { ...exit, ...misplaced }, nowMs, policy.crash);
}

/** A replica that ended without an error. It restarts at once, and the exit does not count as a crash. */
function loseReplica(version: VersionRecord, replica: ReplicaRecord, nowMs: number, policy: ControlPolicy): void {
  const { numExits } = version.status;
  const { restarts } = replica;
  endReplica(version, replica, { exitCode: null }, nowMs, {
    ...policy,
    crash: { ...policy.crash, maxExits: Infinity },
  });
  replica.restarts = restarts;
  if (replica.retryAt !== null) replica.retryAt = nowMs;
  if (version.status.state === 'backoff') version.status = { ...version.status, numExits, retryAt: nowMs };
}

/** A full disk never turns a version that ran before into an error. Its start is retried until there is disk space. */
function retryOnFullDisk(
  version: VersionRecord,
  replica: ReplicaRecord,
  message: string,
  nowMs: number,
  policy: ControlPolicy,
): void {
  const { crash } = policy;
  endReplica(version, replica, { exitCode: null, reason: 'disk_full', message }, nowMs, {
    ...policy,
    crash: { ...crash, maxExits: Infinity },
  });
  version.status = { ...version.status, numExits: Math.min(version.status.numExits, crash.maxExits - 1) };
}

function markStarted(version: VersionRecord, nowMs: number): void {
  if (version.status.state === 'preparing') version.status = signal(version.status, 'started', nowMs);
}

function markReady(deployment: DeploymentRecord, version: VersionRecord, nowMs: number): void {
  const isFirst = version.status.state === 'starting';
  const numDesired = version.id === deployment.activeId ? deployment.desiredReplicas : desiredWithin(deployment);
  const count = (matches: (replica: ReplicaRecord) => boolean) => version.replicas.filter(matches).length;
  const numExpected = Math.min(numDesired, count(isLive) + count(({ state }) => state === 'exited'));
  const isFullyReady = count(({ state }) => state === 'ready') >= numExpected;
  if (isFirst || isFullyReady) version.status = signal(version.status, 'ready', nowMs);
  if (version.status.state !== 'running' && version.status.state !== 'degraded') return;
  version.isWaking = false;
  deployment.wasReady = true;
}
