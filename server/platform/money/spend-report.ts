import { type RawBuilder, sql } from 'kysely';
import type { OwnerRef } from 'capstan/internal';
import { demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { type OwnerView, ownerViews } from '../deployments/owner-views';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { readCurrency } from './money-rows';

export interface SpendFilter {
  /** Id of a user or of an organization. Default: all owners that the actor belongs to. */
  ownerId?: string;
  keyId?: string;
  /** Days since 1970. */
  fromDay: number;
  /** Exclusive. */
  toDay: number;
}

/** The cost of the requests of one day, owner, key and model. */
export interface SpendEntry {
  day: number;
  owner: OwnerView;
  /** Null for requests without a key. `name` is null for a deleted key. */
  key: { id: string; name: string | null } | null;
  model: string;
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  cost: bigint;
  estimated: bigint;
}

export interface SpendReport {
  currency: string;
  entries: SpendEntry[];
}

/** A report with more entries is refused: a shorter range has fewer. */
const MAX_ENTRIES = 50_000;
const NANOS_PER_UNIT = 1_000_000_000n;

/** Returns the costs, oldest first. @throws ServiceError `not_found` for an owner that the actor may not see */
export async function readSpend(
  { db }: StoreContext,
  actor: ServiceActor,
  { ownerId, keyId, fromDay, toDay }: SpendFilter,
): Promise<SpendReport> {
  const owners = ownerId === undefined ? await visibleOwners(db, actor) : [await visibleOwner(db, actor, ownerId)];
  const conditions = [
    sql`money_spend.owner_id in (${sql.join(owners.map(({ id }) => sql`${id}`))})`,
    sql`day >= ${sql.lit(fromDay)}`,
    sql`day < ${sql.lit(toDay)}`,
    ...(keyId === undefined ? [] : [sql`key_id = ${keyId}`]),
  ];
  const { rows } = await sql<SpendDbRow>`select day, money_spend.owner_id, key_id, model, requests, prompt_tokens,
      cached_tokens, completion_tokens, cast(cost as text) as cost, cast(estimated as text) as estimated,
      api_keys.name as key_name
    from money_spend left join api_keys on api_keys.id = key_id and api_keys.status != 'deleted'
    where ${sql.join(conditions, sql` and `)} order by day, money_spend.owner_id, key_id, model
    limit ${sql.lit(MAX_ENTRIES + 1)}`.execute(db);
  if (rows.length > MAX_ENTRIES)
    throw new ServiceError(
      'invalid_argument',
      `from: expected a range with at most ${MAX_ENTRIES} entries. Ask for fewer days`,
    );
  const views = await ownerViews(db, owners);
  const entries = rows.map((row) => ({
    day: row.day,
    owner: views.get(row.owner_id) ?? { ...owners.find(({ id }) => id === row.owner_id)!, name: '' },
    key: row.key_id === '' ? null : { id: row.key_id, name: row.key_name },
    model: row.model,
    requests: row.requests,
    promptTokens: row.prompt_tokens,
    cachedTokens: row.cached_tokens,
    completionTokens: row.completion_tokens,
    cost: BigInt(row.cost),
    estimated: BigInt(row.estimated),
  }));
  return { currency: await readCurrency(db), entries };
}

interface SpendDbRow {
  day: number;
  owner_id: string;
  key_id: string;
  model: string;
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  cost: string;
  estimated: string;
  key_name: string | null;
}

/** Administrators see the costs of all owners. */
async function visibleOwner(db: ServiceDb, actor: ServiceActor, id: string): Promise<OwnerRef> {
  const owner: OwnerRef = { type: id.startsWith('org_') ? 'org' : 'user', id };
  if (!actor.isAdmin) await demandOwner(db, actor, owner, 'read');
  else if (!(await ownerViews(db, [owner])).has(id)) throw new ServiceError('not_found', 'owner not found');
  return owner;
}

/** Returns the sum of the costs since a day. */
export async function spentSince(
  db: ServiceDb | ServiceTx,
  { ownerId, keyId }: { ownerId: string; keyId?: string },
  sinceDay: number,
): Promise<bigint> {
  // Two sums, because one of all costs could exceed 64 bits.
  const sum = (part: RawBuilder<unknown>) => sql`cast(coalesce(sum(${part}), 0) as text)`;
  const { rows } = await sql<{ units: string; nanos: string }>`select
      ${sum(sql`cost / ${sql.lit(Number(NANOS_PER_UNIT))}`)} as units,
      ${sum(sql`cost % ${sql.lit(Number(NANOS_PER_UNIT))}`)} as nanos
    from money_spend where owner_id = ${ownerId} and day >= ${sql.lit(sinceDay)}
      ${keyId === undefined ? sql`` : sql`and key_id = ${keyId}`}`.execute(db);
  return BigInt(rows[0].units) * NANOS_PER_UNIT + BigInt(rows[0].nanos);
}
