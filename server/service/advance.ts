import type { ControlEvent } from './control-events';
import { deploymentState } from './deployment-state';
import { end } from './observe';
import type { Pool } from './pool';
import { command, fail, signal } from './version-life';
import { isInactive, isServing } from './version-state';
import {
  type Activity,
  type ControlPolicy,
  type DeploymentWork,
  findVersion,
  isLive,
  isRollingOut,
  leastReplicas,
  queueVersion,
  type ReplicaWork,
  type VersionWork,
} from './work';

export interface AdvanceContext {
  nowMs: number;
  policy: ControlPolicy;
  activity: Activity;
  pool: Pool;
  /** For a place that is filled: a new id each time, so that nothing late is ever taken for another start. */
  newReplica: () => { id: string; secret: string };
  /** What people are to know of a choice that was made. */
  tell: (event: ControlEvent) => void;
}

const MAX_ROUNDS = 20;

/** Takes the deployment as far as wish, room and clock allow, until nothing more is to be done now. What the driver has to do about it follows from the rows. */
export function advance(work: DeploymentWork, context: AdvanceContext): void {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const before = JSON.stringify(work);
    step(work, context);
    work.observed = observedState(work);
    if (JSON.stringify(work) === before) return;
  }
  throw new Error(`deployment ${work.id} does not come to rest`);
}

export function observedState(work: DeploymentWork) {
  const active = findVersion(work, work.activeId);
  const target = findVersion(work, work.targetId);
  return deploymentState({
    desired: work.desired,
    active: active === undefined ? undefined : { state: active.life.state, isWaking: active.isWaking },
    target: target === undefined ? undefined : { state: target.life.state },
    wasReady: work.wasReady,
  });
}

function step(work: DeploymentWork, context: AdvanceContext): void {
  for (const version of work.versions) {
    applyDeadlines(version, context);
    if (!mayHaveReplicas(version)) for (const replica of version.replicas) replica.state = 'stopping';
    if (version.life.state === 'stopping' && version.replicas.length === 0)
      version.life = signal(version.life, 'ended', context.nowMs);
  }
  if (work.desired === 'running') followWish(work, context);
  else endAll(work, context.nowMs);
  for (const version of work.versions)
    if (version.id !== work.activeId && version.id !== work.targetId) stop(version, context.nowMs);
  const active = findVersion(work, work.activeId);
  if (active === undefined) return;
  refill(active, context);
  if (work.desired !== 'running' || isRollingOut(work)) return;
  scale(work, active, context);
  sleep(work, active, context);
}

function mayHaveReplicas({ life: { state } }: VersionWork): boolean {
  return state === 'preparing' || state === 'starting' || isServing(state) || state === 'backoff';
}

function applyDeadlines(version: VersionWork, { nowMs, policy }: AdvanceContext): void {
  const { life } = version;
  const { startedAt } = life;
  if (life.state === 'starting' && startedAt !== null && nowMs >= startedAt + version.startDeadlineMs) {
    const misplaced = version.replicas.find(({ misplaced: found }) => found !== null)?.misplaced;
    version.life = fail(
      life,
      'startExpired',
      misplaced ?? { reason: 'start_timeout', message: `was not ready within ${version.startDeadlineMs / 1000} s` },
      nowMs,
    );
  }
  if (life.state === 'backoff' && life.retryAt !== null && nowMs >= life.retryAt) {
    version.life = signal(life, 'retry', nowMs);
    for (const replica of version.replicas) replica.retryAt = nowMs;
  }
  if (!isServing(version.life.state)) return;
  for (const replica of version.replicas) {
    if (
      replica.state === 'unready' &&
      replica.unreadyAt !== null &&
      nowMs >= replica.unreadyAt + policy.unreadyDeadlineMs
    ) {
      end(
        version,
        replica,
        {
          exitCode: null,
          reason: 'readiness_lost',
          message: `did not answer for ${policy.unreadyDeadlineMs / 1000} s`,
        },
        nowMs,
        policy,
      );
    } else if (
      (replica.state === 'starting' || replica.state === 'created') &&
      nowMs >= (replica.startedAt ?? replica.createdAt) + version.startDeadlineMs
    ) {
      end(
        version,
        replica,
        {
          exitCode: null,
          reason: 'start_timeout',
          message: `was not ready within ${version.startDeadlineMs / 1000} s`,
        },
        nowMs,
        policy,
      );
    }
  }
}

