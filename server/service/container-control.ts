import { randomBase62 } from '../access/base62';
import { newId } from '../access/ids';
import { CONTAINER_TRANSITIONS, type ContainerEvent, type ContainerState } from './container-state';
import { controlChange, openSecrets, secretPurpose } from './control';
import { recordEvents } from './control-events';
import { loadPool } from './pool-rows';
import type { Pool } from './pool';
import type { ServiceTx } from './schema';
import type { StoredSpec } from './spec';
import type { StoreContext } from './store-context';
import { isLive, type Needs, type Observation, type ReplicaWork } from './work';
import { loadReplicas, removeReplicas, saveReplicas } from './work-rows';

/** A training container as the controller works on it. */
export interface ContainerWork {
  readonly id: string;
  readonly ownerType: 'user' | 'org';
  readonly ownerId: string;
  state: ContainerState;
  /** Why it waits, or is in error; for people. */
  reason: string | null;
  readonly needs: Needs;
  readonly isBuiltin: boolean;
  replicas: ReplicaWork[];
}

export interface ContainerView {
  work: ContainerWork;
  secrets: Record<string, string>;
  hasChanged: boolean;
}

/** What happened is written down, and what follows from it decided. Undefined: there is no such container any more. */
export function advanceContainer(
  context: StoreContext,
  containerId: string,
  observations: readonly Observation[],
): Promise<ContainerView | undefined> {
  return controlChange(context.db, async (tx) => {
    const before = await loadContainer(tx, containerId);
    if (before === undefined) return undefined;
    const nowMs = context.now();
    const work = structuredClone(before);
    for (const observation of observations) observeContainer(work, observation, nowMs);
    const pool = await loadPool(tx, context.options.machine.capacity, { type: work.ownerType, id: work.ownerId });
    stepContainer(work, pool, () => {
      const id = newId('rep', nowMs);
      return { id, secret: context.box.seal(randomBase62(43), secretPurpose(id)), createdAt: nowMs };
    });
    if (work.state !== before.state || work.reason !== before.reason)
      await tx
        .updateTable('containers')
        .set({ state: work.state, reason: work.reason })
        .where('id', '=', containerId)
        .execute();
    await removeReplicas(tx, before.replicas, work.replicas);
    await saveReplicas(tx, { version_id: null, container_id: containerId }, before.replicas, work.replicas, nowMs);
    if (work.state !== before.state)
      await recordEvents(
        tx,
        { type: work.ownerType, id: work.ownerId },
        { type: 'container', id: containerId },
        [{ type: `container.${work.state}`, data: work.reason === null ? {} : { message: work.reason } }],
        nowMs,
      );
    return {
      work,
      secrets: openSecrets(context, work.replicas),
      hasChanged: JSON.stringify(before) !== JSON.stringify(work),
    };
  });
}

export function observeContainer(work: ContainerWork, observation: Observation, nowMs: number): void {
  if (!('replicaId' in observation)) return;
  const replica = work.replicas.find(({ id }) => id === observation.replicaId);
  if (replica === undefined) return;
  switch (observation.type) {
    case 'started':
      // Found again by a later process, it may have moved.
      if (isLive(replica)) [replica.reference, replica.address] = [observation.reference, observation.address];
      if (replica.state !== 'created') return;
      Object.assign(replica, { state: 'starting', startedAt: nowMs });
      return go(work, 'started');
    case 'notStarted':
      if (replica.state === 'created') go(work, 'failed', observation.message);
      return;
    case 'ready':
      if (replica.state === 'starting' || replica.state === 'unready')
        Object.assign(replica, { state: 'ready', readyAt: replica.readyAt ?? nowMs });
      return;
    case 'unready':
      if (replica.state === 'ready') replica.state = 'unready';
      return;
    case 'exited':
      // It may end before its start is told.
      go(work, 'started');
      if (observation.exitCode === 0 || observation.wasStopped) return go(work, 'ended');
      return go(work, 'failed', observation.message);
    case 'lost':
      go(work, 'started');
      return go(work, 'ended', 'it ended while the service was away');
    case 'gone':
      work.replicas = work.replicas.filter(({ id }) => id !== replica.id);
      return;
    case 'misplaced':
    case 'placed':
  }
}

export function stepContainer(
  work: ContainerWork,
  pool: Pool,
  make: () => Pick<ReplicaWork, 'id' | 'secret' | 'createdAt'>,
): void {
  if (work.state !== 'preparing' && work.state !== 'running')
    for (const replica of work.replicas) replica.state = 'stopping';
  if (work.state === 'stopping' && work.replicas.length === 0) go(work, 'ended');
  if (work.state !== 'queued') return;
  const shortage = pool.shortage(work.needs, 1);
  work.reason = shortage?.message ?? null;
  if (shortage !== undefined || work.replicas.length > 0) return;
  go(work, 'granted');
  work.replicas.push({
    ...make(),
    ordinal: 0,
    state: 'created',
    reference: null,
    address: null,
    memoryMb: work.needs.memoryMb,
    gpuUuids: pool.take(work.needs),
    restarts: 0,
    misplaced: null,
    retryAt: null,
    startedAt: null,
    readyAt: null,
    unreadyAt: null,
  });
}

function go(work: ContainerWork, event: ContainerEvent, reason: string | null = null): void {
  const state = CONTAINER_TRANSITIONS[work.state][event];
  if (state === undefined) return;
  work.state = state;
  work.reason = reason;
}

async function loadContainer(tx: ServiceTx, containerId: string): Promise<ContainerWork | undefined> {
  const row = await tx.selectFrom('containers').selectAll().where('id', '=', containerId).executeTakeFirst();
  if (row === undefined) return undefined;
  const { compute, start_command: script, image_type: type } = JSON.parse(row.spec) as StoredSpec;
  return {
    id: row.id,
    ownerType: row.owner_type,
    ownerId: row.owner_id,
    state: row.state,
    reason: row.reason,
    needs: { gpuCount: compute.gpu_count, gpuType: compute.gpu_type, memoryMb: compute.memory_mb },
    isBuiltin: script === null && type === 'builtin-runtime',
    replicas: (await loadReplicas(tx, 'container_id', [containerId])).get(containerId) ?? [],
  };
}

/** Those that run, are to, or have something left. */
export async function listBusyContainerIds(db: StoreContext['db']): Promise<string[]> {
  const rows = await db
    .selectFrom('containers')
    .leftJoin('replicas', 'replicas.container_id', 'containers.id')
    .select('containers.id')
    .distinct()
    .where((eb) => eb.or([eb('containers.state', 'not in', ['stopped', 'error']), eb('replicas.id', 'is not', null)]))
    .orderBy('containers.id')
    .execute();
  return rows.map(({ id }) => id);
}
