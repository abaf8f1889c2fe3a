import { newId, randomBase62 } from 'capstan/internal';
import { reconcile } from './reconcile';
import { type ControlEvent, recordEvents, stateChangeEvents } from './control-events';
import { nextStepAt } from './next-step';
import { restartFromElsewhere } from './elsewhere';
import { type LeaseTerm, loopTransaction } from './lease';
import { observe } from './observe';
import { type Pool } from './pool';
import { loadPool } from './pool-rows';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { openUpstreamSecret } from '../upstreams/upstreams';
import { wake } from './intents';
import {
  type Activity,
  type ControlPolicy,
  type DeploymentRecord,
  findVersion,
  lacksAny,
  type Observation,
  readyReplicas,
  type ReplicaRecord,
} from './records';
import { loadDeployment, saveDeployment } from './record-rows';

/** A deployment after a reconcile step, for the controller. */
export interface ReconciledDeployment {
  deployment: DeploymentRecord;
  /** Decrypted secrets by replica id. */
  secrets: Record<string, string>;
  nextStepAt: number | null;
  /** Whether it waits for capacity. */
  isWaiting: boolean;
  /** Failed versions whose last log lines are not saved yet. */
  withoutLastLines: string[];
  hasChanged: boolean;
  /** Whether the step removed replicas, so that others may get their resources. */
  hasFreedCapacity: boolean;
}

/** Applies observations, reconciles and saves in one transaction. Returns undefined if the deployment was deleted. */
export function reconcileDeployment(
  context: StoreContext,
  term: LeaseTerm,
  deploymentId: string,
  observations: readonly Observation[],
  activity: Activity,
  policy: ControlPolicy,
): Promise<ReconciledDeployment | undefined> {
  return loopTransaction(context.db, term.epoch, (tx) =>
    reconcileInTransaction(
      context,
      tx,
      term.startedAt,
      deploymentId,
      (deployment, nowMs) => {
        for (const observation of observations) observe(deployment, observation, nowMs, policy);
      },
      activity,
      policy,
    ),
  );
}

/** Wakes a deployment that is scaled to zero, then reconciles. */
export function wakeDeployment(
  context: StoreContext,
  term: LeaseTerm,
  deploymentId: string,
  activity: Activity,
  policy: ControlPolicy,
): Promise<ReconciledDeployment | undefined> {
  return loopTransaction(context.db, term.epoch, (tx) =>
    reconcileInTransaction(
      context,
      tx,
      term.startedAt,
      deploymentId,
      (deployment, nowMs) => void wake(deployment, nowMs),
      activity,
      policy,
    ),
  );
}

async function reconcileInTransaction(
  context: StoreContext,
  tx: ServiceTx,
  observedSinceMs: number,
  deploymentId: string,
  change: (deployment: DeploymentRecord, nowMs: number) => void,
  activity: Activity,
  policy: ControlPolicy,
): Promise<ReconciledDeployment | undefined> {
  const before = await loadDeployment(tx, deploymentId, context.options.node);
  if (before === undefined) return undefined;
  const nowMs = context.loopNow();
  const deployment = structuredClone(before);
  const pool = await loadPool(tx, context.options.machine.capacity, {
    type: deployment.ownerType,
    id: deployment.ownerId,
  });
  restartFromElsewhere(deployment, nowMs);
  change(deployment, nowMs);
  releaseRemoved(pool, before, deployment);
  const emitted: ControlEvent[] = [];
  reconcile(deployment, {
    nowMs,
    observedSinceMs,
    policy,
    activity,
    pool,
    newReplica: () => newReplica(context, nowMs),
    emit: (event) => void emitted.push(event),
  });
  const hasChanged = await saveDeployment(tx, before, deployment, nowMs, context.options.node);
  if (hasChanged)
    await recordEvents(
      tx,
      { type: deployment.ownerType, id: deployment.ownerId },
      { type: 'deployment', id: deploymentId },
      [...emitted, ...stateChangeEvents(before, deployment)],
      context.now(),
    );
  return {
    deployment,
    secrets: {
      ...openSecrets(
        context,
        deployment.versions.flatMap(({ replicas }) => replicas),
      ),
      ...(deployment.upstream === undefined
        ? {}
        : { [deploymentId]: openUpstreamSecret(context, deploymentId, deployment.upstream) }),
    },
    nextStepAt: nextStepAt(deployment, activity, policy, nowMs, observedSinceMs),
    hasChanged,
    hasFreedCapacity: lacksAny(
      before.versions.flatMap(({ replicas }) => replicas),
      deployment.versions.flatMap(({ replicas }) => replicas),
    ),
    isWaiting: deployment.versions.some(({ status }) => status.state === 'queued') || lacksReplicas(deployment),
    withoutLastLines: deployment.versions
      .filter(({ status, hasLastLines }) => status.state === 'error' && !hasLastLines)
      .map(({ id }) => id),
  };
}

function lacksReplicas(deployment: DeploymentRecord): boolean {
  const active = findVersion(deployment, deployment.activeId);
  return (
    active !== undefined && readyReplicas(active).length > 0 && active.replicas.length < deployment.desiredReplicas
  );
}

/** Frees the resources of replicas that were removed since the pool was loaded. */
function releaseRemoved(pool: Pool, before: DeploymentRecord, after: DeploymentRecord): void {
  const kept = new Set(after.versions.flatMap(({ replicas }) => replicas.map(({ id }) => id)));
  for (const { replicas } of before.versions)
    for (const replica of replicas) if (!kept.has(replica.id)) pool.release(replica);
}

function newReplica({ box }: StoreContext, nowMs: number): { id: string; secret: string } {
  const id = newId('rep', nowMs);
  return { id, secret: box.seal(randomBase62(43), secretPurpose(id)) };
}

export function secretPurpose(replicaId: string): string {
  return `replica ${replicaId}`;
}

/** Returns the decrypted secrets of replicas that have an address. */
export function openSecrets({ box }: StoreContext, replicas: readonly ReplicaRecord[]): Record<string, string> {
  return Object.fromEntries(
    replicas
      .filter(({ address }) => address !== null)
      .map(({ id, secret }) => [id, box.open(secret, secretPurpose(id))]),
  );
}

/** Returns the ids of all deployments. */
export async function listDeploymentIds(db: ServiceDb): Promise<string[]> {
  const rows = await db.selectFrom('deployment_settings').select('deployment_id').orderBy('deployment_id').execute();
  return rows.map(({ deployment_id: id }) => id);
}

/** Saves the end of a failed version's log. */
export function saveLastLines(
  db: ServiceDb,
  epoch: number,
  versionId: string,
  lines: readonly string[],
): Promise<void> {
  return loopTransaction(db, epoch, async (tx) => {
    await tx
      .updateTable('deployment_versions')
      .set({ last_lines: JSON.stringify(lines) })
      .where('id', '=', versionId)
      .where('state', '=', 'error')
      .execute();
  });
}

/** Returns the ids of the replicas of this service. Without `node` these are all replicas. */
export async function listOwnReplicaIds(db: ServiceDb, node: string | undefined): Promise<string[]> {
  const rows = await db.selectFrom('replicas').select(['id', 'node']).execute();
  return rows.filter((row) => node === undefined || row.node === null || row.node === node).map(({ id }) => id);
}
