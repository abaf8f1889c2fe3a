import { addressBlock, type ChangeOptions, ensureOwner, hashSecret, verifySecret } from 'capstan/internal';
import { type From, NOWHERE } from './actor';
import { checkDisplayName, checkEmail, checkPassword, NO_PASSWORD } from './account-values';
import { serviceChange, type ServiceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { AccountRow, ServiceDb, ServiceTx } from '../store/schema';
import { NO_QUOTAS, type Quotas, quotasOf } from './quota-columns';
import { recordFailure } from './sign-in-failures';
import { newToken, tokenHash } from './tokens';

/** A user account, as the API returns it. */
export interface Account {
  userId: string;
  email: string;
  name: string;
  isAdmin: boolean;
  locale: AccountRow['locale'];
  theme: AccountRow['theme'];
  /** False for an account that signs in with an identity provider alone. */
  hasPassword: boolean;
  /** Whether sign-in requires a second factor. */
  hasTotp: boolean;
  quotas: Quotas;
  rev: number;
}

export interface NewAccount {
  email: string;
  name: string;
  password: string;
}

const LINK_LIFETIME_MS = 24 * 3_600_000;
const FREE_FAILURES = 5;
const FIRST_BLOCK_MS = 60_000;
const LONGEST_BLOCK_MS = 900_000;
/** Failures are deleted after this time without a new one. */
const FORGET_MS = 3_600_000;

/**
 * Creates the token of a link that creates the first administrator. Earlier links stop working.
 * @throws ServiceError `gone` if an administrator exists.
 */
export async function createBootstrapLink(db: ServiceDb, nowMs: number): Promise<string> {
  const token = newToken();
  await serviceChange(db, nowMs, {}, async ({ tx }) => {
    await demandNoAdmin(tx);
    await tx.deleteFrom('bootstrap_links').execute();
    await tx
      .insertInto('bootstrap_links')
      .values({ token_hash: tokenHash(token), created_at: nowMs, expires_at: nowMs + LINK_LIFETIME_MS })
      .execute();
  });
  return token;
}

/** Creates the first administrator. The link works once. @throws ServiceError `gone` */
export async function redeemBootstrapLink(
  db: ServiceDb,
  token: string,
  spec: NewAccount,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Account> {
  const values = await prepareAccount(spec);
  return serviceChange(db, nowMs, options, async (context) => {
    await demandNoAdmin(context.tx);
    const { numDeletedRows } = await context.tx
      .deleteFrom('bootstrap_links')
      .where('token_hash', '=', tokenHash(token))
      .where('expires_at', '>', nowMs)
      .executeTakeFirst();
    if (numDeletedRows === 0n)
      throw new ServiceError(
        'gone',
        'this link was used, replaced or has expired: restart the service to get a new one',
      );
    return insertAccount(context, values, true);
  });
}

/** Creates the first administrator without a link, for unattended starts. Returns undefined if one already exists. */
export async function ensureFirstAdmin(db: ServiceDb, spec: NewAccount, nowMs: number): Promise<Account | undefined> {
  const values = await prepareAccount(spec);
  if (await hasAdmin(db)) return undefined;
  return serviceChange(db, nowMs, {}, async (context) =>
    (await hasAdmin(context.tx)) ? undefined : insertAccount(context, values, true),
  );
}

export async function createAccount(
  db: ServiceDb,
  spec: NewAccount,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Account> {
  const values = await prepareAccount(spec);
  return serviceChange(db, nowMs, options, (context) => insertAccount(context, values, false));
}

export async function findAccount(db: ServiceDb | ServiceTx, userId: string): Promise<Account> {
  const row = await db
    .selectFrom('accounts')
    .innerJoin('users', 'users.id', 'accounts.user_id')
    .selectAll('accounts')
    .where('user_id', '=', userId)
    .where('users.status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'account not found');
  return toAccount(row);
}

export interface AuthenticateOptions {
  /** Recorded in the audit if authentication fails. */
  from?: From;
  isSecondFactorRight?: (account: AccountRow) => Promise<boolean>;
}

/**
 * Returns the account of an email address and password. Every wrong input costs the same work and gets the same error.
 * Too many failures from one network address block it for this account for a while, whether or not the account exists.
 * Other addresses can still sign in, so no user can lock out another. Wrong codes after the right password count from
 * all addresses together: only a caller with the password can cause them.
 * @throws ServiceError `bad_credentials`, `too_many_attempts`
 */
export async function authenticate(
  db: ServiceDb,
  email: string,
  password: string,
  nowMs: number,
  { from = NOWHERE, isSecondFactorRight }: AuthenticateOptions = {},
): Promise<Account> {
  const address = email.trim().normalize('NFC').toLowerCase();
  const passwordSlot = passwordSlotOf(address, from);
  const codeSlot = tokenHash(`code\n${address}`);
  await demandAttempt(db, passwordSlot, nowMs);
  const row = await db
    .selectFrom('accounts')
    .innerJoin('users', 'users.id', 'accounts.user_id')
    .selectAll('accounts')
    .where('email', '=', address)
    .where('users.status', '=', 'active')
    .executeTakeFirst();
  const hash = row?.password_hash ?? NO_PASSWORD;
  const isPasswordRight = await verifySecret(hash === NO_PASSWORD ? await dummyHash() : hash, password);
  const refuse = async (slot: string): Promise<never> => {
    await countFailure(db, slot, nowMs);
    await recordFailure(db, row?.user_id, from, nowMs);
    throw new ServiceError('bad_credentials', 'wrong email address or password');
  };
  if (row === undefined || !isPasswordRight) return refuse(passwordSlot);
  if (isSecondFactorRight !== undefined) {
    await demandAttempt(db, codeSlot, nowMs);
    if (!(await isSecondFactorRight(row))) return refuse(codeSlot);
    await db.deleteFrom('login_attempts').where('slot', '=', codeSlot).execute();
  }
  await db.deleteFrom('login_attempts').where('slot', '=', passwordSlot).execute();
  return toAccount(row);
}

/** Ends the delay of this network address after wrong passwords. */
export async function forgetAttempts(tx: ServiceTx, email: string, from: From): Promise<void> {
  await tx.deleteFrom('login_attempts').where('slot', '=', passwordSlotOf(email, from)).execute();
}

function passwordSlotOf(email: string, { ip }: From): string {
  return tokenHash(`${addressBlock(ip ?? '')}\n${email}`);
}

/** @throws ServiceError `too_many_attempts` */
async function demandAttempt(db: ServiceDb, slot: string, nowMs: number): Promise<void> {
  const attempts = await db
    .selectFrom('login_attempts')
    .select('blocked_until')
    .where('slot', '=', slot)
    .executeTakeFirst();
  if (attempts !== undefined && attempts.blocked_until > nowMs)
    throw new ServiceError(
      'too_many_attempts',
      `too many failed attempts: try again in ${Math.ceil((attempts.blocked_until - nowMs) / 1000)} s`,
    );
}

/**
 * Checks a user's password again.
 * @throws ServiceError `bad_credentials`, `too_many_attempts`, `wrong_state` without a password
 */
export async function demandPassword(
  db: ServiceDb,
  userId: string,
  password: string,
  nowMs: number,
  { actor }: ChangeOptions,
): Promise<Account> {
  const { email, hasPassword } = await findAccount(db, userId);
  if (!hasPassword)
    throw new ServiceError(
      'wrong_state',
      'this account has no password: change the password and the second factor at the identity provider; to delete the account, ask an administrator (capstan accounts delete)',
    );
  return authenticate(db, email, password, nowMs, {
    from: { ip: actor?.ip ?? null, userAgent: actor?.userAgent ?? null },
  });
}

/**
 * Changes the password. Ends all sessions of the user and open links that set a password.
 * @throws ServiceError `bad_credentials`
 */
export async function changePassword(
  db: ServiceDb,
  userId: string,
  current: string,
  wanted: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  const { email } = await demandPassword(db, userId, current, nowMs, options);
  const hash = await hashSecret(checkPassword(wanted, email));
  await serviceChange(db, nowMs, options, async ({ tx, rev, record }) => {
    await tx
      .updateTable('accounts')
      .set({ password_hash: hash, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    await tx
      .updateTable('sessions')
      .set({ revoked_at: nowMs })
      .where('user_id', '=', userId)
      .where('revoked_at', 'is', null)
      .execute();
    await tx.deleteFrom('password_resets').where('user_id', '=', userId).execute();
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.password_changed', owner: user, target: user });
  });
}

/**
 * Changes the address for sign-in and invitations. Sessions continue.
 * @throws ServiceError `bad_credentials`, `conflict`
 */
export async function changeEmail(
  db: ServiceDb,
  userId: string,
  wanted: string,
  password: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Account> {
  const email = checkEmail(wanted);
  await demandPassword(db, userId, password, nowMs, options);
  checkPassword(password, email);
  return serviceChange(db, nowMs, options, async ({ tx, rev, touch, record }) => {
    const { email: before } = await findAccount(tx, userId);
    if (email !== before) {
      await demandFreeEmail(tx, email);
      await tx.updateTable('accounts').set({ email, updated_at: nowMs, rev }).where('user_id', '=', userId).execute();
      await tx.updateTable('users').set({ name: email, updated_at: nowMs, rev }).where('id', '=', userId).execute();
      await touch('owner', userId);
      const user = { type: 'user', id: userId } as const;
      record({
        action: 'account.email_changed',
        owner: user,
        target: user,
        before: { email: before },
        after: { email },
      });
    }
    return findAccount(tx, userId);
  });
}

export interface AccountEdit {
  name?: string;
  locale?: AccountRow['locale'];
  theme?: AccountRow['theme'];
}

export async function editAccount(
  db: ServiceDb,
  userId: string,
  edit: AccountEdit,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Account> {
  const name = edit.name === undefined ? {} : { display_name: checkDisplayName(edit.name) };
  return serviceChange(db, nowMs, options, async ({ tx, rev }) => {
    const account = await findAccount(tx, userId);
    if (options.ifRev !== undefined && options.ifRev !== account.rev)
      throw new ServiceError(
        'stale',
        `the account has changed: expected revision ${options.ifRev}, it is now ${account.rev}`,
      );
    const { locale = account.locale, theme = account.theme } = edit;
    await tx
      .updateTable('accounts')
      .set({ ...name, locale, theme, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    return findAccount(tx, userId);
  });
}

export interface PreparedAccount {
  email: string;
  name: string;
  hash: string;
}

/**
 * Validates a new account and hashes its password. Call it before the transaction, which holds the lock of all writers.
 */
export async function prepareAccount(spec: NewAccount): Promise<PreparedAccount> {
  const email = checkEmail(spec.email);
  const name = checkDisplayName(spec.name);
  return { email, name, hash: await hashSecret(checkPassword(spec.password, email)) };
}

export async function insertAccount(
  { access, tx, rev, nowMs, record }: ServiceChange,
  { email, name, hash }: PreparedAccount,
  isAdmin: boolean,
): Promise<Account> {
  const taken = await tx.selectFrom('accounts').select('user_id').where('email', '=', email).executeTakeFirst();
  if (taken !== undefined) throw new ServiceError('conflict', EMAIL_TAKEN);
  const user = await ensureOwner(access, { type: 'user', name: email });
  const row: AccountRow = {
    user_id: user.id,
    email,
    display_name: name,
    password_hash: hash,
    locale: 'en',
    theme: 'system',
    is_admin: isAdmin ? 1 : 0,
    totp_secret: null,
    totp_confirmed_at: null,
    totp_last_step: null,
    ...NO_QUOTAS,
    created_at: nowMs,
    updated_at: nowMs,
    rev,
  };
  await tx.insertInto('accounts').values(row).execute();
  record({ action: 'account.created', owner: user, target: user, after: { email, is_admin: isAdmin } });
  return toAccount(row);
}

const EMAIL_TAKEN = 'email: an account with this address already exists';

/** Checks `users` too, because a user without an account may own keys under this name. */
async function demandFreeEmail(tx: ServiceTx, email: string): Promise<void> {
  const taken = await tx.selectFrom('users').select('id').where('name', '=', email).executeTakeFirst();
  if (taken !== undefined) throw new ServiceError('conflict', EMAIL_TAKEN);
}

async function demandNoAdmin(tx: ServiceTx): Promise<void> {
  if (await hasAdmin(tx)) throw new ServiceError('gone', 'an administrator already exists');
}

async function hasAdmin(db: ServiceDb | ServiceTx): Promise<boolean> {
  return (
    (await db
      .selectFrom('accounts')
      .innerJoin('users', 'users.id', 'accounts.user_id')
      .select('user_id')
      .where('is_admin', '=', 1)
      .where('users.status', '=', 'active')
      .executeTakeFirst()) !== undefined
  );
}

async function countFailure(db: ServiceDb, slot: string, nowMs: number): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await tx
      .deleteFrom('login_attempts')
      .where('updated_at', '<', nowMs - FORGET_MS)
      .execute();
    const { failures } = await tx
      .insertInto('login_attempts')
      .values({ slot, failures: 1, blocked_until: 0, updated_at: nowMs })
      .onConflict((conflict) =>
        conflict
          .column('slot')
          .doUpdateSet((eb) => ({ failures: eb('login_attempts.failures', '+', 1), updated_at: nowMs })),
      )
      .returning('failures')
      .executeTakeFirstOrThrow();
    if (failures < FREE_FAILURES) return;
    const blockedMs = Math.min(LONGEST_BLOCK_MS, FIRST_BLOCK_MS * 2 ** (failures - FREE_FAILURES));
    await tx
      .updateTable('login_attempts')
      .set({ blocked_until: nowMs + blockedMs })
      .where('slot', '=', slot)
      .execute();
  });
}

let dummy: Promise<string> | undefined;

/** Returns a hash that no password matches, so that an unknown address costs the same time. */
function dummyHash(): Promise<string> {
  dummy ??= hashSecret(newToken());
  return dummy;
}

function toAccount(row: AccountRow): Account {
  return {
    userId: row.user_id,
    email: row.email,
    name: row.display_name,
    isAdmin: row.is_admin === 1,
    locale: row.locale,
    theme: row.theme,
    hasPassword: row.password_hash !== NO_PASSWORD,
    hasTotp: row.totp_confirmed_at !== null,
    quotas: quotasOf(row),
    rev: row.rev,
  };
}
