import type { ServiceActor } from '../accounts/actor';
import { changeDeployment, demandDeployment } from '../deployments/commands';
import type { DeploymentRecord } from '../control/records';
import { controlTransaction } from '../control/control-transaction';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { rfc3339, rfc3339OrNull } from '../store/times';
import { type CanaryStats, NO_STATS } from './canary-rule';
import type { CanaryRow, CanaryState } from './canary-schema';

/** Which requests go to a canary. */
export interface CanarySplit {
  percent: number;
  header?: string | null;
  keys?: readonly string[];
}

export interface CanaryView {
  version: number;
  percent: number;
  header: string | null;
  keys: string[];
  state: CanaryState;
  reason: string | null;
  stable: CanaryStats['stable'];
  canary: CanaryStats['canary'];
  started_at: string;
  decided_at: string | null;
}

const HEADER = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+: [!-~]([ -~]*[!-~])?$/;

/** Makes a version a canary of its deployment. It replaces the record of the last one. */
export async function insertCanary(
  tx: ServiceTx,
  deploymentId: string,
  version: { id: string; number: number },
  split: CanarySplit,
  nowMs: number,
): Promise<void> {
  await tx.deleteFrom('canaries').where('deployment_id', '=', deploymentId).execute();
  await tx
    .insertInto('canaries')
    .values({
      deployment_id: deploymentId,
      version_id: version.id,
      version_number: version.number,
      ...(await checkSplit(tx, deploymentId, split)),
      state: 'running',
      reason: null,
      stats: JSON.stringify(NO_STATS),
      started_at: nowMs,
      decided_at: null,
    })
    .execute();
}

/** Returns the last canary of a deployment, or null if it has had none. */
export async function getCanary(
  { db }: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
): Promise<CanaryView | null> {
  await demandDeployment(db, actor, deploymentId, 'read');
  const row = await findRow(db, deploymentId);
  return row === undefined ? null : toView(row);
}

/** Changes which requests go to the canary. */
export function editCanary(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  split: CanarySplit,
): Promise<CanaryView> {
  return changeDeployment(context, actor, deploymentId, async ({ change, owner }) => {
    const { tx } = change;
    const row = await demandRunning(tx, deploymentId);
    const columns = await checkSplit(tx, deploymentId, {
      percent: split.percent,
      header: split.header === undefined ? row.header : split.header,
      keys: split.keys ?? (JSON.parse(row.keys) as string[]),
    });
    await tx.updateTable('canaries').set(columns).where('deployment_id', '=', deploymentId).execute();
    change.record({
      action: 'rollout.canary_changed',
      owner,
      target: { type: 'deployment', id: deploymentId },
      before: { percent: row.percent },
      after: { version: row.version_number, percent: split.percent },
    });
    return async () => toView(await demandRow(tx, deploymentId));
  });
}

/** Decides about a running canary. The controller follows. */
export function decideCanary(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  decision: 'promoting' | 'rolling_back',
): Promise<CanaryView> {
  return changeDeployment(context, actor, deploymentId, async ({ deployment, change, owner }) => {
    const row = await demandRunning(change.tx, deploymentId);
    setState(deployment, row, decision, decision === 'promoting' ? null : 'a user rolled it back', context.loopNow());
    change.record({
      action: decision === 'promoting' ? 'rollout.promote' : 'rollout.roll_back',
      owner,
      target: { type: 'deployment', id: deploymentId },
      after: { version: row.version_number },
    });
    return async () => toView(await demandRow(change.tx, deploymentId));
  });
}

function setState(
  { canary }: DeploymentRecord,
  row: CanaryRow,
  state: CanaryState,
  reason: string | null,
  nowMs: number,
): void {
  if (canary?.versionId !== row.version_id)
    throw new ServiceError('wrong_state', 'the deployment has no running canary');
  Object.assign(canary, { state, reason, decidedAt: nowMs });
}

/** Rolls back a canary that breaks the rule, unless a user was faster. Returns whether it did. */
export function failCanary(
  { db, loopNow }: StoreContext,
  deploymentId: string,
  versionId: string,
  reason: string,
): Promise<boolean> {
  return controlTransaction(db, async (tx) => {
    const { numUpdatedRows } = await tx
      .updateTable('canaries')
      .set({ state: 'rolling_back', reason, decided_at: loopNow() })
      .where('deployment_id', '=', deploymentId)
      .where('version_id', '=', versionId)
      .where('state', '=', 'running')
      .executeTakeFirst();
    return numUpdatedRows > 0n;
  });
}

export async function saveCanaryStats(
  { db }: StoreContext,
  deploymentId: string,
  versionId: string,
  stats: CanaryStats,
): Promise<void> {
  await db
    .updateTable('canaries')
    .set({ stats: JSON.stringify(stats) })
    .where('deployment_id', '=', deploymentId)
    .where('version_id', '=', versionId)
    .execute();
}

/** Returns the statistics of a canary, to continue after a restart of the service. */
export async function readCanaryStats(
  { db }: StoreContext,
  deploymentId: string,
  versionId: string,
): Promise<CanaryStats> {
  const row = await db
    .selectFrom('canaries')
    .select('stats')
    .where('deployment_id', '=', deploymentId)
    .where('version_id', '=', versionId)
    .executeTakeFirst();
  return row === undefined ? NO_STATS : (JSON.parse(row.stats) as CanaryStats);
}

function findRow(db: ServiceDb | ServiceTx, deploymentId: string): Promise<CanaryRow | undefined> {
  return db.selectFrom('canaries').selectAll().where('deployment_id', '=', deploymentId).executeTakeFirst();
}

async function demandRow(db: ServiceDb | ServiceTx, deploymentId: string): Promise<CanaryRow> {
  const row = await findRow(db, deploymentId);
  if (row === undefined) throw new ServiceError('not_found', 'the deployment has had no canary');
  return row;
}

async function demandRunning(tx: ServiceTx, deploymentId: string): Promise<CanaryRow> {
  const row = await demandRow(tx, deploymentId);
  if (row.state !== 'running')
    throw new ServiceError('wrong_state', `the canary is ${row.state.replace('_', ' ')}: expected one that is running`);
  return row;
}

async function checkSplit(
  tx: ServiceTx,
  deploymentId: string,
  { percent, header = null, keys = [] }: CanarySplit,
): Promise<Pick<CanaryRow, 'percent' | 'header' | 'keys'>> {
  if (header !== null && !HEADER.test(header))
    throw new ServiceError('invalid_argument', 'header: expected a name and a value, such as X-Canary: yes');
  if (percent === 0 && header === null && keys.length === 0)
    throw new ServiceError('invalid_argument', 'percent: expected more than 0 without a header and keys');
  for (const id of keys) {
    const key = await tx
      .selectFrom('api_keys')
      .innerJoin('deployments', 'deployments.owner_id', 'api_keys.owner_id')
      .select('api_keys.id')
      .where('api_keys.id', '=', id)
      .where('deployments.id', '=', deploymentId)
      .executeTakeFirst();
    if (key === undefined) throw new ServiceError('invalid_argument', `keys: the owner has no key ${id}`);
  }
  return { percent, header, keys: JSON.stringify([...new Set(keys)]) };
}

function toView(row: CanaryRow): CanaryView {
  const { stable, canary } = JSON.parse(row.stats) as CanaryStats;
  return {
    version: row.version_number,
    percent: row.percent,
    header: row.header,
    keys: JSON.parse(row.keys) as string[],
    state: row.state,
    reason: row.reason,
    stable,
    canary,
    started_at: rfc3339(row.started_at),
    decided_at: rfc3339OrNull(row.decided_at),
  };
}
