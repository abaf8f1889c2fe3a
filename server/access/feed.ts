import { sql } from 'kysely';
import { groupBy, inChunks } from './key-queries';
import type { KeyLimits } from './key-values';
import type { Db, KeyRow, RevisionEntity } from './schema';

/** A key as the table of a serving process takes it. */
export interface KeyRecord {
  id: string;
  publicId: string;
  ownerId: string;
  isEnabled: boolean;
  expiresAt: number | null;
  limits: KeyLimits | null;
  /** Null for a user-level key. */
  deployments: string[] | null;
  /** Newest first, two at most. */
  secrets: { version: number; hash: string; validUntil: number | null }[];
  rev: number;
}

/** Where the feed stands. `epoch` is drawn when a database is made: another one means another database, whatever the revision. */
export interface FeedState {
  rev: number;
  epoch: string;
}

export interface FeedChanges extends FeedState {
  keys: KeyRecord[];
  deletedKeyIds: string[];
  /** Owners and deployments that changed, for whoever keeps more than keys. */
  others: { entity: RevisionEntity; id: string }[];
}

/** Sums over all keys that tell whether a table and the database hold the same, also after somebody wrote to the database by hand. */
export interface TableDigest {
  numKeys: number;
  numEnabled: number;
  revSum: number;
  expirySum: number;
  numSecrets: number;
  numBindings: number;
}

/** Makes the sum of 100,000 times fit a number. */
export const EXPIRY_MODULUS = 1_000_003;

export async function readState(db: Db): Promise<FeedState> {
  return db.selectFrom('auth_state').select(['rev', 'epoch']).executeTakeFirstOrThrow();
}

/** Keys after `afterId` in the order of their ids; fewer than `limit` is the end. */
export async function readPage(db: Db, afterId: string, limit: number): Promise<KeyRecord[]> {
  const rows = await db.selectFrom('api_keys').selectAll().where('status', '!=', 'deleted').where('id', '>', afterId).orderBy('id').limit(limit).execute();
  return toRecords(db, rows);
}

/** What changed after `rev`. */
export async function readChanges(db: Db, rev: number): Promise<FeedChanges> {
  const state = await readState(db);
  // The state is read first: what is committed meanwhile is read now and again at the next call, never missed.
  const revisions = state.rev === rev ? [] : await db.selectFrom('auth_revisions').select(['entity', 'entity_id']).distinct().where('rev', '>', rev).execute();
  const keyIds = revisions.filter(({ entity }) => entity === 'key').map((revision) => revision.entity_id);
  const rows = await inChunks(keyIds, (ids) => db.selectFrom('api_keys').selectAll().where('id', 'in', ids).where('status', '!=', 'deleted').execute());
  const found = new Set(rows.map(({ id }) => id));
  return {
    ...state,
    keys: await toRecords(db, rows),
    deletedKeyIds: keyIds.filter((id) => !found.has(id)),
    others: revisions.filter(({ entity }) => entity !== 'key').map(({ entity, entity_id: id }) => ({ entity, id })),
  };
}

/** The sums, and the revision that they were surely taken at: undefined when a change came between. */
export async function readDigest(db: Db): Promise<{ state: FeedState; digest: TableDigest } | undefined> {
  const before = await readState(db);
  const alive = db.selectFrom('api_keys').where('status', '!=', 'deleted');
  const sum = (expression: ReturnType<typeof sql>) => sql<number>`cast(coalesce(sum(${expression}), 0) as bigint)`;
  const keys = await alive.select([
    sql<number>`cast(count(*) as bigint)`.as('numKeys'),
    sum(sql`case when status = 'active' then 1 else 0 end`).as('numEnabled'),
    sum(sql`rev`).as('revSum'),
    sum(sql`expires_at % ${sql.lit(EXPIRY_MODULUS)}`).as('expirySum'),
  ]).executeTakeFirstOrThrow();
  const count = sql<number>`cast(count(*) as bigint)`.as('count');
  const secrets = await db.selectFrom('api_key_secrets').select(count).executeTakeFirstOrThrow();
  const bindings = await db.selectFrom('key_bindings').select(count).executeTakeFirstOrThrow();
  const state = await readState(db);
  return state.rev === before.rev ? { state, digest: { ...keys, numSecrets: secrets.count, numBindings: bindings.count } } : undefined;
}

/** One use of a key, the latest of its batch. */
export interface KeyUse {
  keyId: string;
  atMs: number;
  address: string;
}

/** No change of keys: no revision, and an older use never replaces a newer one. */
export async function recordUses(db: Db, uses: readonly KeyUse[]): Promise<void> {
  if (uses.length === 0) return;
  await db.transaction().execute(async (tx) => {
    // In one order everywhere: two gateways on PostgreSQL would deadlock otherwise.
    for (const { keyId, atMs, address } of [...uses].sort((a, b) => (a.keyId < b.keyId ? -1 : 1))) {
      await tx.updateTable('api_keys').set({ last_used_at: atMs, last_used_ip: address }).where('id', '=', keyId)
        .where((eb) => eb.or([eb('last_used_at', 'is', null), eb('last_used_at', '<', atMs)])).execute();
    }
  });
}

async function toRecords(db: Db, rows: readonly KeyRow[]): Promise<KeyRecord[]> {
  const ids = rows.map(({ id }) => id);
  const secrets = groupBy(await inChunks(ids, (chunk) => db.selectFrom('api_key_secrets').selectAll().where('key_id', 'in', chunk).orderBy('version', 'desc').execute()));
  const bindings = groupBy(await inChunks(ids, (chunk) => db.selectFrom('key_bindings').select(['key_id', 'deployment_id']).where('key_id', 'in', chunk).execute()));
  return rows.map((row) => ({
    id: row.id,
    publicId: row.public_id,
    ownerId: row.owner_id,
    isEnabled: row.status === 'active',
    expiresAt: row.expires_at,
    limits: row.limit_rpm === null && row.limit_tpm === null && row.limit_parallel === null ? null : { rpm: row.limit_rpm, tpm: row.limit_tpm, parallel: row.limit_parallel },
    deployments: row.type === 'user-level' ? null : (bindings.get(row.id) ?? []).map((binding) => binding.deployment_id),
    secrets: (secrets.get(row.id) ?? []).map(({ version, hash, valid_until: validUntil }) => ({ version, hash, validUntil })),
    rev: row.rev,
  }));
}
