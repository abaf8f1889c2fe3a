import { sql } from 'kysely';
import { isPostgres } from 'capstan/internal';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** Runs a transaction that excludes all other writers. It increments no revision, because no user changed anything. */
export function controlTransaction<T>(db: ServiceDb, run: (tx: ServiceTx) => Promise<T>): Promise<T> {
  return db.transaction().execute(async (tx) => {
    // Every change locks this row first. The embedded database has a single writer anyway.
    if (isPostgres(db)) await sql`select 1 from auth_state for update`.execute(tx);
    return run(tx);
  });
}