/** Paused or deleted: all comes to rest, and a rollout ends with it. Whoever resumes gets what served last, or else what was to. */
function endAll(work: DeploymentWork, nowMs: number): void {
  for (const version of work.versions) stop(version, nowMs);
  if (work.targetId === null) return;
  const active = findVersion(work, work.activeId);
  if (active === undefined || !work.wasReady) work.activeId = work.targetId;
  work.targetId = work.rolloutStrategy = null;
}

function followWish(work: DeploymentWork, context: AdvanceContext): void {
  const active = findVersion(work, work.activeId);
  const target = findVersion(work, work.targetId);
  if (target !== undefined) return rollOut(work, active, target, context);
  if (active === undefined) return;
  // What is stopped though it is to run was told to restart, or to resume.
  if (active.life.state === 'stopped') queueVersion(active, context.nowMs);
  if (active.life.state === 'queued') grant(work, active, leastReplicas(work), context);
}

function rollOut(
  work: DeploymentWork,
  active: VersionWork | undefined,
  target: VersionWork,
  context: AdvanceContext,
): void {
  if (isWhole(target, context.nowMs)) {
    if (active !== undefined) work.wanted = Math.max(leastReplicas(work), target.replicas.filter(isLive).length);
    work.activeId = target.id;
    work.targetId = work.rolloutStrategy = null;
    return;
  }
  if (isInactive(target.life.state)) {
    // A version that made room for one that failed comes back.
    if (active?.life.state === 'stopped') queueVersion(active, context.nowMs);
    if (active?.life.state === 'queued') grant(work, active, leastReplicas(work), context);
    return;
  }
  if (target.life.state === 'queued') makeWay(work, active, target, context);
  refill(target, context);
}

/** Every place answers, or has had its time: what comes never serves with less than it has to for want of patience. */
function isWhole({ life, replicas, startDeadlineMs }: VersionWork, nowMs: number): boolean {
  return (
    isServing(life.state) &&
    (replicas.every(({ state }) => state === 'ready') || nowMs >= (life.readyAt ?? 0) + startDeadlineMs)
  );
}

/** Beside the old version where there is room for both, else in its place: never a start that cannot be granted while the old one holds what it needs. */
function makeWay(
  work: DeploymentWork,
  active: VersionWork | undefined,
  target: VersionWork,
  context: AdvanceContext,
): void {
  const strategy = work.rolloutStrategy ?? work.strategy;
  const held = active?.replicas ?? [];
  const count = leastReplicas(work);
  const holds = active !== undefined && !isInactive(active.life.state);
  const canSurge = context.pool.shortage(target.needs, count) === undefined;
  if (!holds || (strategy !== 'replace' && canSurge)) return grant(work, target, count, context);
  const fitsInstead = context.pool.shortage(target.needs, 1, held) === undefined;
  if (strategy === 'replace' || (strategy === 'auto' && fitsInstead)) {
    if (target.homeState === 'pending' || active.life.state === 'stopping') return;
    context.tell({
      type: 'rollout.replace',
      data: {
        version: target.number,
        message: canSurge
          ? 'the old version ends first, as asked for'
          : `the old version ends first, for there is no room for both: ${context.pool.shortage(target.needs, count)?.message ?? ''}`,
      },
    });
    stop(active, context.nowMs);
    return;
  }
  wait(target, count, context);
}

/** As many of `count` as there is room for, and one at the least. */
function grant(work: DeploymentWork, version: VersionWork, count: number, context: AdvanceContext): void {
  const { nowMs, pool } = context;
  if (version.homeState === 'pending') return wait(version, 1, context);
  // Its replicas of before hold what they have until they are gone.
  if (version.replicas.length > 0 || pool.shortage(version.needs, 1) !== undefined) return wait(version, 1, context);
  version.life = { ...signal(version.life, 'granted', nowMs), reason: null, message: null };
  if (version.id === work.activeId) work.wanted = count;
  for (let ordinal = 0; ordinal < count && pool.shortage(version.needs, 1) === undefined; ordinal++)
    addReplica(version, ordinal, context);
}

