import { sql } from 'kysely';
import { isPostgres } from './migrations';

/** For some tens of thousands of changes. */
const RESERVE_BYTES = 4 * 2 ** 20;

/**
 * Room for changes while the disk is full, so that what becomes of deployments can still be written, and they can be stopped: pages of the embedded database, and of its log, that are written once and free from then on.
 * PostgreSQL looks after its own disk.
 */
export async function reserveRoom(db: Parameters<typeof isPostgres>[0]): Promise<void> {
  if (isPostgres(db)) return;
  try {
    await sql`create table if not exists disk_reserve (bytes blob)`.execute(db);
    await sql`insert into disk_reserve values (randomblob(${RESERVE_BYTES}))`.execute(db);
    await sql`pragma wal_checkpoint(passive)`.execute(db);
    await sql`drop table disk_reserve`.execute(db);
  } catch {
    // There is no room for it: then there is as much as there is.
  }
}
