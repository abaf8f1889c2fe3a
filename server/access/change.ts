import { sql } from 'kysely';
import { type Actor, auditRows, type ChangeRecord, pruneEvents, SYSTEM_ACTOR } from './audit';
import { isPostgres } from './migrations';
import { CHANGES_CHANNEL } from './notifications';
import type { Db, RevisionEntity, Tx } from './schema';

/** One transaction that changes what a key may do, and the revision that tells every follower. */
export interface Change {
  readonly tx: Tx;
  readonly rev: number;
  readonly nowMs: number;
  /** Puts an entity on the feed; rows written for it carry `rev`. */
  touch: (entity: RevisionEntity, entityId: string) => Promise<void>;
  /** Puts what was done into the audit and among the events, in the same transaction. */
  record: (record: ChangeRecord) => void;
  /** Among the events alone: what follows from the change by itself. */
  tell: (event: ChangeRecord) => void;
}

/** `ifRev` refuses the change when somebody else changed the object first. */
export interface ChangeOptions {
  ifRev?: number;
  actor?: Actor;
}

/** Revisions are looked over for old ones this often. */
const PRUNE_EVERY = 256;
/** A follower that was away for longer reads everything again. */
const KEEP_REVISIONS_MS = 24 * 3_600_000;

/**
 * Runs one change. Its first statement takes the next revision and with it the lock that all writers share, on either database: revisions
 * are committed in order, and what `run` reads cannot change under it.
 */
export function change<T>(
  db: Db,
  nowMs: number,
  { actor = SYSTEM_ACTOR }: ChangeOptions,
  run: (change: Change) => Promise<T>,
): Promise<T> {
  return db.transaction().execute(async (tx) => {
    const { rev, ...head } = await tx
      .updateTable('auth_state')
      .set((eb) => ({ rev: eb('rev', '+', 1) }))
      .returning(['rev', 'event_seq', 'audit_seq', 'audit_hash'])
      .executeTakeFirstOrThrow();
    const touched = new Set<string>();
    const touch = async (entity: RevisionEntity, entityId: string) => {
      if (touched.has(entityId)) return;
      touched.add(entityId);
      await tx.insertInto('auth_revisions').values({ rev, entity, entity_id: entityId, at: nowMs }).execute();
    };
    const records: ChangeRecord[] = [];
    const told: ChangeRecord[] = [];
    const result = await run({
      tx,
      rev,
      nowMs,
      touch,
      record: (record) => void records.push(record),
      tell: (event) => void told.push(event),
    });
    const written = auditRows(head, records, told, actor, nowMs);
    for (const row of written.audit) await tx.insertInto('audit_events').values(row).execute();
    for (const row of written.events) await tx.insertInto('events').values(row).execute();
    await tx.updateTable('auth_state').set(written.head).execute();
    await pruneEvents(tx, head.event_seq, written.head.event_seq, nowMs);
    if (rev % PRUNE_EVERY === 0) await pruneRevisions(tx, nowMs - KEEP_REVISIONS_MS);
    // Goes out when the transaction is committed.
    if (isPostgres(db)) await sql`select pg_notify(${CHANGES_CHANNEL}, ${String(rev)})`.execute(tx);
    return result;
  });
}

/** Forgets the revisions from before a time; followers that had not applied them are told by `pruned_rev`. */
export async function pruneRevisions(tx: Tx, beforeMs: number): Promise<void> {
  const { rev } = await tx
    .selectFrom('auth_revisions')
    .select((eb) => eb.fn.max('rev').as('rev'))
    .where('at', '<', beforeMs)
    .executeTakeFirstOrThrow();
  if (rev === null) return;
  await tx.deleteFrom('auth_revisions').where('rev', '<=', rev).execute();
  await tx.updateTable('auth_state').set({ pruned_rev: rev }).execute();
}
