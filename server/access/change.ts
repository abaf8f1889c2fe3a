import type { Db, RevisionEntity, Tx } from './schema';

/** One transaction that changes what a key may do, and the revision that tells every follower. */
export interface Change {
  readonly tx: Tx;
  readonly rev: number;
  readonly nowMs: number;
  /** Puts an entity on the feed; rows written for it carry `rev`. */
  touch: (entity: RevisionEntity, entityId: string) => Promise<void>;
}

/**
 * Runs one change. Its first statement takes the next revision and with it the lock that all writers share, on either database: revisions
 * are committed in order, and what `run` reads cannot change under it.
 */
export function change<T>(db: Db, nowMs: number, run: (change: Change) => Promise<T>): Promise<T> {
  return db.transaction().execute(async (tx) => {
    const { rev } = await tx.updateTable('auth_state').set((eb) => ({ rev: eb('rev', '+', 1) })).returning('rev').executeTakeFirstOrThrow();
    const touched = new Set<string>();
    const touch = async (entity: RevisionEntity, entityId: string) => {
      if (touched.has(entityId)) return;
      touched.add(entityId);
      await tx.insertInto('auth_revisions').values({ rev, entity, entity_id: entityId, at: nowMs }).execute();
    };
    return run({ tx, rev, nowMs, touch });
  });
}
