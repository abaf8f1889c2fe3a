import { DISK_FULL } from '../disk-full';
import { type Exit, exited, fail, retryDelayMs, signal } from './version-life';
import {
  type ControlPolicy,
  type DeploymentWork,
  isLive,
  leastReplicas,
  type Observation,
  type ReplicaWork,
  type VersionWork,
} from './work';

/** Puts what happened into the rows. What is late, or about what is no more, changes nothing. */
export function observe(work: DeploymentWork, observation: Observation, nowMs: number, policy: ControlPolicy): void {
  if (observation.type === 'homeReady' || observation.type === 'homeFailed') {
    const version = work.versions.find(({ id }) => id === observation.versionId);
    if (version?.homeState !== 'pending') return;
    if (observation.type === 'homeReady') version.homeState = 'ready';
    // A version waits in the queue for its home, and is brought to an end from there.
    else
      version.life = fail(
        signal(version.life, 'granted', nowMs),
        'prepareFailed',
        {
          reason: DISK_FULL.test(observation.message) ? 'disk_full' : 'data_binding_missing',
          message: observation.message,
        },
        nowMs,
      );
    return;
  }
  const version = work.versions.find(({ replicas }) => replicas.some(({ id }) => id === observation.replicaId));
  const replica = version?.replicas.find(({ id }) => id === observation.replicaId);
  if (version === undefined || replica === undefined) return;
  switch (observation.type) {
    case 'started':
      // Found again by a later process, it may have moved.
      if (isLive(replica)) [replica.reference, replica.address] = [observation.reference, observation.address];
      if (replica.state !== 'created') return;
      replica.state = 'starting';
      replica.startedAt = nowMs;
      return begin(version, nowMs);
    case 'notStarted':
      if (replica.state !== 'created') return;
      if (version.life.state === 'preparing') version.life = fail(version.life, 'prepareFailed', observation, nowMs);
      else if (observation.reason === 'disk_full') awaitRoom(version, replica, observation.message, nowMs, policy);
      else
        end(
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
      return answer(work, version, nowMs);
    case 'unready':
      if (replica.state !== 'ready') return;
      replica.state = 'unready';
      replica.unreadyAt = nowMs;
      version.life = signal(version.life, 'replicaLost', nowMs);
      return;
    case 'misplaced':
      if (replica.state === 'starting')
        replica.misplaced = { reason: observation.reason, message: observation.message };
      return;
    case 'placed':
      replica.misplaced = null;
      return;
    case 'exited':
      // What the service stopped itself, when it was told to end with all that runs, did not crash.
      if (isLive(replica) && observation.wasStopped) lose(version, replica, nowMs, policy);
      else if (isLive(replica))
        end(
          version,
          replica,
          { exitCode: observation.exitCode, cause: observation.cause, message: observation.message },
          nowMs,
          policy,
        );
      return;
    case 'lost':
      if (isLive(replica)) lose(version, replica, nowMs, policy);
      return;
    case 'gone':
      version.replicas = version.replicas.filter(({ id }) => id !== replica.id);
  }
}

/** A replica has ended by itself, or has to. The last one takes the version with it. */
export function end(
  version: VersionWork,
  replica: ReplicaWork,
  exit: Exit,
  nowMs: number,
  policy: ControlPolicy,
): void {
  // It may end before its start is told.
  begin(version, nowMs);
  replica.state = 'exited';
  const wasHealthy = replica.readyAt !== null && nowMs - replica.readyAt >= policy.crash.healthyMs;
  replica.restarts = wasHealthy ? 1 : replica.restarts + 1;
  if (version.replicas.some(isLive)) {
    replica.retryAt = nowMs + retryDelayMs(replica.restarts, policy.crash);
    version.life = signal(version.life, 'replicaLost', nowMs);
    return;
  }
  // Whoever ended because it was not let listen says so; one that listened and answered ended for a reason of its own.
  const misplaced =
    exit.cause === undefined && replica.misplaced?.reason !== 'health_check_failed' ? replica.misplaced : null;
  version.life = exited(version.life, { ...exit, ...misplaced }, nowMs, policy.crash);
}

/** No fault of its own: it starts again at once, and it does not count. */
function lose(version: VersionWork, replica: ReplicaWork, nowMs: number, policy: ControlPolicy): void {
  const { numExits } = version.life;
  const { restarts } = replica;
  end(version, replica, { exitCode: null }, nowMs, { ...policy, crash: { ...policy.crash, maxExits: Infinity } });
  replica.restarts = restarts;
  if (replica.retryAt !== null) replica.retryAt = nowMs;
  if (version.life.state === 'backoff') version.life = { ...version.life, numExits, retryAt: nowMs };
}

/** It is tried for as long as the disk is full: what ran before runs again once there is room. */
function awaitRoom(
  version: VersionWork,
  replica: ReplicaWork,
  message: string,
  nowMs: number,
  policy: ControlPolicy,
): void {
  const { crash } = policy;
  end(version, replica, { exitCode: null, reason: 'disk_full', message }, nowMs, {
    ...policy,
    crash: { ...crash, maxExits: Infinity },
  });
  version.life = { ...version.life, numExits: Math.min(version.life.numExits, crash.maxExits - 1) };
}

function begin(version: VersionWork, nowMs: number): void {
  if (version.life.state === 'preparing') version.life = signal(version.life, 'started', nowMs);
}

function answer(work: DeploymentWork, version: VersionWork, nowMs: number): void {
  const isFirst = version.life.state === 'starting';
  const numWanted = version.id === work.activeId ? work.wanted : leastReplicas(work);
  const isWhole =
    version.replicas.filter(({ state }) => state === 'ready').length >=
    Math.min(
      numWanted,
      version.replicas.filter(isLive).length + version.replicas.filter(({ state }) => state === 'exited').length,
    );
  if (isFirst || isWhole) version.life = signal(version.life, 'ready', nowMs);
  if (version.life.state !== 'running' && version.life.state !== 'degraded') return;
  version.isWaking = false;
  work.wasReady = true;
}