/** It says what it waits for. */
function wait(version: VersionWork, count: number, { nowMs, policy, pool }: AdvanceContext): void {
  const missing = pool.shortage(version.needs, count);
  if (nowMs < version.queuedAt + policy.queueDeadlineMs) {
    version.life = { ...version.life, reason: missing?.reason ?? null, message: missing?.message ?? null };
    return;
  }
  const shortage = missing ?? { reason: 'cancelled' as const, message: 'what it waited for did not end' };
  version.life = fail(
    version.life,
    'queueExpired',
    { reason: shortage.reason, message: `waited ${policy.queueDeadlineMs / 1000} s: ${shortage.message}` },
    nowMs,
  );
}

/** Places whose replica exited are filled again when it is time; GPUs stay with the place. */
function refill(version: VersionWork, context: AdvanceContext): void {
  if (version.life.state === 'backoff' || !mayHaveReplicas(version)) return;
  for (const exited of version.replicas.filter(
    ({ state, retryAt }) => state === 'exited' && retryAt !== null && context.nowMs >= retryAt,
  )) {
    const { ordinal, memoryMb, gpuUuids, restarts } = exited;
    version.replicas = version.replicas.filter((replica) => replica !== exited);
    version.replicas.push(newReplica({ ordinal, memoryMb, gpuUuids, restarts }, context));
  }
}

function scale(work: DeploymentWork, active: VersionWork, context: AdvanceContext): void {
  if (!isServing(active.life.state)) return;
  const {
    activity: { leastOpen, mostOpen },
    policy: { openPerReplica },
    pool,
  } = context;
  const bound = (count: number) => Math.min(work.max, Math.max(leastReplicas(work), count));
  work.wanted = bound(work.wanted);
  const busy = bound(Math.ceil(leastOpen / openPerReplica));
  const calm = bound(Math.ceil(mostOpen / openPerReplica));
  if (busy > work.wanted) work.wanted = busy;
  else if (calm < work.wanted) work.wanted = calm;
  const places = active.replicas.filter((replica) => isLive(replica) || replica.state === 'exited');
  for (let have = places.length; have < work.wanted && pool.shortage(active.needs, 1) === undefined; have++)
    addReplica(active, freeOrdinal(active), context);
  for (const replica of places.sort(byWorth).slice(work.wanted)) replica.state = 'stopping';
  if (active.life.state === 'degraded' && readyCount(active) >= work.wanted)
    active.life = signal(active.life, 'ready', context.nowMs);
}

function readyCount({ replicas }: VersionWork): number {
  return replicas.filter(({ state }) => state === 'ready').length;
}

const WORTH = ['ready', 'unready', 'starting', 'created', 'exited'];

/** Those that answer first, then the older ones. */
function byWorth(a: ReplicaWork, b: ReplicaWork): number {
  return WORTH.indexOf(a.state) - WORTH.indexOf(b.state) || a.ordinal - b.ordinal;
}

function sleep({ idleTimeoutMs }: DeploymentWork, active: VersionWork, { nowMs, activity }: AdvanceContext): void {
  if (idleTimeoutMs === null || active.life.state !== 'running' || activity.numOpen > 0) return;
  if (nowMs >= Math.max(activity.lastAt, active.life.readyAt ?? 0) + idleTimeoutMs)
    active.life = command(active.life, 'scaleToZero', nowMs);
}

function stop(version: VersionWork, nowMs: number): void {
  if (!isInactive(version.life.state) && version.life.state !== 'stopping')
    version.life = command(version.life, 'stop', nowMs);
  version.isWaking = false;
}

function addReplica(version: VersionWork, ordinal: number, context: AdvanceContext): void {
  version.replicas.push(
    newReplica(
      { ordinal, memoryMb: version.needs.memoryMb, gpuUuids: context.pool.take(version.needs), restarts: 0 },
      context,
    ),
  );
}

function newReplica(
  place: Pick<ReplicaWork, 'ordinal' | 'memoryMb' | 'gpuUuids' | 'restarts'>,
  { nowMs, newReplica: make }: AdvanceContext,
): ReplicaWork {
  return {
    ...make(),
    ...place,
    state: 'created',
    reference: null,
    address: null,
    misplaced: null,
    retryAt: null,
    startedAt: null,
    readyAt: null,
    unreadyAt: null,
    createdAt: nowMs,
  };
}

/** The least that no replica has, those that stop among them: logs tell replicas apart by it. */
function freeOrdinal({ replicas }: VersionWork): number {
  let ordinal = 0;
  while (replicas.some((replica) => replica.ordinal === ordinal)) ordinal++;
  return ordinal;
}
