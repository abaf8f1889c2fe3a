import { type SelectQueryBuilder, sql } from 'kysely';
import { type ApiKey, keyState } from './api-key';
import { AccessError } from '../errors';
import { periodEndMs } from '../check/budget';
import { PUBLIC_ID_PATTERN } from '../../base/key-format';
import { budgetOf, groupBy, inChunks, limitsOf, parseCidrs } from './rows';
import type { AccessTables, Db, KeyRow, Tx } from '../store/schema';
import { readBudgetUses } from '../store/usage';

/** Selects keys by owner (an account or an organization) or by deployment. */
export interface KeyFilter {
  ownerId?: string;
  /** Keys valid for this deployment: those bound to it, and the user-level keys of its owner. */
  deploymentId?: string;
  /** Keys bound to one of these, by id or name. */
  boundTo?: readonly string[];
  /** Part of the name. ASCII letters match in either case. */
  search?: string;
  includeDeleted?: boolean;
}

export async function listKeys(db: Db | Tx, filter: KeyFilter, nowMs: number): Promise<ApiKey[]> {
  return describeKeys(db, await selectKeys(db, filter).orderBy('id').execute(), nowMs);
}

export function selectKeys(
  db: Db | Tx,
  { ownerId, deploymentId, boundTo, search, includeDeleted = false }: KeyFilter,
): SelectQueryBuilder<AccessTables, 'api_keys', KeyRow> {
  let query = db.selectFrom('api_keys').selectAll();
  if (!includeDeleted) query = query.where('status', '!=', 'deleted');
  if (ownerId !== undefined) query = query.where('owner_id', '=', ownerId);
  if (search !== undefined)
    query = query.where(
      sql<boolean>`lower(name) like ${`%${search.toLowerCase().replace(/[\\%_]/g, '\\$&')}%`} escape '\\'`,
    );
  if (boundTo !== undefined) {
    query = query.where('id', 'in', (eb) =>
      eb
        .selectFrom('key_bindings')
        .innerJoin('deployments', 'deployments.id', 'key_bindings.deployment_id')
        .select('key_id')
        .where((binding) =>
          binding.or([binding('deployments.id', 'in', boundTo), binding('deployments.name', 'in', boundTo)]),
        ),
    );
  }
  if (deploymentId !== undefined) {
    // A key is bound only to deployments of its owner. Filtering by owner lets the database use the index.
    query = query
      .where('owner_id', '=', (eb) =>
        eb.selectFrom('deployments').select('deployments.owner_id').where('deployments.id', '=', deploymentId),
      )
      .where((eb) =>
        eb.or([
          eb('type', '=', 'user-level'),
          eb('id', 'in', eb.selectFrom('key_bindings').select('key_id').where('deployment_id', '=', deploymentId)),
        ]),
      );
  }
  return query;
}

/**
 * Finds a key by id (`key_…`), public id or unique name.
 * @throws AccessError if it is unknown, deleted or ambiguous.
 */
export async function findKey(db: Db | Tx, reference: string): Promise<KeyRow> {
  const keys = () => db.selectFrom('api_keys').selectAll().where('status', '!=', 'deleted');
  const byId = await keys()
    .where((eb) => eb.or([eb('id', '=', reference), eb('public_id', '=', reference)]))
    .executeTakeFirst();
  if (byId !== undefined) return byId;
  const byName = await keys().where('name', '=', reference).limit(11).execute();
  if (byName.length === 1) return byName[0];
  if (byName.length > 1)
    throw new AccessError(
      'conflict',
      `several keys have this name. Use an ID: ${byName
        .slice(0, 10)
        .map(({ id }) => id)
        .join(', ')}`,
    );
  // NOTE: echo the reference only if it is an id, because users paste secrets here by mistake.
  const isId = /^key_[0-9a-z]{26}$/.test(reference) || PUBLIC_ID_PATTERN.test(reference);
  throw new AccessError(
    'not_found',
    isId ? `key ${reference} not found` : 'no key has this ID or name: see capstan keys list',
  );
}

export async function describeKey(db: Db | Tx, row: KeyRow, nowMs: number): Promise<ApiKey> {
  return (await describeKeys(db, [row], nowMs))[0];
}

export async function describeKeys(db: Db | Tx, rows: readonly KeyRow[], nowMs: number): Promise<ApiKey[]> {
  const owners = new Map<string, string>();
  for (const table of ['users', 'organizations'] as const) {
    for (const { id, name } of await inChunks(distinct(rows.map((row) => row.owner_id)), (ids) =>
      db.selectFrom(table).select(['id', 'name']).where('id', 'in', ids).execute(),
    ))
      owners.set(id, name);
  }
  const keyIds = rows.map(({ id }) => id);
  const bindings = groupBy(
    await inChunks(keyIds, (ids) =>
      db
        .selectFrom('key_bindings')
        .innerJoin('deployments', 'deployments.id', 'key_bindings.deployment_id')
        .select(['key_id', 'deployments.id', 'deployments.name'])
        .where('key_id', 'in', ids)
        .orderBy('deployments.name')
        .execute(),
    ),
  );
  const older = groupBy(
    await inChunks(keyIds, (ids) =>
      db
        .selectFrom('api_key_secrets')
        .select(['key_id', 'valid_until'])
        .where('key_id', 'in', ids)
        .where('valid_until', '>', nowMs)
        .execute(),
    ),
  );
  const budgetUses = await readBudgetUses(db, rows, nowMs);
  return rows.map((row) => {
    const budget = budgetOf(row);
    const used = budgetUses.get(row.id)?.tokens ?? 0;
    const rotatingUntil = older.get(row.id)?.[0].valid_until ?? null;
    return {
      id: row.id,
      publicId: row.public_id,
      owner: { type: row.owner_type, id: row.owner_id, name: owners.get(row.owner_id) ?? '' },
      name: row.name,
      type: row.type,
      deployments: (bindings.get(row.id) ?? []).map(({ id, name }) => ({ id, name })),
      display: row.display,
      state: keyState(row, rotatingUntil, budget !== null && used >= budget.tokens, nowMs),
      expiresAt: row.expires_at,
      rotatingUntil,
      limits: limitsOf(row),
      allowedCidrs: parseCidrs(row.allowed_cidrs),
      budget: budget === null ? null : { ...budget, used, resetsAt: periodEndMs(budget.period, nowMs) },
      createdBy: row.created_by,
      createdAt: row.created_at,
      updatedAt: row.updated_at,
      lastUsedAt: row.last_used_at,
      lastUsedIp: row.last_used_ip,
      rev: row.rev,
    };
  });
}

function distinct(values: readonly string[]): string[] {
  return [...new Set(values)];
}
