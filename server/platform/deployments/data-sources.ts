import { checkText, newId, type OwnerRef } from 'capstan/internal';
import { changeOptions, demandAdmin, demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { demandWrite } from './catalog';
import { serviceChange } from '../store/change';
import { resolveInside } from './data-roots';
import type { DataPullRow, DataSourceRow, Mount } from '../store/deployment-schema';
import { ServiceError } from '../store/errors';
import type { FolderMeasure } from './measure-folder';
import { type OwnerView, ownerViews, viewOf } from './owner-views';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { rfc3339, rfc3339OrNull } from '../store/times';

export interface DataSourceView {
  id: string;
  name: string;
  description: string | null;
  type: DataSourceRow['type'];
  owner: OwnerView;
  visibility: DataSourceRow['visibility'];
  /** Null for everyone but administrators. */
  path: string | null;
  /** The size, file count and digest come from the last measurement. Null before the first one. */
  size_bytes: number | null;
  file_count: number | null;
  digest: string | null;
  measurement: { state: DataSourceRow['measure_state']; message: string | null; at: string | null };
  /** The model from the hub that fills the source. Null for a folder of an administrator. */
  pull: DataPullView | null;
  created_at: string;
  updated_at: string;
  rev: number;
}

export interface DataPullView {
  hub: DataPullRow['hub'];
  model: string;
  state: DataPullRow['state'];
  /** Whether the source holds a complete model. */
  is_filled: boolean;
  error: { code: string; message: string } | null;
  note: string | null;
  commit: string | null;
  format: string | null;
  quantization: string | null;
  done_bytes: number;
  total_bytes: number | null;
  bytes_per_second: number | null;
  has_token: boolean;
  requested_at: string;
  ended_at: string | null;
}

export interface DataSourceDetails extends DataSourceView {
  /** The versions and containers visible to the actor that bind this source. */
  used_by: { type: 'deployment' | 'container'; id: string; name: string; version: number | null; mount: Mount }[];
  /** The number of bindings that the actor cannot see. */
  used_by_others: number;
}

export interface NewDataSourceSpec {
  name: string;
  type: DataSourceView['type'];
  /** A folder of this machine. */
  path: string;
  description?: string | null;
  owner?: OwnerRef;
  visibility?: DataSourceView['visibility'];
}

export type DataSourceEdit = Partial<Pick<NewDataSourceSpec, 'name' | 'description' | 'path' | 'visibility'>>;

const MAX_DESCRIPTION = 1_000;
export const UNMEASURED = {
  size_bytes: null,
  num_files: null,
  digest: null,
  measure_state: 'pending',
  measure_message: null,
  measured_at: null,
} as const;

/** Returns the sources that `actor` may bind: personal ones, those of their organizations, and public ones. */
export async function listDataSources(db: ServiceDb, actor: ServiceActor): Promise<DataSourceView[]> {
  const owners = await visibleOwners(db, actor);
  const rows = await db.selectFrom('data_sources').selectAll().orderBy('name').orderBy('id').execute();
  const seen = rows.filter((row) => isVisible(row, owners));
  return toDataSources(db, seen, actor);
}

/** Returns a source without a check of rights. */
export async function readSource(
  db: ServiceDb | ServiceTx,
  actor: ServiceActor,
  sourceId: string,
): Promise<DataSourceView> {
  return (await toDataSources(db, [await findSource(db, sourceId)], actor))[0];
}

/** @throws ServiceError `not_found` */
export async function getDataSource(db: ServiceDb, actor: ServiceActor, sourceId: string): Promise<DataSourceDetails> {
  const row = await findSource(db, sourceId);
  const owners = await visibleOwners(db, actor);
  if (!actor.isAdmin && !isVisible(row, owners)) throw noSource();
  const [source] = await toDataSources(db, [row], actor);
  const users = await listUsers(db, sourceId);
  const seen = users.filter(({ owner_id: id }) => owners.some((owner) => owner.id === id));
  return {
    ...source,
    used_by_others: users.length - seen.length,
    used_by: seen.map(({ type, id, name, version, mount }) => ({ type, id, name, version, mount })),
  };
}

/** Returns the bindings of a source. Stopped versions count, because they may be started again. */
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

/** Makes a folder of this machine a data source. Administrators only; the folder must be below a data root. */
export async function createDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  spec: NewDataSourceSpec,
  dataRoots: readonly string[],
  nowMs: number,
): Promise<DataSourceView> {
  demandAdmin(actor);
  demandWrite(actor);
  const name = checkText('name', spec.name, 100);
  const folder = demandFolder(spec.path, dataRoots);
  const description = checkDescription(spec.description ?? null);
  const owner = spec.owner ?? { type: 'user' as const, id: actor.userId };
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    // The owner may be any account or organization, not only the actor's.
    const views = await ownerViews(tx, [owner]);
    if (views.get(owner.id)?.type !== owner.type)
      throw new ServiceError('invalid_argument', `owner: ${owner.type} ${owner.id} not found`);
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
    return readSource(tx, actor, row.id);
  });
}

