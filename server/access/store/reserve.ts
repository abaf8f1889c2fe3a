import { sql } from 'kysely';
import { isPostgres } from './migrations';

/** Enough for a few thousand changes. */
const RESERVE_BYTES = 4 * 2 ** 20;

/**
 * Reserves free pages in the SQLite file and its log, so that deployments can still be updated and stopped on a full
 * disk. PostgreSQL manages its own disk.
 */
export async function reserveSpace(db: Parameters<typeof isPostgres>[0], bytes = RESERVE_BYTES): Promise<void> {
  if (isPostgres(db) || bytes === 0) return;
  try {
    await sql`create table if not exists disk_reserve (bytes blob)`.execute(db);
    await sql`insert into disk_reserve values (randomblob(${bytes}))`.execute(db);
    await sql`pragma wal_checkpoint(passive)`.execute(db);
    await sql`drop table disk_reserve`.execute(db);
  } catch {
    // The disk is already full. Continue without a reserve.
  }
}
