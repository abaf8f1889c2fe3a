import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { confirmedIdentities } from './confirmed-identities';
import { newToken, tokenHash } from './tokens';

/** A new console session. Its token is not stored and cannot be read again. */
export interface NewSession {
  /** The cookie's value. */
  token: string;
  /** Sent in a header with each request that changes something. */
  csrfToken: string;
  /** Kept in the storage of the console's origin and sent with each request. Other ports of the host cannot read it. */
  secret: string;
  expiresAt: number;
}

export interface Session {
  idHash: string;
  userId: string;
  isAdmin: boolean;
  csrfHash: string;
  /** Null for a session of an earlier release, which must sign in again where the secret is needed. */
  secretHash: string | null;
  /** When the user last entered the password. Null if not in this session. */
  stepUpAt: number | null;
  /** When the last recorded use was. */
  lastSeenAt: number;
  expiresAt: number;
}

const LIFETIME_MS = 14 * 86_400_000;
const IDLE_MS = 12 * 3_600_000;
/** Minimum interval between two writes of a session's last use. */
const SEEN_EVERY_MS = 60_000;
const MAX_USER_AGENT_LENGTH = 200;

/** Derives the CSRF token from the cookie value, so that the console can fetch it again after a reload. */
export function csrfTokenOf(token: string): string {
  return createHmac('sha256', token).update('csrf').digest('base64url');
}

/** Opens a session after a sign-in. Always uses a new token, which prevents session fixation. */
export async function openSession(
  db: ServiceDb,
  userId: string,
  from: { ip: string | null; userAgent: string | null },
  nowMs: number,
): Promise<NewSession> {
  const token = newToken();
  const csrfToken = csrfTokenOf(token);
  const secret = newToken();
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
      secret_hash: tokenHash(secret),
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
  return { token, csrfToken, secret, expiresAt };
}

/**
 * Returns the active session of a cookie value. A session that began at an identity provider also ends when the
 * provider no longer confirms the user.
 * @param isUse Whether this counts as activity, which extends the idle timeout.
 */
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
    .leftJoin('provider_sessions', 'provider_sessions.id_hash', 'sessions.id_hash')
    .selectAll('sessions')
    .select('is_admin')
    .where('sessions.id_hash', '=', tokenHash(token))
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', nowMs)
    .where('idle_expires_at', '>', nowMs)
    .where('users.status', '=', 'active')
    .where((eb) =>
      eb.or([
        eb('provider_sessions.id_hash', 'is', null),
        eb.exists(
          confirmedIdentities(db, nowMs)
            .where('identities.user_id', '=', eb.ref('sessions.user_id'))
            .where('identities.provider_id', '=', eb.ref('provider_sessions.provider_id').$notNull()),
        ),
      ]),
    )
    .executeTakeFirst();
  if (row === undefined) return undefined;
  const session = {
    idHash: row.id_hash,
    userId: row.user_id,
    isAdmin: row.is_admin === 1,
    csrfHash: row.csrf_hash,
    secretHash: row.secret_hash,
    stepUpAt: row.step_up_at,
    lastSeenAt: row.last_seen_at,
    expiresAt: row.expires_at,
  };
  if (isUse) await recordSessionUse(db, session, nowMs);
  return session;
}

/** Keeps a session alive. Writes at most once in {@link SEEN_EVERY_MS}. */
export async function recordSessionUse(
  db: ServiceDb,
  { idHash, lastSeenAt, expiresAt }: Pick<Session, 'idHash' | 'lastSeenAt' | 'expiresAt'>,
  nowMs: number,
): Promise<void> {
  if (nowMs - lastSeenAt < SEEN_EVERY_MS) return;
  await db
    .updateTable('sessions')
    .set({ last_seen_at: nowMs, idle_expires_at: Math.min(expiresAt, nowMs + IDLE_MS) })
    .where('id_hash', '=', idHash)
    .execute();
}

/** Returns whether a request carries the CSRF token of its session. */
export function isOwnPage({ csrfHash }: Pick<Session, 'csrfHash'>, csrfToken: string): boolean {
  return hasHash(csrfToken, csrfHash);
}

/** Returns whether a request carries the secret of its session. */
export function hasSecret({ secretHash }: Pick<Session, 'secretHash'>, secret: string | undefined): boolean {
  return secretHash !== null && secret !== undefined && hasHash(secret, secretHash);
}

function hasHash(text: string, hash: string): boolean {
  return timingSafeEqual(createHash('sha256').update(text).digest(), Buffer.from(hash, 'hex'));
}

/** Records that the user entered the password again. */
export async function stepUp(db: ServiceDb, { idHash }: Session, nowMs: number): Promise<void> {
  await db.updateTable('sessions').set({ step_up_at: nowMs }).where('id_hash', '=', idHash).execute();
}

/** Ends all sessions of a user, optionally except one. */
export async function revokeSessions(
  db: ServiceDb | ServiceTx,
  userId: string,
  nowMs: number,
  exceptIdHash = '',
): Promise<void> {
  await db
    .updateTable('sessions')
    .set({ revoked_at: nowMs })
    .where('user_id', '=', userId)
    .where('id_hash', '!=', exceptIdHash)
    .where('revoked_at', 'is', null)
    .execute();
}

/** Ends one session of a user. Returns false if it does not exist. `idHash` is safe to show: it is not the cookie. */
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

/** Returns the active sessions of a user, most recently used first. */
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
