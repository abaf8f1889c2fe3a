import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** Where requests go that a deployment cannot serve. */
export interface Fallbacks {
  /** In the order of the attempts. */
  deployments: { id: string; name: string }[];
  /** null: the limit of the gateway. */
  firstByteMs: number | null;
}

export const NO_FALLBACKS: Fallbacks = { deployments: [], firstByteMs: null };

/** The fields of a request. Missing ones keep their value. */
export interface FallbackEdit {
  /** Names or ids. Replaces all fallbacks. */
  fallbacks?: readonly string[];
  fallback_after_s?: number | null;
}

/** Returns the fallbacks as users see them. */
export function fallbackView({ deployments, firstByteMs }: Fallbacks = NO_FALLBACKS): {
  fallbacks: string[];
  fallback_after_s: number | null;
} {
  return {
    fallbacks: deployments.map(({ name }) => name),
    fallback_after_s: firstByteMs === null ? null : firstByteMs / 1_000,
  };
}

/** Returns the fallbacks of deployments by their ids. */
export async function fallbacksOf(db: ServiceDb | ServiceTx, ids: readonly string[]): Promise<Map<string, Fallbacks>> {
  const found = new Map<string, Fallbacks>();
  if (ids.length === 0) return found;
  const rows = await db
    .selectFrom('deployment_fallbacks')
    .innerJoin('deployments', 'deployments.id', 'fallback_id')
    .select(['deployment_id', 'deployments.id', 'name'])
    .where('deployment_id', 'in', ids)
    .orderBy('position')
    .execute();
  const limits = await db.selectFrom('fallback_limits').selectAll().where('deployment_id', 'in', ids).execute();
  for (const id of ids)
    found.set(id, {
      deployments: rows.filter((row) => row.deployment_id === id).map((row) => ({ id: row.id, name: row.name })),
      firstByteMs: limits.find((row) => row.deployment_id === id)?.first_byte_ms ?? null,
    });
  return found;
}

/** Writes the fields that `edit` has. @throws ServiceError `invalid_argument` */
export async function writeFallbacks(
  tx: ServiceTx,
  ownerId: string,
  deploymentId: string,
  { fallbacks, fallback_after_s: seconds }: FallbackEdit,
): Promise<void> {
  if (fallbacks !== undefined) {
    const ids = await demandFallbacks(tx, ownerId, deploymentId, fallbacks);
    await tx.deleteFrom('deployment_fallbacks').where('deployment_id', '=', deploymentId).execute();
    const rows = ids.map((id, position) => ({ deployment_id: deploymentId, position, fallback_id: id }));
    if (rows.length > 0) await tx.insertInto('deployment_fallbacks').values(rows).execute();
  }
  if (seconds === undefined) return;
  await tx.deleteFrom('fallback_limits').where('deployment_id', '=', deploymentId).execute();
  if (seconds === null) return;
  await tx
    .insertInto('fallback_limits')
    .values({ deployment_id: deploymentId, first_byte_ms: seconds * 1_000 })
    .execute();
}

async function demandFallbacks(
  tx: ServiceTx,
  ownerId: string,
  deploymentId: string,
  references: readonly string[],
): Promise<string[]> {
  const rows = await tx
    .selectFrom('deployments')
    .innerJoin('deployment_settings', 'deployment_id', 'id')
    .select(['id', 'name'])
    .where('owner_id', '=', ownerId)
    .where('desired', '<>', 'deleted')
    .execute();
  const ids = references.map((reference) => {
    const found = rows.find(({ id, name }) => id === reference || name === reference);
    if (found === undefined || found.id === deploymentId)
      throw new ServiceError(
        'invalid_argument',
        `fallbacks: expected other deployments of the same owner, got ${reference}`,
      );
    return found.id;
  });
  if (new Set(ids).size < ids.length)
    throw new ServiceError('invalid_argument', 'fallbacks: expected each deployment once');
  return ids;
}
