import { newId, randomBase62 } from 'capstan/internal';
import { CONTAINER_TRANSITIONS, type ContainerEvent, type ContainerState } from '../deployments/container-state';
import { openSecrets, secretPurpose } from './deployment-control';
import { deadline } from './deadlines';
import { type LeaseTerm, loopTransaction } from './lease';
import { recordEvents } from './control-events';
import { loadPool } from './pool-rows';
import type { Pool } from './pool';
import type { ServiceTx } from '../store/schema';
import { parseSpec } from '../deployments/spec';
import type { StoreContext } from '../store/store-context';
import {
  type ControlPolicy,
  isLive,
  lacksAny,
  type ReplicaResources,
  type Observation,
  type ReplicaRecord,
} from './records';
import { loadReplicas, resourcesOf, removeReplicas, saveReplicas } from './record-rows';

/** A training container as the controller works on it. */
export interface ContainerRecord {
  readonly id: string;
  readonly ownerType: 'user' | 'org';
  readonly ownerId: string;
  state: ContainerState;
  /** Why it waits or failed, shown to users. */
  reason: string | null;
  readonly resources: ReplicaResources;
  readonly isBuiltin: boolean;
  replicas: ReplicaRecord[];
}

export interface ReconciledContainer {
  container: ContainerRecord;
  secrets: Record<string, string>;
  nextStepAt: number | null;
  hasChanged: boolean;
  /** Whether the step removed replicas, so that others may get their resources. */
  hasFreedCapacity: boolean;
}

/** Applies observations, reconciles and saves in one transaction. Returns undefined if the container was deleted. */
export function reconcileContainer(
  context: StoreContext,
  { epoch, startedAt: observedSinceMs }: LeaseTerm,
  containerId: string,
  observations: readonly Observation[],
  policy: ControlPolicy,
): Promise<ReconciledContainer | undefined> {
  return loopTransaction(context.db, epoch, async (tx) => {
    const before = await loadContainer(tx, containerId, context.options.node);
    if (before === undefined) return undefined;
    const nowMs = context.loopNow();
    const container = structuredClone(before);
    endElsewhere(container);
    for (const observation of observations) observeContainer(container, observation, nowMs);
    const end = preparationEnd(container, policy, observedSinceMs);
    if (end !== null && nowMs >= end)
      applyEvent(container, 'failed', `no process was started within ${policy.prepareDeadlineMs / 1000} s`);
    const pool = await loadPool(tx, context.options.machine.capacity, {
      type: container.ownerType,
      id: container.ownerId,
    });
    reconcileState(container, pool, () => {
      const id = newId('rep', nowMs);
      return { id, secret: context.box.seal(randomBase62(43), secretPurpose(id)), createdAt: nowMs };
    });
    if (container.state !== before.state || container.reason !== before.reason)
      await tx
        .updateTable('containers')
        .set({ state: container.state, reason: container.reason })
        .where('id', '=', containerId)
        .execute();
    await removeReplicas(tx, before.replicas, container.replicas);
    await saveReplicas(
      tx,
      { version_id: null, container_id: containerId, node: context.options.node ?? null },
      before.replicas,
      container.replicas,
      nowMs,
    );
    if (container.state !== before.state)
      await recordEvents(
        tx,
        { type: container.ownerType, id: container.ownerId },
        { type: 'container', id: containerId },
        [
          {
            type: `container.${container.state}`,
            data: container.reason === null ? {} : { message: container.reason },
          },
        ],
        context.now(),
      );
    return {
      container,
      secrets: openSecrets(context, container.replicas),
      nextStepAt: preparationEnd(container, policy, observedSinceMs),
      hasChanged: JSON.stringify(before) !== JSON.stringify(container),
      hasFreedCapacity: lacksAny(before.replicas, container.replicas),
    };
  });
}

/** The replica of another machine is lost for the service that controls the containers now. */
function endElsewhere(container: ContainerRecord): void {
  if (!container.replicas.some(({ isElsewhere }) => isElsewhere)) return;
  container.replicas = [];
  applyEvent(container, 'started');
  applyEvent(container, 'ended', 'it ran on another machine, whose service no longer controls it');
}

