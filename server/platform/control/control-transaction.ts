import { lockWriters } from 'capstan/internal';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** Runs a transaction that excludes all other writers. It increments no revision, because no user changed anything. */
export function controlTransaction<T>(db: ServiceDb, run: (tx: ServiceTx) => Promise<T>): Promise<T> {
  return db.transaction().execute(async (tx) => {
    await lockWriters(db, tx);
    return run(tx);
  });
}
