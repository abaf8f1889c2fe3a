import { ServiceError } from './errors';
import type { ServiceDb } from './schema';

/** What a request was answered that comes once more. */
export interface SavedAnswer {
  status: number;
  /** JSON. */
  body: string | null;
  /** Of what it made. */
  location: string | null;
}

const KEEP_MS = 24 * 3_600_000;
/** A request whose process died holds its key no longer than this. */
const RUNNING_MS = 600_000;

/**
 * Takes the key for a request that is new: undefined. The saved answer where the same request was answered before.
 * @throws ServiceError `invalid_argument` when the key belongs to another request, `busy` while the first one still runs
 */
export async function beginOnce(
  db: ServiceDb,
  userId: string,
  key: string,
  requestHash: string,
  nowMs: number,
): Promise<SavedAnswer | undefined> {
  await db.deleteFrom('idempotency_keys').where('expires_at', '<=', nowMs).execute();
  const { numInsertedOrUpdatedRows: numTaken } = await db
    .insertInto('idempotency_keys')
    .values({
      user_id: userId,
      key,
      request_hash: requestHash,
      status: null,
      body: null,
      location: null,
      expires_at: nowMs + RUNNING_MS,
    })
    .onConflict((conflict) => conflict.columns(['user_id', 'key']).doNothing())
    .executeTakeFirst();
  if (numTaken !== undefined && numTaken > 0n) return undefined;
  const row = await db
    .selectFrom('idempotency_keys')
    .selectAll()
    .where('user_id', '=', userId)
    .where('key', '=', key)
    .executeTakeFirst();
  if (row !== undefined && row.request_hash !== requestHash)
    throw new ServiceError(
      'invalid_argument',
      'Idempotency-Key: this key was sent with another request before: expected a new one',
    );
  if (row === undefined || row.status === null)
    throw new ServiceError('busy', 'Idempotency-Key: the first request with this key still runs');
  return { status: row.status, body: row.body, location: row.location };
}

/** @param answer Without secrets. Absent: the request failed, and may be tried again with the same key. */
export async function endOnce(
  db: ServiceDb,
  userId: string,
  key: string,
  answer: SavedAnswer | undefined,
  nowMs: number,
): Promise<void> {
  if (answer === undefined)
    await db.deleteFrom('idempotency_keys').where('user_id', '=', userId).where('key', '=', key).execute();
  else
    await db
      .updateTable('idempotency_keys')
      .set({ ...answer, expires_at: nowMs + KEEP_MS })
      .where('user_id', '=', userId)
      .where('key', '=', key)
      .execute();
}
