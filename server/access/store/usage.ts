import { sql } from 'kysely';
import { newEvent, pruneEvents } from './audit';
import { lockWriters } from './change';
import { type BudgetUse, periodStart } from '../check/budget';
import { budgetOf, inChunks } from '../keys/rows';
import type { KeyUse } from '../check/uses';
import type { BudgetPeriod, Db, KeyRow, Tx } from './schema';

/**
 * Writes key uses, without a revision. An older use never replaces a newer one. Returns the budget use of these keys
 * over all processes.
 */
export async function recordUses(db: Db, uses: readonly KeyUse[], nowMs: number): Promise<BudgetUse[]> {
  if (uses.length === 0) return [];
  return db.transaction().execute(async (tx) => {
    const keyIds = [...new Set(uses.map(({ keyId }) => keyId))];
    const rows = await inChunks(keyIds, (ids) =>
      tx.selectFrom('api_keys').selectAll().where('id', 'in', ids).execute(),
    );
    // First uses become events, with numbers from the row that all writers lock first.
    if (rows.some((row) => row.last_used_at === null)) await lockWriters(db, tx);
    const rowsById = new Map(rows.map((row) => [row.id, row]));
    const firstUsed: KeyUse[] = [];
    // Every process locks rows in the same order, otherwise two of them could deadlock on PostgreSQL.
    for (const use of [...uses].sort(compareUses)) {
      if (!rowsById.has(use.keyId)) continue;
      if (await writeLastUse(tx, use)) firstUsed.push(use);
      await addUsage(tx, use);
    }
    await emitFirstUses(
      tx,
      firstUsed.map(({ keyId }) => rowsById.get(keyId) as KeyRow),
      nowMs,
    );
    return [...(await readBudgetUses(tx, rows, nowMs)).values()];
  });
}

function compareUses(a: KeyUse, b: KeyUse): number {
  if (a.keyId === b.keyId) return a.day - b.day;
  return a.keyId < b.keyId ? -1 : 1;
}

/** Returns the usage per day, oldest first. */
export function readUsage(
  db: Db,
  keyId: string,
  fromDay: number,
): Promise<{ day: number; requests: number; tokens: number }[]> {
  return db
    .selectFrom('key_usage')
    .select(['day', 'requests', 'tokens'])
    .where('key_id', '=', keyId)
    .where('day', '>=', fromDay)
    .orderBy('day')
    .execute();
}

/** Returns the use of the current budget period, by key id, for the keys that have a budget. */
export async function readBudgetUses(
  db: Db | Tx,
  rows: readonly KeyRow[],
  nowMs: number,
): Promise<Map<string, BudgetUse>> {
  const byPeriod = new Map<BudgetPeriod, string[]>();
  for (const row of rows) {
    const period = budgetOf(row)?.period;
    if (period !== undefined) byPeriod.set(period, [...(byPeriod.get(period) ?? []), row.id]);
  }
  const uses = new Map<string, BudgetUse>();
  for (const [period, keyIds] of byPeriod) {
    const sinceDay = periodStart(period, nowMs);
    for (const keyId of keyIds) uses.set(keyId, { keyId, period, sinceDay, tokens: 0 });
    const sums = await inChunks(keyIds, (ids) =>
      db
        .selectFrom('key_usage')
        .select(['key_id', sql<number>`cast(sum(tokens) as bigint)`.as('tokens')])
        .where('key_id', 'in', ids)
        .where('day', '>=', sinceDay)
        .groupBy('key_id')
        .execute(),
    );
    for (const { key_id: keyId, tokens } of sums) uses.set(keyId, { keyId, period, sinceDay, tokens });
  }
  return uses;
}

/** Returns true for the first use of the key. */
async function writeLastUse(tx: Tx, { keyId, atMs, address }: KeyUse): Promise<boolean> {
  const update = () =>
    tx.updateTable('api_keys').set({ last_used_at: atMs, last_used_ip: address }).where('id', '=', keyId);
  if ((await update().where('last_used_at', 'is', null).executeTakeFirst()).numUpdatedRows > 0n) return true;
  await update().where('last_used_at', '<', atMs).execute();
  return false;
}

async function addUsage(tx: Tx, { keyId, day, numRequests, numTokens }: KeyUse): Promise<void> {
  if (numRequests === 0 && numTokens === 0) return;
  await tx
    .insertInto('key_usage')
    .values({ key_id: keyId, day, requests: numRequests, tokens: numTokens })
    .onConflict((conflict) =>
      conflict.columns(['key_id', 'day']).doUpdateSet((eb) => ({
        requests: eb('key_usage.requests', '+', numRequests),
        tokens: eb('key_usage.tokens', '+', numTokens),
      })),
    )
    .execute();
}

async function emitFirstUses(tx: Tx, rows: readonly KeyRow[], nowMs: number): Promise<void> {
  if (rows.length === 0) return;
  const { event_seq: last } = await tx
    .updateTable('auth_state')
    .set((eb) => ({ event_seq: eb('event_seq', '+', rows.length) }))
    .returning('event_seq')
    .executeTakeFirstOrThrow();
  for (const [i, { id, owner_type: type, owner_id: ownerId, name }] of rows.entries()) {
    const record = {
      action: 'key.first_used',
      owner: { type, id: ownerId },
      target: { type: 'key', id } as const,
      after: { name },
    };
    await tx
      .insertInto('events')
      .values(newEvent(last - rows.length + 1 + i, record, nowMs))
      .execute();
  }
  await pruneEvents(tx, last - rows.length, last, nowMs);
}
