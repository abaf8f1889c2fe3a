import { type ApiKey, keyState } from './api-key';
import { AccessError } from './errors';
import { PUBLIC_ID_PATTERN } from './key-format';
import type { Db, KeyRow, Tx } from './schema';

/** The three places where keys are managed: an account, an organization (both by owner), a deployment. */
export interface KeyFilter {
  ownerId?: string;
  /** Keys that reach this deployment: those bound to it, and the user-level keys of its owner. */
  deploymentId?: string;
  /** Tombstones too. */
  includeDeleted?: boolean;
}

const ID_CHUNK = 500;

export async function listKeys(db: Db | Tx, { ownerId, deploymentId, includeDeleted = false }: KeyFilter, nowMs: number): Promise<ApiKey[]> {
  let query = db.selectFrom('api_keys').selectAll().orderBy('id');
  if (!includeDeleted) query = query.where('status', '!=', 'deleted');
  if (ownerId !== undefined) query = query.where('owner_id', '=', ownerId);
  if (deploymentId !== undefined) {
    query = query.where((eb) => eb.or([
      eb('id', 'in', eb.selectFrom('key_bindings').select('key_id').where('deployment_id', '=', deploymentId)),
      eb.and([eb('type', '=', 'user-level'), eb('owner_id', 'in', eb.selectFrom('deployments').select('owner_id').where('id', '=', deploymentId))]),
    ]));
  }
  return describeKeys(db, await query.execute(), nowMs);
}

/** By `key_…`, public id, or a name that only one key has. Deleted keys are not found. */
export async function findKey(db: Db | Tx, reference: string): Promise<KeyRow> {
  const keys = () => db.selectFrom('api_keys').selectAll().where('status', '!=', 'deleted');
  const byId = await keys().where((eb) => eb.or([eb('id', '=', reference), eb('public_id', '=', reference)])).executeTakeFirst();
  if (byId !== undefined) return byId;
  const byName = await keys().where('name', '=', reference).limit(11).execute();
  if (byName.length === 1) return byName[0];
  if (byName.length > 1) throw new AccessError('conflict', `several keys have this name; say which by its id: ${byName.slice(0, 10).map(({ id }) => id).join(', ')}`);
  // NOTE: the reference is echoed only when it is an id: people paste secrets where an id is asked for.
  const isId = /^key_[0-9a-z]{26}$/.test(reference) || PUBLIC_ID_PATTERN.test(reference);
  throw new AccessError('not_found', `there is no key ${isId ? reference : 'of this id or name'}`);
}

export async function describeKey(db: Db | Tx, row: KeyRow, nowMs: number): Promise<ApiKey> {
  return (await describeKeys(db, [row], nowMs))[0];
}

async function describeKeys(db: Db | Tx, rows: readonly KeyRow[], nowMs: number): Promise<ApiKey[]> {
  const owners = new Map<string, string>();
  for (const table of ['users', 'organizations'] as const) {
    for (const { id, name } of await inChunks(distinct(rows.map((row) => row.owner_id)), (ids) => db.selectFrom(table).select(['id', 'name']).where('id', 'in', ids).execute())) owners.set(id, name);
  }
  const keyIds = rows.map(({ id }) => id);
  const bindings = groupBy(await inChunks(keyIds, (ids) => db.selectFrom('key_bindings').innerJoin('deployments', 'deployments.id', 'key_bindings.deployment_id')
    .select(['key_id', 'deployments.id', 'deployments.name']).where('key_id', 'in', ids).orderBy('deployments.name').execute()));
  const older = groupBy(await inChunks(keyIds, (ids) => db.selectFrom('api_key_secrets').select(['key_id', 'valid_until']).where('key_id', 'in', ids).where('valid_until', '>', nowMs).execute()));
  return rows.map((row) => {
    const rotatingUntil = older.get(row.id)?.[0].valid_until ?? null;
    return {
      id: row.id,
      publicId: row.public_id,
      owner: { type: row.owner_type, id: row.owner_id, name: owners.get(row.owner_id) ?? '' },
      name: row.name,
      type: row.type,
      deployments: (bindings.get(row.id) ?? []).map(({ id, name }) => ({ id, name })),
      display: row.display,
      state: keyState(row, rotatingUntil, nowMs),
      expiresAt: row.expires_at,
      rotatingUntil,
      limits: { rpm: row.limit_rpm, tpm: row.limit_tpm, parallel: row.limit_parallel },
      createdBy: row.created_by,
      createdAt: row.created_at,
      updatedAt: row.updated_at,
      lastUsedAt: row.last_used_at,
      lastUsedIp: row.last_used_ip,
      rev: row.rev,
    };
  });
}

/** Databases bound the number of parameters of a statement. */
export async function inChunks<T>(ids: readonly string[], query: (ids: readonly string[]) => Promise<T[]>): Promise<T[]> {
  const rows: T[] = [];
  for (let start = 0; start < ids.length; start += ID_CHUNK) rows.push(...await query(ids.slice(start, start + ID_CHUNK)));
  return rows;
}

export function groupBy<T extends { key_id: string }>(rows: readonly T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const row of rows) {
    const group = groups.get(row.key_id);
    if (group === undefined) groups.set(row.key_id, [row]);
    else group.push(row);
  }
  return groups;
}

function distinct(values: readonly string[]): string[] {
  return [...new Set(values)];
}
