import { checkText, newId } from 'capstan/internal';
import { changeOptions, demandAdmin, type ServiceActor } from '../accounts/actor';
import { serviceChange } from '../store/change';
import type { ImageRow } from '../store/deployment-schema';
import type { OwnerView } from './owner-views';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { rfc3339 } from '../store/times';

const BUILTIN_IMAGE = 'capstan';
const HOST_IMAGE = 'host';

export interface ImageView {
  id: string;
  name: string;
  version: string;
  type: ImageRow['type'];
  gpu_required: boolean;
  default_start: string | null;
  owner: OwnerView | null;
  created_at: string;
}

export interface NewImageSpec {
  name: string;
  version: string;
  type: string;
  gpu_required?: boolean;
  default_start?: string | null;
}

/** Inserts the images that all users have: this version of the built-in runtime, and the host for start scripts. */
export async function seedImages(db: ServiceDb, version: string, nowMs: number): Promise<void> {
  for (const [name, imageVersion, type] of [
    [BUILTIN_IMAGE, version, 'builtin-runtime'],
    [HOST_IMAGE, '1', 'host-env'],
  ] as const) {
    await db
      .insertInto('images')
      .values({
        id: newId('img', nowMs),
        name,
        version: imageVersion,
        type,
        gpu_required: 0,
        default_start: null,
        owner_type: null,
        owner_id: null,
        status: 'active',
        created_at: nowMs,
      })
      .onConflict((conflict) => conflict.columns(['name', 'version']).doNothing())
      .execute();
  }
}

/** Returns the active images, newest first. */
export async function listImages(db: ServiceDb): Promise<ImageView[]> {
  const rows = await db
    .selectFrom('images')
    .selectAll()
    .where('status', '=', 'active')
    .orderBy('created_at', 'desc')
    .orderBy('id')
    .execute();
  return rows.map(toImage);
}

export async function createImage(
  db: ServiceDb,
  actor: ServiceActor,
  spec: NewImageSpec,
  nowMs: number,
): Promise<ImageView> {
  demandAdmin(actor);
  demandWrite(actor);
  if (spec.type !== 'host-env')
    throw new ServiceError(
      'invalid_argument',
      `type: the process driver only supports new images of type host-env, got ${spec.type}`,
    );
  const name = checkText('name', spec.name, 100);
  const version = checkText('version', spec.version, 100);
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    if (
      (await tx
        .selectFrom('images')
        .select('id')
        .where('name', '=', name)
        .where('version', '=', version)
        .executeTakeFirst()) !== undefined
    )
      throw new ServiceError(
        'conflict',
        'name: an image with this name and version exists or was deleted: choose another version',
      );
    const row: ImageRow = {
      id: newId('img', nowMs),
      name,
      version,
      type: 'host-env',
      gpu_required: spec.gpu_required === true ? 1 : 0,
      default_start: spec.default_start ?? null,
      owner_type: null,
      owner_id: null,
      status: 'active',
      created_at: nowMs,
    };
    await tx.insertInto('images').values(row).execute();
    record({
      action: 'image.created',
      owner: { type: 'user', id: actor.userId },
      target: { type: 'image', id: row.id },
      after: { name, version },
    });
    return toImage(row);
  });
}

/** Hides the image from new specs. Versions and containers that use it keep running and can be restarted. */
export async function deleteImage(db: ServiceDb, actor: ServiceActor, imageId: string, nowMs: number): Promise<void> {
  demandAdmin(actor);
  demandWrite(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    const row = await findImage(tx, imageId);
    if (row.type === 'builtin-runtime') throw new ServiceError('conflict', 'the built-in runtime cannot be deleted');
    await tx.updateTable('images').set({ status: 'deleted' }).where('id', '=', imageId).execute();
    record({
      action: 'image.deleted',
      owner: { type: 'user', id: actor.userId },
      target: { type: 'image', id: imageId },
      before: { name: row.name, version: row.version },
    });
  });
}

/**
 * Returns an active image. Without `imageId`, returns the newest version of the built-in runtime.
 * @throws ServiceError `invalid_argument`
 */
export async function findImage(tx: ServiceDb | ServiceTx, imageId?: string): Promise<ImageRow> {
  const query = tx.selectFrom('images').selectAll().where('status', '=', 'active');
  const row = await (
    imageId === undefined
      ? query.where('type', '=', 'builtin-runtime').orderBy('created_at', 'desc').orderBy('id', 'desc')
      : query.where('id', '=', imageId)
  ).executeTakeFirst();
  if (row === undefined)
    throw new ServiceError(
      'invalid_argument',
      imageId === undefined ? 'image_id: the built-in runtime is missing' : `image_id: image ${imageId} not found`,
    );
  return row;
}

export function demandWrite({ canWrite }: ServiceActor): void {
  if (!canWrite) throw new ServiceError('forbidden', 'this management token is read-only');
}

function toImage({
  id,
  name,
  version,
  type,
  gpu_required: gpuRequired,
  default_start,
  created_at: at,
}: ImageRow): ImageView {
  return {
    id,
    name,
    version,
    type,
    gpu_required: gpuRequired === 1,
    default_start,
    owner: null,
    created_at: rfc3339(at),
  };
}