/** Changes a source. Its folder can change only while nothing is bound to it, because versions are immutable. */
export async function editDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  edit: DataSourceEdit,
  dataRoots: readonly string[],
  nowMs: number,
  ifRev?: number,
): Promise<DataSourceView> {
  demandAdmin(actor);
  demandWrite(actor);
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await findSource(tx, sourceId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', `the data source has changed: its revision is ${before.rev}, not ${ifRev}`);
    const locator = edit.path === undefined ? before.locator : locatorOf(demandFolder(edit.path, dataRoots));
    if (locator !== before.locator) {
      if (await isPulled(tx, sourceId))
        throw new ServiceError('conflict', 'path: the service keeps the model of this data source in its own folder');
      await demandUnbound(tx, sourceId, 'cannot change the folder');
    }
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
    return readSource(tx, actor, sourceId);
  });
}

/**
 * Deletes a source: an administrator any, others one that they pulled. Returns the folder that the caller must delete
 * then: that of a model from the hub. The folders of administrators are kept.
 */
export async function deleteDataSource(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  nowMs: number,
): Promise<string | null> {
  demandWrite(actor);
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    const pulled = await isPulled(tx, sourceId);
    if (!pulled) demandAdmin(actor);
    const row = await findSource(tx, sourceId);
    if (!actor.isAdmin) await demandOwner(tx, actor, ownerOf(row), 'source.write');
    await demandUnbound(tx, sourceId, 'cannot delete the data source');
    await tx.deleteFrom('data_sources').where('id', '=', sourceId).execute();
    record({
      action: 'source.deleted',
      owner: ownerOf(row),
      target: { type: 'source', id: sourceId },
      before: auditView(row),
    });
    return pulled ? pathOf(row) : null;
  });
}

/** Requests a measurement or cancels it. The previous result stays until the next one. */
export async function setMeasureState(
  db: ServiceDb,
  actor: ServiceActor,
  sourceId: string,
  state: 'pending' | 'cancelled',
): Promise<DataSourceView> {
  demandAdmin(actor);
  demandWrite(actor);
  const row = await findSource(db, sourceId);
  if (state === 'cancelled' && row.measure_state !== 'pending')
    throw new ServiceError('wrong_state', 'the data source is not being measured');
  await db
    .updateTable('data_sources')
    .set({ measure_state: state, measure_message: null })
    .where('id', '=', sourceId)
    .execute();
  return readSource(db, actor, sourceId);
}

/** Returns the source that has been pending longest. One that a pull fills has no folder before the pull ends. */
export async function findUnmeasured(
  db: ServiceDb,
): Promise<{ id: string; locator: string; path: string } | undefined> {
  const row = await db
    .selectFrom('data_sources')
    .select(['id', 'locator'])
    .where('measure_state', '=', 'pending')
    .where('id', 'not in', (eb) => eb.selectFrom('data_pulls').select('source_id').where('is_filled', '=', 0))
    .orderBy('updated_at')
    .orderBy('id')
    .limit(1)
    .executeTakeFirst();
  return row === undefined ? undefined : { ...row, path: pathOf(row) };
}

/** Saves a result, unless the folder changed or the measurement was cancelled meanwhile. */
export async function saveMeasure(
  db: ServiceDb,
  { id, locator }: { id: string; locator: string },
  outcome: FolderMeasure | { error: string },
  nowMs: number,
): Promise<void> {
  const result =
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
    .set({ ...result, measured_at: nowMs })
    .where('id', '=', id)
    .where('locator', '=', locator)
    .where('measure_state', '=', 'pending')
    .execute();
}

/** @throws ServiceError `invalid_argument` if a source does not exist or is not visible to `actor`. */
export async function demandSources(tx: ServiceTx, actor: ServiceActor, sourceIds: readonly string[]): Promise<void> {
  if (sourceIds.length === 0) return;
  const owners = await visibleOwners(tx, actor);
  const rows = await tx.selectFrom('data_sources').selectAll().where('id', 'in', sourceIds).execute();
  for (const id of sourceIds) {
    const row = rows.find((candidate) => candidate.id === id);
    if (row === undefined || !isVisible(row, owners))
      throw new ServiceError('invalid_argument', `bindings: data source ${id} not found`);
  }
}

/**
 * Checks that `actor` may write a data source: its owner, or an administrator of the organization that owns it. It is
 * not enough that a source is visible.
 * @throws ServiceError `forbidden`
 */
