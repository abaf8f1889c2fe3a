import { type ChangeOptions, checkExpiry, checkName, newId } from 'capstan/internal';
import { NO_PASSWORD } from './account-values';
import { confirmedIdentities } from './confirmed-identities';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx, TokenRow } from '../store/schema';
import { newToken, tokenHash } from './tokens';

export type TokenRights = TokenRow['rights'];

/** A management token without its secret, as users see it. Times are UTC milliseconds. */
export interface ManagementToken {
  id: string;
  name: string;
  rights: TokenRights;
  display: string;
  expiresAt: number | null;
  lastUsedAt: number | null;
  lastUsedIp: string | null;
  createdAt: number;
}

export interface TokenSpec {
  name: string;
  rights: TokenRights;
  /** Null means that the token never expires. */
  expiresAt?: number | null;
}

/** The user and the rights of a token. */
export interface TokenBearer {
  tokenId: string;
  userId: string;
  isAdmin: boolean;
  rights: TokenRights;
}

const TOKEN_PREFIX = 'mt-';
const TOKEN = /^mt-[0-9A-Za-z]{43}$/;
const MAX_TOKENS = 100;
/** Minimum interval between two writes of a token's last use. */
const USED_EVERY_MS = 60_000;

/** Creates a token. `token` is not stored and cannot be read again. */
export async function createToken(
  db: ServiceDb,
  userId: string,
  spec: TokenSpec,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<{ made: ManagementToken; token: string }> {
  const name = checkName(spec.name);
  const expiresAt = checkExpiry(spec.expiresAt ?? null, nowMs);
  const token = `${TOKEN_PREFIX}${newToken()}`;
  return serviceChange(db, nowMs, options, async ({ tx, record }) => {
    const { count } = await activeTokens(tx, userId, nowMs)
      .select((eb) => eb.fn.countAll<number | string>().as('count'))
      .executeTakeFirstOrThrow();
    if (Number(count) >= MAX_TOKENS)
      throw new ServiceError(
        'quota_exceeded',
        `an account has at most ${MAX_TOKENS} management tokens: delete one first`,
      );
    const row: TokenRow = {
      id: newId('tok', nowMs),
      user_id: userId,
      name,
      token_hash: tokenHash(token),
      display: `${token.slice(0, 7)}…${token.slice(-4)}`,
      rights: spec.rights,
      expires_at: expiresAt,
      last_used_at: null,
      last_used_ip: null,
      created_at: nowMs,
      revoked_at: null,
    };
    await tx.insertInto('management_tokens').values(row).execute();
    record({
      action: 'token.created',
      owner: { type: 'user', id: userId },
      target: { type: 'token', id: row.id },
      after: { name, rights: spec.rights, expires_at: expiresAt },
    });
    return { made: toToken(row), token };
  });
}

/** Returns the active tokens of a user, newest first. */
export async function listTokens(db: ServiceDb, userId: string, nowMs: number): Promise<ManagementToken[]> {
  return (await activeTokens(db, userId, nowMs).selectAll().orderBy('id', 'desc').execute()).map(toToken);
}

export async function revokeToken(
  db: ServiceDb,
  userId: string,
  tokenId: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await serviceChange(db, nowMs, options, async ({ tx, record }) => {
    const { numUpdatedRows } = await tx
      .updateTable('management_tokens')
      .set({ revoked_at: nowMs })
      .where('id', '=', tokenId)
      .where('user_id', '=', userId)
      .where('revoked_at', 'is', null)
      .executeTakeFirst();
    if (numUpdatedRows === 0n) throw new ServiceError('not_found', 'management token not found');
    record({ action: 'token.deleted', owner: { type: 'user', id: userId }, target: { type: 'token', id: tokenId } });
  });
}

/** Revokes all tokens of a user. */
export async function revokeTokens(tx: ServiceTx, userId: string, nowMs: number): Promise<void> {
  await tx
    .updateTable('management_tokens')
    .set({ revoked_at: nowMs })
    .where('user_id', '=', userId)
    .where('revoked_at', 'is', null)
    .execute();
}

/**
 * Returns the bearer of an active token, and records the use. The token of an account without a password works only
 * while an identity provider confirms the user.
 */
export async function findToken(
  db: ServiceDb,
  token: string,
  ip: string | null,
  nowMs: number,
): Promise<TokenBearer | undefined> {
  if (!TOKEN.test(token)) return undefined;
  const row = await db
    .selectFrom('management_tokens')
    .innerJoin('accounts', 'accounts.user_id', 'management_tokens.user_id')
    .innerJoin('users', 'users.id', 'management_tokens.user_id')
    .select(['management_tokens.id', 'management_tokens.user_id', 'rights', 'expires_at', 'last_used_at', 'is_admin'])
    .where('token_hash', '=', tokenHash(token))
    .where('revoked_at', 'is', null)
    .where('users.status', '=', 'active')
    .where((eb) =>
      eb.or([
        eb('password_hash', '!=', NO_PASSWORD),
        eb.exists(confirmedIdentities(db, nowMs).where('identities.user_id', '=', eb.ref('management_tokens.user_id'))),
      ]),
    )
    .executeTakeFirst();
  if (row === undefined || (row.expires_at !== null && row.expires_at <= nowMs)) return undefined;
  if (nowMs - (row.last_used_at ?? 0) >= USED_EVERY_MS)
    await db
      .updateTable('management_tokens')
      .set({ last_used_at: nowMs, last_used_ip: ip })
      .where('id', '=', row.id)
      .execute();
  return { tokenId: row.id, userId: row.user_id, isAdmin: row.is_admin === 1, rights: row.rights };
}

function activeTokens(db: ServiceDb | ServiceTx, userId: string, nowMs: number) {
  return db
    .selectFrom('management_tokens')
    .where('user_id', '=', userId)
    .where('revoked_at', 'is', null)
    .where((eb) => eb.or([eb('expires_at', 'is', null), eb('expires_at', '>', nowMs)]));
}

function toToken({
  id,
  name,
  rights,
  display,
  expires_at: expiresAt,
  last_used_at: lastUsedAt,
  last_used_ip: lastUsedIp,
  created_at: createdAt,
}: TokenRow): ManagementToken {
  return { id, name, rights, display, expiresAt, lastUsedAt, lastUsedIp, createdAt };
}
