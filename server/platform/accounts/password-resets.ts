import { hashSecret } from 'capstan/internal';
import { findAccount, forgetAttempts } from './accounts';
import { checkPassword } from './account-values';
import { changeOptions, demandAdmin, type From, type ServiceActor } from './actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { revokeSessions } from './sessions';
import { newToken, tokenHash } from './tokens';

/** A link for one account. Its token is not stored and cannot be read again. */
export interface PasswordReset {
  email: string;
  token: string;
  expiresAt: number;
}

const LIFETIME_MS = 24 * 3_600_000;

/**
 * Creates the token of a link that sets a new password. Earlier links for the account stop working.
 * @throws ServiceError `forbidden`, `not_found`, `conflict` if an identity provider has the account
 */
export async function createPasswordReset(
  db: ServiceDb,
  actor: ServiceActor,
  userId: string,
  nowMs: number,
): Promise<PasswordReset> {
  demandAdmin(actor);
  const token = newToken();
  const expiresAt = nowMs + LIFETIME_MS;
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, record }) => {
    // Check again in the transaction: the role may be revoked at the same time.
    demandAdmin({ ...actor, isAdmin: (await findAccount(tx, actor.userId)).isAdmin });
    const { email } = await findAccount(tx, userId);
    await demandNoProvider(tx, userId);
    await tx.deleteFrom('password_resets').where('user_id', '=', userId).execute();
    await tx
      .insertInto('password_resets')
      .values({ token_hash: tokenHash(token), user_id: userId, created_at: nowMs, expires_at: expiresAt })
      .execute();
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.password_reset_link', owner: user, target: user });
    return { email, token, expiresAt };
  });
}

/**
 * Sets a new password once and ends all sessions of the user. The second factor stays.
 * @throws ServiceError `gone`, `invalid_argument`
 */
export async function redeemPasswordReset(
  db: ServiceDb,
  token: string,
  password: string,
  from: From,
  nowMs: number,
): Promise<void> {
  const { userId, email } = await demandReset(db, token, nowMs);
  // Hash before the transaction, which holds the lock of all writers.
  const hash = await hashSecret(checkPassword(password, email));
  const actor = { type: 'user', id: userId, ...from } as const;
  await serviceChange(db, nowMs, { actor }, async ({ tx, rev, record }) => {
    await demandReset(tx, token, nowMs);
    await tx.deleteFrom('password_resets').where('user_id', '=', userId).execute();
    await tx
      .updateTable('accounts')
      .set({ password_hash: hash, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    await revokeSessions(tx, userId, nowMs);
    await forgetAttempts(tx, email, from);
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.password_reset', owner: user, target: user });
  });
}

/** With a password, a user could sign in although the provider refuses it. */
async function demandNoProvider(tx: ServiceTx, userId: string): Promise<void> {
  const row = await tx
    .selectFrom('identities')
    .innerJoin('identity_providers', 'identity_providers.id', 'identities.provider_id')
    .select('name')
    .where('user_id', '=', userId)
    .executeTakeFirst();
  if (row !== undefined)
    throw new ServiceError('conflict', `this account signs in with ${row.name} and has no password`);
}

async function demandReset(
  db: ServiceDb | ServiceTx,
  token: string,
  nowMs: number,
): Promise<{ userId: string; email: string }> {
  const row = await db
    .selectFrom('password_resets')
    .innerJoin('accounts', 'accounts.user_id', 'password_resets.user_id')
    .select(['accounts.user_id as userId', 'email'])
    .where('token_hash', '=', tokenHash(token))
    .where('expires_at', '>', nowMs)
    .executeTakeFirst();
  if (row === undefined)
    throw new ServiceError('gone', 'this link was used, replaced or has expired: ask an administrator for a new one');
  return row;
}
