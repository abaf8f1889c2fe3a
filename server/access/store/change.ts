import { sql } from 'kysely';
import { type Actor, auditRows, type ChangeRecord, pruneEvents, SYSTEM_ACTOR } from './audit';
import { isPostgres } from './migrations';
import { CHANGES_CHANNEL } from '../feed/notifications';
import type { Db, RevisionEntity, Tx } from './schema';

/** A transaction that changes access data, and its revision. */
export interface Change {
  readonly tx: Tx;
  readonly rev: number;
  readonly nowMs: number;
  /** Adds an entity to the revision feed. The caller sets `rev` in the rows it writes. */
  touch: (entity: RevisionEntity, entityId: string) => Promise<void>;
  /** Writes an audit row and an event in this transaction. */
  record: (record: ChangeRecord) => void;
  /** Writes only an event, for a consequence of the change. */
  emit: (event: ChangeRecord) => void;
}

/** With `ifRev` the change fails with `stale` unless the object still has this revision. */
export interface ChangeOptions {
  ifRev?: number;
  actor?: Actor;
}

/** Old revisions are deleted at every 256th revision. */
const PRUNE_EVERY = 256;
/** A follower that is further behind reloads everything. */
const KEEP_REVISIONS_MS = 24 * 3_600_000;

/**
 * Runs one change in a transaction. Its first statement takes the next revision and the lock that all writers share, on
 * both databases. Revisions are therefore committed in order, and no other change interferes with `run`.
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
    const emitted: ChangeRecord[] = [];
    const result = await run({
      tx,
      rev,
      nowMs,
      touch,
      record: (record) => void records.push(record),
      emit: (event) => void emitted.push(event),
    });
    const written = auditRows(head, records, emitted, actor, nowMs);
    for (const row of written.audit) await tx.insertInto('audit_events').values(row).execute();
    for (const row of written.events) await tx.insertInto('events').values(row).execute();
    await tx.updateTable('auth_state').set(written.head).execute();
    await pruneEvents(tx, head.event_seq, written.head.event_seq, nowMs);
    if (rev % PRUNE_EVERY === 0) await pruneRevisions(tx, nowMs - KEEP_REVISIONS_MS);
    // PostgreSQL delivers the notification at commit.
    if (isPostgres(db)) await sql`select pg_notify(${CHANGES_CHANNEL}, ${String(rev)})`.execute(tx);
    return result;
  });
}

/**
 * Takes the lock that all writers share, in a transaction that makes no change. Take it before any other row, as a
 * change does: on PostgreSQL, another order can deadlock. The embedded database has a single writer anyway.
 */
export async function lockWriters(db: Parameters<typeof isPostgres>[0], tx: Tx): Promise<void> {
  if (isPostgres(db)) await sql`select 1 from auth_state for update`.execute(tx);
}

/** Deletes revisions older than `beforeMs`. Followers detect this through `pruned_rev`. */
async function pruneRevisions(tx: Tx, beforeMs: number): Promise<void> {
  const { rev } = await tx
    .selectFrom('auth_revisions')
    .select((eb) => eb.fn.max('rev').as('rev'))
    .where('at', '<', beforeMs)
    .executeTakeFirstOrThrow();
  if (rev === null) return;
  await tx.deleteFrom('auth_revisions').where('rev', '<=', rev).execute();
  await tx.updateTable('auth_state').set({ pruned_rev: rev }).execute();
}
