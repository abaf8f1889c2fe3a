import type { Image } from '../api/objects';
import { newId } from '../access/ids';
import { checkText } from '../access/key-values';
import { changeOptions, demandAdmin, type ServiceActor } from './actor';
import { serviceChange } from './change';
import type { ImageRow } from './deployment-schema';
import { ServiceError } from './errors';
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

/** Everybody's images: the built-in runtime at this version, and the machine's own environment for start scripts. */
export async function seedImages(db: ServiceDb, version: string, nowMs: number): Promise<void> {
  for (const [name, of, type] of [
    [BUILTIN_IMAGE, version, 'builtin-runtime'],
    [HOST_IMAGE, '1', 'host-env'],
  ] as const) {
    await db
      .insertInto('images')
      .values({
        id: newId('img', nowMs),
        name,
        version: of,
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

/** The newest first. */
export async function listImages(db: ServiceDb): Promise<Image[]> {
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
): Promise<Image> {
  demandAdmin(actor);
  demandWrite(actor);
  if (spec.type !== 'host-env')
    throw new ServiceError(
      'invalid_argument',
      `type: the process driver runs host-env images; ${spec.type === 'oci' ? 'container images need another driver' : 'the built-in runtime is there already'}`,
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
      throw new ServiceError('conflict', 'name: there is, or was, an image of this name and version');
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

/** What was made from it runs on, and can be started again. */
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

/** Without an id: the built-in runtime, the newest. @throws ServiceError */
export async function findImage(tx: ServiceDb | ServiceTx, imageId?: string): Promise<ImageRow> {
  const query = tx.selectFrom('images').selectAll().where('status', '=', 'active');
  const row = await (
    imageId === undefined
      ? query.where('type', '=', 'builtin-runtime').orderBy('created_at', 'desc').orderBy('id', 'desc')
      : query.where('id', '=', imageId)
  ).executeTakeFirst();
  if (row === undefined)
    throw new ServiceError('invalid_argument', `image_id: there is no image ${imageId ?? ''}`.trim());
  return row;
}

export function demandWrite({ canWrite }: ServiceActor): void {
  if (!canWrite) throw new ServiceError('forbidden', 'this management token may only read');
}

function toImage({
  id,
  name,
  version,
  type,
  gpu_required: gpuRequired,
  default_start,
  created_at: at,
}: ImageRow): Image {
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
