import type { DataSource, DataSourceDetails, DataSourceEdit, Owner } from '../api/objects';
import { newId } from '../access/ids';
import { checkText } from '../access/key-values';
import type { OwnerRef } from '../access/owners';
import { changeOptions, demandAdmin, type ServiceActor, visibleOwners } from './actor';
import { demandWrite } from './catalog';
import { serviceChange } from './change';
import { resolveInside } from './data-roots';
import type { DataSourceRow } from './deployment-schema';
import { ServiceError } from './errors';
import type { FolderMeasure } from './measure-folder';
import { ownerViews, viewOf } from './owner-views';
import type { ServiceDb, ServiceTx } from './schema';
import { rfc3339, rfc3339OrNull } from './times';

export interface NewDataSourceSpec {
  name: string;
  type: DataSource['type'];
  /** A folder of this machine. */
  path: string;
  description?: string | null;
  owner?: OwnerRef;
  visibility?: DataSource['visibility'];
}

const MAX_DESCRIPTION = 1_000;
/** Nothing is known of a folder until it is measured. */
const UNMEASURED = {
  size_bytes: null,
  num_files: null,
  digest: null,
  measure_state: 'pending',
  measure_message: null,
  measured_at: null,
} as const;

/** Those that somebody may bind: the own, those of the organizations and everybody's. */
export async function listDataSources(db: ServiceDb, actor: ServiceActor): Promise<DataSource[]> {
  const owners = await visibleOwners(db, actor);
  const rows = await db.selectFrom('data_sources').selectAll().orderBy('name').orderBy('id').execute();
  const seen = rows.filter((row) => isVisible(row, owners));
  const views = await ownerViews(db, seen.map(ownerOf));
  return seen.map((row) => toDataSource(row, viewOf(views, row.owner_id), actor));
}

/** What uses it too, as far as the actor sees that. */
export async function getDataSource(db: ServiceDb, actor: ServiceActor, sourceId: string): Promise<DataSourceDetails> {
  const row = await findSource(db, sourceId);
  const owners = await visibleOwners(db, actor);
  if (!actor.isAdmin && !isVisible(row, owners)) throw noSource();
  const views = await ownerViews(db, [ownerOf(row)]);
  const users = await listUsers(db, sourceId);
  const seen = users.filter(({ owner_id: id }) => owners.some((owner) => owner.id === id));
  return {
    ...toDataSource(row, viewOf(views, row.owner_id), actor),
    used_by_others: users.length - seen.length,
    used_by: seen.map(({ type, id, name, version, mount }) => ({ type, id, name, version, mount })),
  };
}

/** Versions that came to rest among them: each of them may be started again. */
async function listUsers(db: ServiceDb, sourceId: string) {
  const versions = await db
    .selectFrom('data_bindings')
    .innerJoin('deployment_versions', 'deployment_versions.id', 'version_id')
    .innerJoin('deployments', 'deployments.id', 'deployment_id')
    .select(['deployments.id', 'name', 'owner_id', 'number', 'mount'])
    .where('source_id', '=', sourceId)
    .orderBy('name')
    .orderBy('number')
    .orderBy('mount')
    .execute();
  const containers = await db
    .selectFrom('data_bindings')
    .innerJoin('containers', 'containers.id', 'container_id')
    .select(['containers.id', 'name', 'owner_id', 'mount'])
    .where('source_id', '=', sourceId)
    .orderBy('name')
    .orderBy('mount')
    .execute();
  return [
    ...versions.map(({ number, ...row }) => ({ ...row, type: 'deployment' as const, version: number })),
    ...containers.map((row) => ({ ...row, type: 'container' as const, version: null })),
  ];
}

