import { createHash } from 'node:crypto';
import { newId } from '../../base/ids';
import type { ActorType, AuditRow, Db, EventRow, TargetType, Tx } from './schema';

/** The author of a change, for the audit. */
export interface Actor {
  type: ActorType;
  id: string;
  ip?: string | null;
  userAgent?: string | null;
}

/** The default: a change that no user requested. */
export const SYSTEM_ACTOR: Actor = { type: 'system', id: 'capstan' };

/** One action of a change. `before` and `after` contain no secret. */
export interface ChangeRecord {
  action: string;
  owner: { type: 'user' | 'org'; id: string };
  target: { type: TargetType; id: string };
  before?: object;
  after?: object;
  /** Default `ok`. */
  result?: AuditRow['result'];
}

/**
 * Last numbers and last hash. Stored in the row that every change locks, so numbers have no gaps and the chain no
 * forks.
 */
export interface AuditHead {
  event_seq: number;
  audit_seq: number;
  audit_hash: string;
}

/**
 * Builds the rows of one change and the head after it. `records` go into audit and events, `emitted` only into events.
 * Each audit row contains the hash of the previous one.
 */
export function auditRows(
  head: AuditHead,
  records: readonly ChangeRecord[],
  emitted: readonly ChangeRecord[],
  actor: Actor,
  nowMs: number,
): { head: AuditHead; audit: AuditRow[]; events: EventRow[] } {
  const next = { ...head };
  const audit = records.map(({ action, owner, target, before, after, result = 'ok' }) => {
    const row = {
      seq: ++next.audit_seq,
      id: newId('aud', nowMs),
      at: nowMs,
      actor_type: actor.type,
      actor_id: actor.id,
      org_id: owner.type === 'org' ? owner.id : null,
      action,
      target_type: target.type,
      target_id: target.id,
      ip: actor.ip ?? null,
      user_agent: actor.userAgent ?? null,
      before: json(before),
      after: json(after),
      result,
      prev_hash: next.audit_hash,
    };
    next.audit_hash = linkHash(row);
    return { ...row, hash: next.audit_hash };
  });
  const events = [...records, ...emitted].map((record) => newEvent(++next.event_seq, record, nowMs));
  return { head: next, audit, events };
}

export function newEvent(seq: number, { action, owner, target, after }: ChangeRecord, nowMs: number): EventRow {
  return {
    seq,
    at: nowMs,
    type: action,
    owner_id: owner.id,
    target_type: target.type,
    target_id: target.id,
    data: JSON.stringify(after ?? {}),
  };
}

/** Every column except `hash`, in table order. */
const HASHED_COLUMNS = [
  'seq',
  'id',
  'at',
  'actor_type',
  'actor_id',
  'org_id',
  'action',
  'target_type',
  'target_id',
  'ip',
  'user_agent',
  'before',
  'after',
  'result',
  'prev_hash',
] as const;

function linkHash(row: Omit<AuditRow, 'hash'>): string {
  const values = HASHED_COLUMNS.map((column) => row[column]);
  return createHash('sha256').update(JSON.stringify(values)).digest('hex');
}

export interface AuditFilter {
  targetId?: string;
  actorId?: string;
  orgId?: string;
  action?: string;
  fromMs?: number;
  /** Returns only rows before this one. */
  beforeSeq?: number;
  /** Default 100. */
  limit?: number;
}

const DEFAULT_LIMIT = 100;
const VERIFY_PAGE = 1_000;

export async function readAudit(
  db: Db,
  { targetId, actorId, orgId, action, fromMs, beforeSeq, limit = DEFAULT_LIMIT }: AuditFilter,
): Promise<AuditRow[]> {
  let query = db.selectFrom('audit_events').selectAll().orderBy('seq', 'desc').limit(limit);
  if (targetId !== undefined) query = query.where('target_id', '=', targetId);
  if (actorId !== undefined) query = query.where('actor_id', '=', actorId);
  if (orgId !== undefined) query = query.where('org_id', '=', orgId);
  if (action !== undefined) query = query.where('action', '=', action);
  if (fromMs !== undefined) query = query.where('at', '>=', fromMs);
  if (beforeSeq !== undefined) query = query.where('seq', '<', beforeSeq);
  return query.execute();
}

/** Returns events after `afterSeq`, oldest first. */
export function readEvents(db: Db, afterSeq: number, limit = DEFAULT_LIMIT): Promise<EventRow[]> {
  return db.selectFrom('events').selectAll().where('seq', '>', afterSeq).orderBy('seq').limit(limit).execute();
}

/** Old events are deleted once per this many new ones. */
const PRUNE_EVENTS_EVERY = 256;
const KEEP_EVENTS_MS = 30 * 24 * 3_600_000;
const KEEP_EVENTS = 100_000;

/**
 * Deletes old events. Call it after each write of events. Audit rows are never deleted.
 * @param beforeSeq The last number before the write.
 * @param lastSeq The last number after it.
 */
export async function pruneEvents(tx: Tx, beforeSeq: number, lastSeq: number, nowMs: number): Promise<void> {
  if (Math.floor(beforeSeq / PRUNE_EVENTS_EVERY) === Math.floor(lastSeq / PRUNE_EVENTS_EVERY)) return;
  await tx
    .deleteFrom('events')
    .where((eb) => eb.or([eb('at', '<', nowMs - KEEP_EVENTS_MS), eb('seq', '<=', lastSeq - KEEP_EVENTS)]))
    .execute();
}

/** Checks the whole chain. Returns the number of the first row that is missing or changed, or undefined. */
export async function verifyAudit(db: Db): Promise<number | undefined> {
  // Rows appended during the check come after this head.
  const head = await db.selectFrom('auth_state').select(['audit_seq', 'audit_hash']).executeTakeFirstOrThrow();
  let seq = 0;
  let hash = '';
  while (seq < head.audit_seq) {
    const rows = await db
      .selectFrom('audit_events')
      .selectAll()
      .where('seq', '>', seq)
      .where('seq', '<=', head.audit_seq)
      .orderBy('seq')
      .limit(VERIFY_PAGE)
      .execute();
    for (const row of rows) {
      if (row.seq !== seq + 1 || row.prev_hash !== hash || linkHash(row) !== row.hash) return seq + 1;
      seq++;
      hash = row.hash;
    }
    if (rows.length === 0) return seq + 1;
  }
  return hash === head.audit_hash ? undefined : seq;
}

function json(value: object | undefined): string | null {
  return value === undefined ? null : JSON.stringify(value);
}