/** Returns when a container that is preparing fails. */
function preparationEnd(
  { state, replicas }: ContainerRecord,
  { prepareDeadlineMs }: ControlPolicy,
  observedSinceMs: number,
): number | null {
  if (state !== 'preparing' || replicas.length === 0) return null;
  return deadline(replicas[0].createdAt, prepareDeadlineMs, observedSinceMs);
}

function observeContainer(container: ContainerRecord, observation: Observation, nowMs: number): void {
  if (!('replicaId' in observation)) return;
  const replica = container.replicas.find(({ id }) => id === observation.replicaId);
  if (replica === undefined) return;
  switch (observation.type) {
    case 'started':
      // A restarted service that finds the replica again may get another address.
      if (isLive(replica)) [replica.reference, replica.address] = [observation.reference, observation.address];
      if (replica.state !== 'created') return;
      Object.assign(replica, { state: 'starting', startedAt: nowMs });
      return applyEvent(container, 'started');
    case 'notStarted':
      if (replica.state === 'created') applyEvent(container, 'failed', observation.message);
      return;
    case 'ready':
      if (replica.state === 'starting' || replica.state === 'unready')
        Object.assign(replica, { state: 'ready', readyAt: replica.readyAt ?? nowMs });
      return;
    case 'unready':
      if (replica.state === 'ready') replica.state = 'unready';
      return;
    case 'exited':
      // The exit may be observed before the start.
      applyEvent(container, 'started');
      if (observation.exitCode === 0 || observation.wasStopped) return applyEvent(container, 'ended');
      return applyEvent(container, 'failed', observation.message);
    case 'lost':
      applyEvent(container, 'started');
      return applyEvent(container, 'ended', 'it ended while the service was not running');
    case 'gone':
      container.replicas = container.replicas.filter(({ id }) => id !== replica.id);
      return;
    case 'misplaced':
    case 'placed':
  }
}

function reconcileState(
  container: ContainerRecord,
  pool: Pool,
  newReplica: () => Pick<ReplicaRecord, 'id' | 'secret' | 'createdAt'>,
): void {
  if (container.state !== 'preparing' && container.state !== 'running')
    for (const replica of container.replicas) replica.state = 'stopping';
  if (container.state === 'stopping' && container.replicas.length === 0) applyEvent(container, 'ended');
  if (container.state !== 'queued') return;
  const shortage = pool.shortage(container.resources, 1);
  container.reason = shortage?.message ?? null;
  if (shortage !== undefined || container.replicas.length > 0) return;
  applyEvent(container, 'granted');
  container.replicas.push({
    ...newReplica(),
    ordinal: 0,
    state: 'created',
    reference: null,
    address: null,
    cpuMillis: container.resources.cpuMillis,
    memoryMb: container.resources.memoryMb,
    gpuUuids: pool.acquire(container.resources),
    restarts: 0,
    misplaced: null,
    isElsewhere: false,
    isGone: false,
    retryAt: null,
    startedAt: null,
    readyAt: null,
    unreadyAt: null,
  });
}

function applyEvent(container: ContainerRecord, event: ContainerEvent, reason: string | null = null): void {
  const state = CONTAINER_TRANSITIONS[container.state][event];
  if (state === undefined) return;
  container.state = state;
  container.reason = reason;
}

async function loadContainer(
  tx: ServiceTx,
  containerId: string,
  node: string | undefined,
): Promise<ContainerRecord | undefined> {
  const row = await tx.selectFrom('containers').selectAll().where('id', '=', containerId).executeTakeFirst();
  if (row === undefined) return undefined;
  const { compute, start_command: script, image_type: type } = parseSpec(row.spec);
  return {
    id: row.id,
    ownerType: row.owner_type,
    ownerId: row.owner_id,
    state: row.state,
    reason: row.reason,
    resources: resourcesOf({ compute }),
    isBuiltin: script === null && type === 'builtin-runtime',
    replicas: (await loadReplicas(tx, 'container_id', [containerId], node)).get(containerId) ?? [],
  };
}

/** Returns the ids of containers that run, should run, or still have replicas. */
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