/** A folder of the host becomes a data source for administrators alone, and only below a data root. */
export async function createDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  spec: NewDataSourceSpec,
  dataRoots: readonly string[],
  nowMs: number,
): Promise<DataSource> {
  demandAdmin(actor);
  demandWrite(actor);
  const name = checkText('name', spec.name, 100);
  const folder = demandFolder(spec.path, dataRoots);
  const description = checkDescription(spec.description ?? null);
  const owner = spec.owner ?? { type: 'user' as const, id: actor.userId };
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    // An administrator hands data to anybody.
    const views = await ownerViews(tx, [owner]);
    if (views.get(owner.id)?.type !== owner.type)
      throw new ServiceError('invalid_argument', `owner: there is no ${owner.type} ${owner.id}`);
    const row: DataSourceRow = {
      id: newId('src', nowMs),
      owner_type: owner.type,
      owner_id: owner.id,
      name,
      description,
      type: spec.type,
      locator: locatorOf(folder),
      visibility: spec.visibility ?? 'private',
      ...UNMEASURED,
      created_at: nowMs,
      updated_at: nowMs,
      rev,
    };
    await demandFreeName(tx, row);
    await tx.insertInto('data_sources').values(row).execute();
    record({ action: 'source.created', owner, target: { type: 'source', id: row.id }, after: auditView(row) });
    return toDataSource(row, viewOf(views, owner.id), actor);
  });
}

/** Where it lies can change only while nothing is bound to it: what a version runs never changes. Another folder is measured anew. */
export async function editDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  edit: DataSourceEdit,
  dataRoots: readonly string[],
  nowMs: number,
  ifRev?: number,
): Promise<DataSource> {
  demandAdmin(actor);
  demandWrite(actor);
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await findSource(tx, sourceId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', 'the data source was changed meanwhile');
    const locator = edit.path === undefined ? before.locator : locatorOf(demandFolder(edit.path, dataRoots));
    if (locator !== before.locator) await demandUnbound(tx, sourceId, 'its folder cannot change');
    const after: DataSourceRow = {
      ...before,
      name: edit.name === undefined ? before.name : checkText('name', edit.name, 100),
      description: edit.description === undefined ? before.description : checkDescription(edit.description),
      visibility: edit.visibility ?? before.visibility,
      locator,
      ...(locator === before.locator ? {} : UNMEASURED),
      updated_at: nowMs,
      rev,
    };
    if (after.name !== before.name) await demandFreeName(tx, after);
    await tx.updateTable('data_sources').set(after).where('id', '=', sourceId).execute();
    record({
      action: 'source.updated',
      owner: ownerOf(before),
      target: { type: 'source', id: sourceId },
      before: auditView(before),
      after: auditView(after),
    });
    return toDataSource(after, viewOf(await ownerViews(tx, [ownerOf(after)]), after.owner_id), actor);
  });
}

export async function deleteDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  nowMs: number,
): Promise<void> {
  demandAdmin(actor);
  demandWrite(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    const row = await findSource(tx, sourceId);
    await demandUnbound(tx, sourceId, 'it cannot be deleted');
    await tx.deleteFrom('data_sources').where('id', '=', sourceId).execute();
    record({
      action: 'source.deleted',
      owner: ownerOf(row),
      target: { type: 'source', id: sourceId },
      before: auditView(row),
    });
  });
}

/** To be measured anew, or not any more: what is known stays until then. */
export async function wishMeasure(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  wish: 'pending' | 'cancelled',
): Promise<DataSource> {
  demandAdmin(actor);
  demandWrite(actor);
  const row = await findSource(db, sourceId);
  if (wish === 'cancelled' && row.measure_state !== 'pending')
    throw new ServiceError('wrong_state', 'the data source is not being measured');
  const after = { ...row, measure_state: wish, measure_message: null };
  await db
    .updateTable('data_sources')
    .set({ measure_state: wish, measure_message: null })
    .where('id', '=', sourceId)
    .execute();
  return toDataSource(after, viewOf(await ownerViews(db, [ownerOf(row)]), row.owner_id), actor);
}

/** The one that has waited longest. */
export async function findUnmeasured(
  db: ServiceDb,
): Promise<{ id: string; locator: string; path: string } | undefined> {
  const row = await db
    .selectFrom('data_sources')
    .select(['id', 'locator'])
    .where('measure_state', '=', 'pending')
    .orderBy('updated_at')
    .orderBy('id')
    .limit(1)
    .executeTakeFirst();
  return row === undefined ? undefined : { ...row, path: pathOf(row) };
}

