import { ServiceError } from './errors';
import type { ServiceDb } from './schema';

/** The response to a request with an idempotency key. */
export interface SavedResponse {
  status: number;
  /** JSON. */
  body: string | null;
  /** The `Location` header. */
  location: string | null;
}

const KEEP_MS = 24 * 3_600_000;
/** A request that never finished, for example after a crash, holds its key for this long. */
const RUNNING_MS = 600_000;

/**
 * Claims the key and returns undefined, or returns the saved response of an earlier request with this key.
 * @throws ServiceError `invalid_argument` if the earlier request was different, `busy` while it is still running.
 */
export async function beginIdempotent(
  db: ServiceDb,
  userId: string,
  key: string,
  requestHash: string,
  nowMs: number,
): Promise<SavedResponse | undefined> {
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
      'Idempotency-Key: expected a new key, this one was used with a different request',
    );
  if (row === undefined || row.status === null)
    throw new ServiceError('busy', 'Idempotency-Key: the first request with this key is still running');
  return { status: row.status, body: row.body, location: row.location };
}

/**
 * Saves the response, or frees the key if the request failed.
 * @param response Must not contain secrets. Undefined if the request failed.
 */
export async function endIdempotent(
  db: ServiceDb,
  userId: string,
  key: string,
  response: SavedResponse | undefined,
  nowMs: number,
): Promise<void> {
  if (response === undefined)
    await db.deleteFrom('idempotency_keys').where('user_id', '=', userId).where('key', '=', key).execute();
  else
    await db
      .updateTable('idempotency_keys')
      .set({ ...response, expires_at: nowMs + KEEP_MS })
      .where('user_id', '=', userId)
      .where('key', '=', key)
      .execute();
}
