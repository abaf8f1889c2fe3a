import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { ServiceDb } from './schema';
import { newToken, tokenHash } from './tokens';

/** A console session that was just opened: both values exist here for the only time. */
export interface NewSession {
  /** The cookie's value. */
  token: string;
  /** What changing requests carry in a header. */
  csrfToken: string;
  expiresAt: number;
}

export interface Session {
  idHash: string;
  userId: string;
  isAdmin: boolean;
  csrfHash: string;
  /** When the password was last asked for; null when it was not since the session was opened. */
  stepUpAt: number | null;
  expiresAt: number;
}

const LIFETIME_MS = 14 * 86_400_000;
const IDLE_MS = 12 * 3_600_000;
/** A session that is used is written this often, not at each request. */
const SEEN_EVERY_MS = 60_000;
const MAX_USER_AGENT_LENGTH = 200;

/** Follows from the cookie's value, which scripts cannot read: our own page asks for it anew after a reload. */
export function csrfTokenOf(token: string): string {
  return createHmac('sha256', token).update('csrf').digest('base64url');
}

/** After a sign-in, always a new one: a value that somebody planted before is never made good. */
export async function openSession(
  db: ServiceDb,
  userId: string,
  from: { ip: string | null; userAgent: string | null },
  nowMs: number,
): Promise<NewSession> {
  const token = newToken();
  const csrfToken = csrfTokenOf(token);
  const expiresAt = nowMs + LIFETIME_MS;
  await db
    .deleteFrom('sessions')
    .where((eb) =>
      eb.or([eb('expires_at', '<', nowMs), eb('idle_expires_at', '<', nowMs), eb('revoked_at', '<', nowMs)]),
    )
    .execute();
  await db
    .insertInto('sessions')
    .values({
      id_hash: tokenHash(token),
      user_id: userId,
      csrf_hash: tokenHash(csrfToken),
      created_ip: from.ip,
      user_agent: from.userAgent?.slice(0, MAX_USER_AGENT_LENGTH) ?? null,
      created_at: nowMs,
      last_seen_at: nowMs,
      idle_expires_at: nowMs + IDLE_MS,
      expires_at: expiresAt,
      revoked_at: null,
      step_up_at: nowMs,
    })
    .execute();
  return { token, csrfToken, expiresAt };
}

/** The session of a cookie's value, if it lives. @param isUse Keeps it from ending for idleness. */
export async function findSession(
  db: ServiceDb,
  token: string,
  nowMs: number,
  isUse = true,
): Promise<Session | undefined> {
  const row = await db
    .selectFrom('sessions')
    .innerJoin('users', 'users.id', 'sessions.user_id')
    .innerJoin('accounts', 'accounts.user_id', 'sessions.user_id')
    .selectAll('sessions')
    .select('is_admin')
    .where('id_hash', '=', tokenHash(token))
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', nowMs)
    .where('idle_expires_at', '>', nowMs)
    .where('users.status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) return undefined;
  if (isUse && nowMs - row.last_seen_at >= SEEN_EVERY_MS) {
    await db
      .updateTable('sessions')
      .set({ last_seen_at: nowMs, idle_expires_at: Math.min(row.expires_at, nowMs + IDLE_MS) })
      .where('id_hash', '=', row.id_hash)
      .execute();
  }
  return {
    idHash: row.id_hash,
    userId: row.user_id,
    isAdmin: row.is_admin === 1,
    csrfHash: row.csrf_hash,
    stepUpAt: row.step_up_at,
    expiresAt: row.expires_at,
  };
}

/** Whether a changing request came from our own page. */
export function isOwnPage({ csrfHash }: Pick<Session, 'csrfHash'>, csrfToken: string): boolean {
  return timingSafeEqual(createHash('sha256').update(csrfToken).digest(), Buffer.from(csrfHash, 'hex'));
}

/** The password was asked for again, and right. */
export async function stepUp(db: ServiceDb, { idHash }: Session, nowMs: number): Promise<void> {
  await db.updateTable('sessions').set({ step_up_at: nowMs }).where('id_hash', '=', idHash).execute();
}

/** All of a user's, or all but one. */
export async function revokeSessions(db: ServiceDb, userId: string, nowMs: number, exceptIdHash = ''): Promise<void> {
  await db
    .updateTable('sessions')
    .set({ revoked_at: nowMs })
    .where('user_id', '=', userId)
    .where('id_hash', '!=', exceptIdHash)
    .where('revoked_at', 'is', null)
    .execute();
}

/** A user's own: `idHash` names it, and is nothing that opens it. False when there is no such session. */
export async function revokeSession(db: ServiceDb, userId: string, idHash: string, nowMs: number): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable('sessions')
    .set({ revoked_at: nowMs })
    .where('user_id', '=', userId)
    .where('id_hash', '=', idHash)
    .where('revoked_at', 'is', null)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

export interface SessionView {
  idHash: string;
  createdIp: string | null;
  userAgent: string | null;
  createdAt: number;
  lastSeenAt: number;
}

/** Those that live, the one used last first. */
export async function listSessions(db: ServiceDb, userId: string, nowMs: number): Promise<SessionView[]> {
  const rows = await db
    .selectFrom('sessions')
    .selectAll()
    .where('user_id', '=', userId)
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', nowMs)
    .where('idle_expires_at', '>', nowMs)
    .orderBy('last_seen_at', 'desc')
    .execute();
  return rows.map(
    ({
      id_hash: idHash,
      created_ip: createdIp,
      user_agent: userAgent,
      created_at: createdAt,
      last_seen_at: lastSeenAt,
    }) => ({ idHash, createdIp, userAgent, createdAt, lastSeenAt }),
  );
}
