import fs from 'node:fs';
import path from 'node:path';
import type { DataSource, Image, Owner } from '../api/objects';
import { newId } from '../access/ids';
import { checkText } from '../access/key-values';
import type { OwnerRef } from '../access/owners';
import { changeOptions, demandAdmin, type ServiceActor, visibleOwners } from './actor';
import { serviceChange } from './change';
import type { DataSourceRow, ImageRow } from './deployment-schema';
import { ServiceError } from './errors';
import { ownerViews, viewOf } from './owner-views';
import type { ServiceDb, ServiceTx } from './schema';
import { rfc3339 } from './times';

export const BUILTIN_IMAGE = 'capstan';
export const HOST_IMAGE = 'host';

export interface NewImageSpec {
  name: string;
  version: string;
  type: string;
  gpu_required?: boolean;
  default_start?: string | null;
}

export interface NewDataSourceSpec {
  name: string;
  type: DataSource['type'];
  /** A folder of this machine. */
  path: string;
  owner?: OwnerRef;
  visibility?: DataSource['visibility'];
  size_bytes?: number | null;
}

/** Everybody's images: the built-in runtime at this version, and the machine's own environment for start scripts. */
export async function seedImages(db: ServiceDb, version: string, nowMs: number): Promise<void> {
  for (const [name, of, type] of [[BUILTIN_IMAGE, version, 'builtin-runtime'], [HOST_IMAGE, '1', 'host-env']] as const) {
    await db.insertInto('images').values({
      id: newId('img', nowMs), name, version: of, type, gpu_required: 0, default_start: null, owner_type: null, owner_id: null, status: 'active', created_at: nowMs,
    }).onConflict((conflict) => conflict.columns(['name', 'version']).doNothing()).execute();
  }
}

/** The newest first. */
export async function listImages(db: ServiceDb): Promise<Image[]> {
  const rows = await db.selectFrom('images').selectAll().where('status', '=', 'active').orderBy('created_at', 'desc').orderBy('id').execute();
  return rows.map(toImage);
}

export async function createImage(db: ServiceDb, actor: ServiceActor, spec: NewImageSpec, nowMs: number): Promise<Image> {
  demandAdmin(actor);
  demandWrite(actor);
  if (spec.type !== 'host-env') throw new ServiceError('invalid_argument', `type: the process driver runs host-env images; ${spec.type === 'oci' ? 'container images need another driver' : 'the built-in runtime is there already'}`);
  const name = checkText('name', spec.name, 100);
  const version = checkText('version', spec.version, 100);
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    if (await tx.selectFrom('images').select('id').where('name', '=', name).where('version', '=', version).executeTakeFirst() !== undefined) throw new ServiceError('conflict', 'name: there is, or was, an image of this name and version');
    const row: ImageRow = {
      id: newId('img', nowMs), name, version, type: 'host-env', gpu_required: spec.gpu_required === true ? 1 : 0, default_start: spec.default_start ?? null, owner_type: null, owner_id: null, status: 'active', created_at: nowMs,
    };
    await tx.insertInto('images').values(row).execute();
    record({ action: 'image.created', owner: { type: 'user', id: actor.userId }, target: { type: 'image', id: row.id }, after: { name, version } });
    return toImage(row);
  });
}

/** What was made from it runs on, and can be started again. */
export async function deleteImage(db: ServiceDb, actor: ServiceActor, imageId: string, nowMs: number): Promise<void> {
  demandAdmin(actor);
  demandWrite(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    const row = await findImage(tx, imageId);
    if (row.type === 'builtin-runtime') throw new ServiceError('conflict', 'the built-in runtime cannot be deleted');
    await tx.updateTable('images').set({ status: 'deleted' }).where('id', '=', imageId).execute();
    record({ action: 'image.deleted', owner: { type: 'user', id: actor.userId }, target: { type: 'image', id: imageId }, before: { name: row.name, version: row.version } });
  });
}

/** Without an id: the built-in runtime, the newest. @throws ServiceError */
export async function findImage(tx: ServiceDb | ServiceTx, imageId?: string): Promise<ImageRow> {
  const query = tx.selectFrom('images').selectAll().where('status', '=', 'active');
  const row = await (imageId === undefined ? query.where('type', '=', 'builtin-runtime').orderBy('created_at', 'desc').orderBy('id', 'desc') : query.where('id', '=', imageId)).executeTakeFirst();
  if (row === undefined) throw new ServiceError('invalid_argument', `image_id: there is no image ${imageId ?? ''}`.trim());
  return row;
}

/** Those that somebody may bind: the own, those of the organizations and everybody's. */
export async function listDataSources(db: ServiceDb, actor: ServiceActor): Promise<DataSource[]> {
  const owners = await visibleOwners(db, actor);
  const rows = await db.selectFrom('data_sources').selectAll().orderBy('name').orderBy('id').execute();
  const seen = rows.filter((row) => isVisible(row, owners));
  const views = await ownerViews(db, seen.map(({ owner_type: type, owner_id: id }) => ({ type, id })));
  return seen.map((row) => toDataSource(row, viewOf(views, row.owner_id)));
}