/** Only of the folder that was measured, and while somebody wants to know. */
export async function saveMeasure(
  db: ServiceDb,
  { id, locator }: { id: string; locator: string },
  outcome: FolderMeasure | { error: string },
  nowMs: number,
): Promise<void> {
  const known =
    'error' in outcome
      ? {
          measure_state: 'failed' as const,
          measure_message: outcome.error,
          size_bytes: null,
          num_files: null,
          digest: null,
        }
      : {
          measure_state: 'measured' as const,
          measure_message: outcome.note,
          size_bytes: outcome.sizeBytes,
          num_files: outcome.numFiles,
          digest: outcome.digest,
        };
  await db
    .updateTable('data_sources')
    .set({ ...known, measured_at: nowMs })
    .where('id', '=', id)
    .where('locator', '=', locator)
    .where('measure_state', '=', 'pending')
    .execute();
}

/** @throws ServiceError for what the actor does not see, as for what is not there. */
export async function demandSources(tx: ServiceTx, actor: ServiceActor, sourceIds: readonly string[]): Promise<void> {
  if (sourceIds.length === 0) return;
  const owners = await visibleOwners(tx, actor);
  const rows = await tx.selectFrom('data_sources').selectAll().where('id', 'in', sourceIds).execute();
  for (const id of sourceIds) {
    const row = rows.find((candidate) => candidate.id === id);
    if (row === undefined || !isVisible(row, owners))
      throw new ServiceError('invalid_argument', `bindings: there is no data source ${id}`);
  }
}

/** To its owner, to the members of an organization that owns it, or to everybody. */
function isVisible(
  { owner_type: type, owner_id: id, visibility }: DataSourceRow,
  owners: readonly OwnerRef[],
): boolean {
  return visibility === 'public' || owners.some((owner) => owner.type === type && owner.id === id);
}

async function findSource(db: ServiceDb | ServiceTx, sourceId: string): Promise<DataSourceRow> {
  const row = await db.selectFrom('data_sources').selectAll().where('id', '=', sourceId).executeTakeFirst();
  if (row === undefined) throw noSource();
  return row;
}

function noSource(): ServiceError {
  return new ServiceError('not_found', 'there is no such data source');
}

async function demandFreeName(tx: ServiceTx, { id, owner_id: ownerId, name }: DataSourceRow): Promise<void> {
  const other = await tx
    .selectFrom('data_sources')
    .select('id')
    .where('owner_id', '=', ownerId)
    .where('name', '=', name)
    .where('id', '!=', id)
    .executeTakeFirst();
  if (other !== undefined) throw new ServiceError('conflict', 'name: the owner has a data source of this name');
}

async function demandUnbound(tx: ServiceTx, sourceId: string, what: string): Promise<void> {
  const { count } = await tx
    .selectFrom('data_bindings')
    .select((eb) => eb.fn.count<number | string>(eb.fn.coalesce('version_id', 'container_id')).distinct().as('count'))
    .where('source_id', '=', sourceId)
    .executeTakeFirstOrThrow();
  if (Number(count) > 0)
    throw new ServiceError(
      'conflict',
      `${what}: ${Number(count) === 1 ? 'a container or version is bound to it, and has' : `${Number(count)} containers or versions are bound to it, and have`} to be deleted first`,
    );
}

function demandFolder(folder: string, dataRoots: readonly string[]): string {
  const found = resolveInside(folder, dataRoots);
  if (found === undefined)
    throw new ServiceError(
      'invalid_argument',
      `path: expected an existing folder below ${dataRoots.join(' or ') || 'a --data-root, of which the service has none'}`,
    );
  return found;
}

function checkDescription(text: string | null): string | null {
  return text === null || text.trim() === '' ? null : checkText('description', text, MAX_DESCRIPTION);
}

function locatorOf(folder: string): string {
  return JSON.stringify({ path: folder });
}

function pathOf({ locator }: { locator: string }): string {
  return (JSON.parse(locator) as { path: string }).path;
}

function ownerOf({ owner_type: type, owner_id: id }: DataSourceRow) {
  return { type, id };
}

function auditView({ name, description, type, visibility }: DataSourceRow): object {
  return { name, description, type, visibility };
}

/** Where it lies is for administrators. */
function toDataSource(row: DataSourceRow, owner: Owner, { isAdmin }: ServiceActor): DataSource {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    type: row.type,
    owner,
    visibility: row.visibility,
    path: isAdmin ? pathOf(row) : null,
    size_bytes: row.size_bytes,
    file_count: row.num_files,
    digest: row.digest,
    measurement: { state: row.measure_state, message: row.measure_message, at: rfc3339OrNull(row.measured_at) },
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    rev: row.rev,
  };
}