export async function demandWritable(tx: ServiceTx, actor: ServiceActor, sourceId: string): Promise<void> {
  const owners = await visibleOwners(tx, actor, 'source.write');
  const source = await findSource(tx, sourceId);
  if (owners.some(({ type, id }) => type === source.owner_type && id === source.owner_id)) return;
  throw new ServiceError(
    'forbidden',
    `bindings: a container writes to its home, and only the owner of data source ${sourceId} or an administrator of its organization may write to it. Bind it as an input instead`,
  );
}

/** `owners` are the actor and their organizations. */
export function isVisible(
  { owner_type: type, owner_id: id, visibility }: DataSourceRow,
  owners: readonly OwnerRef[],
): boolean {
  return visibility === 'public' || owners.some((owner) => owner.type === type && owner.id === id);
}

export async function findSource(db: ServiceDb | ServiceTx, sourceId: string): Promise<DataSourceRow> {
  const row = await db.selectFrom('data_sources').selectAll().where('id', '=', sourceId).executeTakeFirst();
  if (row === undefined) throw noSource();
  return row;
}

function noSource(): ServiceError {
  return new ServiceError('not_found', 'data source not found');
}

export async function demandFreeName(tx: ServiceTx, { id, owner_id: ownerId, name }: DataSourceRow): Promise<void> {
  const other = await tx
    .selectFrom('data_sources')
    .select('id')
    .where('owner_id', '=', ownerId)
    .where('name', '=', name)
    .where('id', '!=', id)
    .executeTakeFirst();
  if (other !== undefined)
    throw new ServiceError('conflict', 'name: the owner already has a data source with this name');
}

export async function demandUnbound(tx: ServiceTx, sourceId: string, refusal: string): Promise<void> {
  const { count } = await tx
    .selectFrom('data_bindings')
    .select((eb) => eb.fn.count<number | string>(eb.fn.coalesce('version_id', 'container_id')).distinct().as('count'))
    .where('source_id', '=', sourceId)
    .executeTakeFirstOrThrow();
  if (Number(count) === 0) return;
  const users =
    Number(count) === 1 ? 'container or version that uses it' : `${Number(count)} containers or versions that use it`;
  throw new ServiceError('conflict', `${refusal}: delete the ${users} first`);
}

function demandFolder(folder: string, dataRoots: readonly string[]): string {
  const found = resolveInside(folder, dataRoots);
  if (found === undefined)
    throw new ServiceError(
      'invalid_argument',
      `path: expected an existing folder below ${dataRoots.join(' or ') || 'a data root: start the service with --data-root'}`,
    );
  return found;
}

export function checkDescription(text: string | null): string | null {
  return text === null || text.trim() === '' ? null : checkText('description', text, MAX_DESCRIPTION);
}

export function locatorOf(folder: string): string {
  return JSON.stringify({ path: folder });
}

export function pathOf({ locator }: { locator: string }): string {
  return (JSON.parse(locator) as { path: string }).path;
}

function ownerOf({ owner_type: type, owner_id: id }: DataSourceRow) {
  return { type, id };
}

function auditView({ name, description, type, visibility }: DataSourceRow): object {
  return { name, description, type, visibility };
}

async function isPulled(tx: ServiceTx, sourceId: string): Promise<boolean> {
  const row = await tx
    .selectFrom('data_pulls')
    .select('source_id')
    .where('source_id', '=', sourceId)
    .executeTakeFirst();
  return row !== undefined;
}

async function toDataSources(
  db: ServiceDb | ServiceTx,
  rows: readonly DataSourceRow[],
  actor: ServiceActor,
): Promise<DataSourceView[]> {
  if (rows.length === 0) return [];
  const views = await ownerViews(db, rows.map(ownerOf));
  const ids = rows.map(({ id }) => id);
  const pulls = await db.selectFrom('data_pulls').selectAll().where('source_id', 'in', ids).execute();
  const pullOf = new Map(pulls.map((pull) => [pull.source_id, pull]));
  return rows.map((row) => toDataSource(row, viewOf(views, row.owner_id), pullOf.get(row.id), actor));
}

function toPull(row: DataPullRow): DataPullView {
  return {
    hub: row.hub,
    model: row.model,
    state: row.state,
    is_filled: row.is_filled === 1,
    error: row.error_code === null ? null : { code: row.error_code, message: row.message ?? '' },
    note: row.note,
    commit: row.commit_id,
    format: row.format,
    quantization: row.quantization,
    done_bytes: row.done_bytes,
    total_bytes: row.total_bytes,
    bytes_per_second: row.bytes_per_second,
    has_token: row.token !== null,
    requested_at: rfc3339(row.requested_at),
    ended_at: rfc3339OrNull(row.ended_at),
  };
}

function toDataSource(
  row: DataSourceRow,
  owner: OwnerView,
  pull: DataPullRow | undefined,
  { isAdmin }: ServiceActor,
): DataSourceView {
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
    pull: pull === undefined ? null : toPull(pull),
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    rev: row.rev,
  };
}