/** A folder of the host becomes a data source for administrators alone, and only below a data root. */
export async function createDataSource(db: ServiceDb, actor: ServiceActor, spec: NewDataSourceSpec, dataRoots: readonly string[], nowMs: number): Promise<DataSource> {
  demandAdmin(actor);
  demandWrite(actor);
  const name = checkText('name', spec.name, 100);
  const folder = resolveInside(spec.path, dataRoots);
  if (folder === undefined) throw new ServiceError('invalid_argument', `path: expected an existing folder below ${dataRoots.join(' or ') || 'a --data-root, of which the service has none'}`);
  const owner = spec.owner ?? { type: 'user' as const, id: actor.userId };
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    // An administrator hands data to anybody.
    const views = await ownerViews(tx, [owner]);
    if (views.get(owner.id)?.type !== owner.type) throw new ServiceError('invalid_argument', `owner: there is no ${owner.type} ${owner.id}`);
    const row: DataSourceRow = {
      id: newId('src', nowMs), owner_type: owner.type, owner_id: owner.id, name, type: spec.type, locator: JSON.stringify({ path: folder }), visibility: spec.visibility ?? 'private', size_bytes: spec.size_bytes ?? null, created_at: nowMs,
    };
    if (await tx.selectFrom('data_sources').select('id').where('owner_id', '=', owner.id).where('name', '=', name).executeTakeFirst() !== undefined) throw new ServiceError('conflict', 'name: the owner has a data source of this name');
    await tx.insertInto('data_sources').values(row).execute();
    record({ action: 'source.created', owner, target: { type: 'source', id: row.id }, after: { name, type: row.type, visibility: row.visibility } });
    return toDataSource(row, viewOf(views, owner.id));
  });
}

export async function deleteDataSource(db: ServiceDb, actor: ServiceActor, sourceId: string, nowMs: number): Promise<void> {
  demandAdmin(actor);
  demandWrite(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    const row = await tx.selectFrom('data_sources').selectAll().where('id', '=', sourceId).executeTakeFirst();
    if (row === undefined) throw new ServiceError('not_found', 'there is no such data source');
    if (await tx.selectFrom('data_bindings').select('id').where('source_id', '=', sourceId).executeTakeFirst() !== undefined) throw new ServiceError('conflict', 'containers or versions are bound to it: delete those first');
    await tx.deleteFrom('data_sources').where('id', '=', sourceId).execute();
    record({ action: 'source.deleted', owner: { type: row.owner_type, id: row.owner_id }, target: { type: 'source', id: sourceId }, before: { name: row.name } });
  });
}

/** @throws ServiceError for what the actor does not see, as for what is not there. */
export async function demandSources(tx: ServiceTx, actor: ServiceActor, sourceIds: readonly string[]): Promise<void> {
  if (sourceIds.length === 0) return;
  const owners = await visibleOwners(tx, actor);
  const rows = await tx.selectFrom('data_sources').selectAll().where('id', 'in', sourceIds).execute();
  for (const id of sourceIds) {
    const row = rows.find((candidate) => candidate.id === id);
    if (row === undefined || !isVisible(row, owners)) throw new ServiceError('invalid_argument', `bindings: there is no data source ${id}`);
  }
}

/** As it is now, links followed; undefined when it is none, or leads out of the roots. */
export function resolveInside(folder: string, roots: readonly string[]): string | undefined {
  try {
    const real = fs.realpathSync(folder);
    if (!fs.statSync(real).isDirectory()) return undefined;
    return roots.some((root) => isBelow(real, root)) ? real : undefined;
  } catch {
    return undefined;
  }
}

function isBelow(real: string, root: string): boolean {
  try {
    const relative = path.relative(fs.realpathSync(root), real);
    return relative === '' || (relative !== '..' && !relative.startsWith(`..${path.sep}`) && !path.isAbsolute(relative));
  } catch {
    return false;
  }
}

/** To its owner, to the members of an organization that owns it, or to everybody. */
function isVisible({ owner_type: type, owner_id: id, visibility }: DataSourceRow, owners: readonly OwnerRef[]): boolean {
  return visibility === 'public' || owners.some((owner) => owner.type === type && owner.id === id);
}

export function demandWrite({ canWrite }: ServiceActor): void {
  if (!canWrite) throw new ServiceError('forbidden', 'this management token may only read');
}

function toImage({ id, name, version, type, gpu_required: gpuRequired, default_start, created_at: at }: ImageRow): Image {
  return { id, name, version, type, gpu_required: gpuRequired === 1, default_start, owner: null, created_at: rfc3339(at) };
}

function toDataSource({ id, name, type, visibility, size_bytes, created_at: at }: DataSourceRow, owner: Owner): DataSource {
  return { id, name, type, owner, visibility, size_bytes, created_at: rfc3339(at) };
}

