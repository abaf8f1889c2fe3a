import { sql } from 'kysely';
import type { BudgetUse } from '../check/budget';
import { budgetOf, groupBy, inChunks, limitsOf, parseCidrs } from '../keys/rows';
import type { KeyBudget, KeyLimits } from '../keys/values';
import type { Db, KeyRow, RevisionEntity } from '../store/schema';
import { readBudgetUses } from '../store/usage';

/** A key as the feed delivers it to the key table. */
export interface KeyRecord {
  id: string;
  publicId: string;
  ownerId: string;
  isEnabled: boolean;
  expiresAt: number | null;
  limits: KeyLimits | null;
  /** Null allows every address. */
  allowedCidrs: string[] | null;
  budget: KeyBudget | null;
  budgetUse: BudgetUse | null;
  /** Null for a user-level key. */
  deployments: string[] | null;
  /** At most two, newest first. */
  secrets: { version: number; hash: string; validUntil: number | null }[];
  rev: number;
}

/** Position of the feed. `epoch` is random for each database: a different epoch means a different database. */
export interface FeedState {
  rev: number;
  epoch: string;
}

export interface FeedChanges extends FeedState {
  /** False if the feed has pruned some of these revisions. The follower must then reload everything. */
  isComplete: boolean;
  keys: KeyRecord[];
  deletedKeyIds: string[];
  /** Changed owners and deployments. */
  others: { entity: RevisionEntity; id: string }[];
}

/** Sums over all keys. A difference between table and database reveals a change without a revision. */
export interface TableDigest {
  numKeys: number;
  numEnabled: number;
  revSum: number;
  expirySum: number;
  numSecrets: number;
  numBindings: number;
}

/** Keeps the sum over 100,000 keys in the safe integer range. */
export const EXPIRY_MODULUS = 1_000_003;

export async function readState(db: Db): Promise<FeedState> {
  return db.selectFrom('auth_state').select(['rev', 'epoch']).executeTakeFirstOrThrow();
}

/** Returns keys after `afterId`, ordered by id. Fewer than `limit` means the last page. */
export async function readPage(db: Db, afterId: string, limit: number, nowMs: number): Promise<KeyRecord[]> {
  const rows = await db
    .selectFrom('api_keys')
    .selectAll()
    .where('status', '!=', 'deleted')
    .where('id', '>', afterId)
    .orderBy('id')
    .limit(limit)
    .execute();
  return toRecords(db, rows, nowMs);
}

/** Returns everything that changed after `rev`. */
export async function readChanges(db: Db, rev: number, nowMs: number): Promise<FeedChanges> {
  const state = await readState(db);
  // Read the state first: a change committed in between is then read twice, never missed.
  const revisions =
    state.rev === rev
      ? []
      : await db
          .selectFrom('auth_revisions')
          .select(['entity', 'entity_id'])
          .distinct()
          .where('rev', '>', rev)
          .execute();
  // Read `pruned_rev` last, to detect revisions pruned in between.
  const { pruned_rev: prunedRev } = await db.selectFrom('auth_state').select('pruned_rev').executeTakeFirstOrThrow();
  const keyIds = revisions.filter(({ entity }) => entity === 'key').map((revision) => revision.entity_id);
  const rows = await inChunks(keyIds, (ids) =>
    db.selectFrom('api_keys').selectAll().where('id', 'in', ids).where('status', '!=', 'deleted').execute(),
  );
  const found = new Set(rows.map(({ id }) => id));
  return {
    ...state,
    isComplete: prunedRev <= rev,
    keys: await toRecords(db, rows, nowMs),
    deletedKeyIds: keyIds.filter((id) => !found.has(id)),
    others: revisions.filter(({ entity }) => entity !== 'key').map(({ entity, entity_id: id }) => ({ entity, id })),
  };
}

/** Returns the digest and its revision, or undefined if the database changed during the read. */
export async function readDigest(db: Db): Promise<{ state: FeedState; digest: TableDigest } | undefined> {
  const before = await readState(db);
  const alive = db.selectFrom('api_keys').where('status', '!=', 'deleted');
  const sum = (expression: ReturnType<typeof sql>) => sql<number>`cast(coalesce(sum(${expression}), 0) as bigint)`;
  const keys = await alive
    .select([
      sql<number>`cast(count(*) as bigint)`.as('numKeys'),
      sum(sql`case when status = 'active' then 1 else 0 end`).as('numEnabled'),
      sum(sql`rev`).as('revSum'),
      sum(sql`expires_at % ${sql.lit(EXPIRY_MODULUS)}`).as('expirySum'),
    ])
    .executeTakeFirstOrThrow();
  const count = sql<number>`cast(count(*) as bigint)`.as('count');
  const secrets = await db.selectFrom('api_key_secrets').select(count).executeTakeFirstOrThrow();
  const bindings = await db.selectFrom('key_bindings').select(count).executeTakeFirstOrThrow();
  const state = await readState(db);
  return state.rev === before.rev
    ? { state, digest: { ...keys, numSecrets: secrets.count, numBindings: bindings.count } }
    : undefined;
}

async function toRecords(db: Db, rows: readonly KeyRow[], nowMs: number): Promise<KeyRecord[]> {
  const ids = rows.map(({ id }) => id);
  const secrets = groupBy(
    await inChunks(ids, (chunk) =>
      db.selectFrom('api_key_secrets').selectAll().where('key_id', 'in', chunk).orderBy('version', 'desc').execute(),
    ),
  );
  const bindings = groupBy(
    await inChunks(ids, (chunk) =>
      db.selectFrom('key_bindings').select(['key_id', 'deployment_id']).where('key_id', 'in', chunk).execute(),
    ),
  );
  const budgetUses = await readBudgetUses(db, rows, nowMs);
  return rows.map((row) => ({
    id: row.id,
    publicId: row.public_id,
    ownerId: row.owner_id,
    isEnabled: row.status === 'active',
    expiresAt: row.expires_at,
    limits: row.limit_rpm === null && row.limit_tpm === null && row.limit_parallel === null ? null : limitsOf(row),
    allowedCidrs: parseCidrs(row.allowed_cidrs),
    budget: budgetOf(row),
    budgetUse: budgetUses.get(row.id) ?? null,
    deployments:
      row.type === 'user-level' ? null : (bindings.get(row.id) ?? []).map((binding) => binding.deployment_id),
    secrets: (secrets.get(row.id) ?? []).map(({ version, hash, valid_until: validUntil }) => ({
      version,
      hash,
      validUntil,
    })),
    rev: row.rev,
  }));
}
