import { sql } from 'kysely';
import { randomBase62 } from '../access/base62';
import { newId } from '../access/ids';
import { isPostgres } from '../access/migrations';
import { advance } from './advance';
import { type ControlEvent, recordEvents, workEvents } from './control-events';
import { dueAt } from './due';
import { observe } from './observe';
import { type Pool } from './pool';
import { loadPool } from './pool-rows';
import type { ServiceDb, ServiceTx } from './schema';
import type { StoreContext } from './store-context';
import { wake } from './wishes';
import {
  type Activity,
  type ControlPolicy,
  type DeploymentWork,
  findVersion,
  type Observation,
  readyReplicas,
  type ReplicaWork,
} from './work';
import { loadWork, saveWork } from './work-rows';

/** A deployment as it stands after a step, for the controller: what is to run follows from it. */
export interface DeploymentView {
  work: DeploymentWork;
  secrets: Record<string, string>;
  /** When to look again though nothing happens. */
  dueAt: number | null;
  /** Something waits for room. */
  isWaiting: boolean;
  /** Versions in error whose last lines are not stored yet. */
  lackLastLines: string[];
  hasChanged: boolean;
}

/** One transaction that alone works on what runs. It bumps no revision: nobody edited anything. */
export function controlChange<T>(db: ServiceDb, run: (tx: ServiceTx) => Promise<T>): Promise<T> {
  return db.transaction().execute(async (tx) => {
    // Every other change takes this row first; the embedded database has one writer anyway.
    if (isPostgres(db)) await sql`select 1 from auth_state for update`.execute(tx);
    return run(tx);
  });
}

/** What happened is written down, and what follows from it decided, at once. Undefined: there is no such deployment any more. */
export function advanceDeployment(
  context: StoreContext,
  deploymentId: string,
  observations: readonly Observation[],
  activity: Activity,
  policy: ControlPolicy,
): Promise<DeploymentView | undefined> {
  return controlChange(context.db, (tx) =>
    stepDeployment(
      context,
      tx,
      deploymentId,
      (work, nowMs) => {
        for (const observation of observations) observe(work, observation, nowMs, policy);
      },
      activity,
      policy,
    ),
  );
}

/** A request came for what is scaled to zero. Where it is not, nothing changes. */
export function wakeDeployment(
  context: StoreContext,
  deploymentId: string,
  activity: Activity,
  policy: ControlPolicy,
): Promise<DeploymentView | undefined> {
  return controlChange(context.db, (tx) =>
    stepDeployment(
      context,
      tx,
      deploymentId,
      (work, nowMs) => {
        wake(work, nowMs);
      },
      activity,
      policy,
    ),
  );
}

async function stepDeployment(
  context: StoreContext,
  tx: ServiceTx,
  deploymentId: string,
  change: (work: DeploymentWork, nowMs: number) => void,
  activity: Activity,
  policy: ControlPolicy,
): Promise<DeploymentView | undefined> {
  const before = await loadWork(tx, deploymentId);
  if (before === undefined) return undefined;
  const nowMs = context.now();
  const work = structuredClone(before);
  const pool = await loadPool(tx, context.options.machine.capacity, { type: work.ownerType, id: work.ownerId });
  change(work, nowMs);
  giveBack(pool, before, work);
  const told: ControlEvent[] = [];
  advance(work, {
    nowMs,
    policy,
    activity,
    pool,
    newReplica: () => newReplica(context, nowMs),
    tell: (event) => void told.push(event),
  });
  const hasChanged = await saveWork(tx, before, work, nowMs);
  if (hasChanged)
    await recordEvents(
      tx,
      { type: work.ownerType, id: work.ownerId },
      { type: 'deployment', id: deploymentId },
      [...told, ...workEvents(before, work)],
      nowMs,
    );
  return {
    work,
    secrets: openSecrets(
      context,
      work.versions.flatMap(({ replicas }) => replicas),
    ),
    dueAt: dueAt(work, activity, policy, nowMs),
    hasChanged,
    isWaiting: work.versions.some(({ life }) => life.state === 'queued') || wantsMore(work),
    lackLastLines: work.versions
      .filter(({ life, hasLastLines }) => life.state === 'error' && !hasLastLines)
      .map(({ id }) => id),
  };
}

function wantsMore(work: DeploymentWork): boolean {
  const active = findVersion(work, work.activeId);
  return active !== undefined && readyReplicas(active).length > 0 && active.replicas.length < work.wanted;
}

/** What is gone since the pool was read. */
function giveBack(pool: Pool, before: DeploymentWork, after: DeploymentWork): void {
  const kept = new Set(after.versions.flatMap(({ replicas }) => replicas.map(({ id }) => id)));
  for (const { replicas } of before.versions)
    for (const replica of replicas) if (!kept.has(replica.id)) pool.give(replica);
}

function newReplica({ box }: StoreContext, nowMs: number): { id: string; secret: string } {
  const id = newId('rep', nowMs);
  return { id, secret: box.seal(randomBase62(43), secretPurpose(id)) };
}

export function secretPurpose(replicaId: string): string {
  return `replica ${replicaId}`;
}

/** What callers prove themselves with, of replicas that have an address. */
export function openSecrets({ box }: StoreContext, replicas: readonly ReplicaWork[]): Record<string, string> {
  return Object.fromEntries(
    replicas
      .filter(({ address }) => address !== null)
      .map(({ id, secret }) => [id, box.open(secret, secretPurpose(id))]),
  );
}

/** All that the controller looks after. */
export async function listDeploymentIds(db: ServiceDb): Promise<string[]> {
  const rows = await db.selectFrom('deployment_settings').select('deployment_id').orderBy('deployment_id').execute();
  return rows.map(({ deployment_id: id }) => id);
}

/** The end of a failed version's log, once. */
export async function saveLastLines(db: ServiceDb, versionId: string, lines: readonly string[]): Promise<void> {
  await db
    .updateTable('deployment_versions')
    .set({ last_lines: JSON.stringify(lines) })
    .where('id', '=', versionId)
    .where('state', '=', 'error')
    .execute();
}
