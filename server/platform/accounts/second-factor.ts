import type { ChangeOptions } from 'capstan/internal';
import { type Account, authenticate, demandPassword, findAccount } from './accounts';
import type { From } from './actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { AccountRow, ServiceDb } from '../store/schema';
import { deleteRecoveryCodes, replaceRecoveryCodes, takeRecoveryCode } from './recovery-codes';
import type { SecretBox } from './secret-box';
import { forgetFailures } from './sign-in-failures';
import { isCode, newTotpSecret, totpStep, totpUrl } from './totp';

export interface Credentials {
  email: string;
  password: string;
  /** Six digits, or a recovery code. Required if the account has a second factor. */
  otp?: string;
}

/**
 * Checks password and, if enabled, the second factor: a code or a recovery code. Each works once.
 * @throws ServiceError `otp_required` if only the code is missing, `bad_credentials`, `too_many_attempts`
 */
export function signIn(
  db: ServiceDb,
  box: SecretBox,
  { email, password, otp }: Credentials,
  from: From,
  nowMs: number,
): Promise<Account> {
  const isSecondFactorRight = async (account: AccountRow): Promise<boolean> => {
    if (account.totp_confirmed_at === null) return true;
    if (otp === undefined)
      throw new ServiceError(
        'otp_required',
        'otp: expected the six-digit code of your authenticator, or a recovery code',
      );
    return isCode(otp)
      ? takeCode(db, box, account, otp, nowMs)
      : takeRecoveryCode(db, box, account.user_id, otp, from, nowMs);
  };
  return authenticate(db, email, password, nowMs, { from, isSecondFactorRight });
}

/** Records a sign-in in the audit, with the number of failed attempts before it. */
export async function recordSignIn(
  db: ServiceDb,
  userId: string,
  { ip, userAgent }: From,
  nowMs: number,
): Promise<void> {
  await serviceChange(db, nowMs, { actor: { type: 'user', id: userId, ip, userAgent } }, async ({ tx, record }) => {
    const failures = await forgetFailures(tx, userId, nowMs);
    const user = { type: 'user', id: userId } as const;
    record({
      action: 'account.signed_in',
      owner: user,
      target: user,
      ...(failures === 0 ? {} : { after: { failures_before: failures } }),
    });
  });
}

/** Creates a secret. {@link confirmTotp} enables it. @throws ServiceError `bad_credentials`, `conflict` */
export async function startTotp(
  db: ServiceDb,
  box: SecretBox,
  userId: string,
  password: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<{ secret: string; url: string }> {
  const { email, hasTotp } = await demandPassword(db, userId, password, nowMs, options);
  if (hasTotp) throw new ServiceError('conflict', 'the account already has a second factor: remove it first');
  const secret = newTotpSecret();
  await db
    .updateTable('accounts')
    .set({ totp_secret: box.seal(secret, purposeOf(userId)), totp_confirmed_at: null, totp_last_step: null })
    .where('user_id', '=', userId)
    .execute();
  return { secret, url: totpUrl(secret, email) };
}

/** Switches the second factor on. Returns recovery codes, which cannot be read again. */
export async function confirmTotp(
  db: ServiceDb,
  box: SecretBox,
  userId: string,
  otp: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<string[]> {
  const account = await db.selectFrom('accounts').selectAll().where('user_id', '=', userId).executeTakeFirstOrThrow();
  if (account.totp_secret === null || account.totp_confirmed_at !== null)
    throw new ServiceError('wrong_state', 'no second factor is waiting for confirmation');
  if (!(await takeCode(db, box, account, otp, nowMs)))
    throw new ServiceError('invalid_argument', 'otp: expected the current six-digit code of your authenticator');
  return serviceChange(db, nowMs, options, async ({ tx, rev, record }) => {
    await tx
      .updateTable('accounts')
      .set({ totp_confirmed_at: nowMs, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.totp_on', owner: user, target: user });
    return replaceRecoveryCodes(tx, box, userId);
  });
}

/** Replaces the recovery codes. @throws ServiceError `bad_credentials`, `wrong_state` without a second factor */
export async function renewRecoveryCodes(
  db: ServiceDb,
  box: SecretBox,
  userId: string,
  password: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<string[]> {
  await demandPassword(db, userId, password, nowMs, options);
  return serviceChange(db, nowMs, options, async ({ tx, record }) => {
    const { hasTotp } = await findAccount(tx, userId);
    if (!hasTotp) throw new ServiceError('wrong_state', 'recovery codes need a second factor: turn it on first');
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.recovery_codes_renewed', owner: user, target: user });
    return replaceRecoveryCodes(tx, box, userId);
  });
}

/** @throws ServiceError `bad_credentials` */
export async function removeTotp(
  db: ServiceDb,
  userId: string,
  password: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await demandPassword(db, userId, password, nowMs, options);
  await serviceChange(db, nowMs, options, async ({ tx, rev, record }) => {
    await tx
      .updateTable('accounts')
      .set({ totp_secret: null, totp_confirmed_at: null, totp_last_step: null, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    await deleteRecoveryCodes(tx, userId);
    const user = { type: 'user', id: userId } as const;
    record({ action: 'account.totp_off', owner: user, target: user });
  });
}

/** Uses up a code. Returns false if it is invalid. Of two requests with the same code, only one succeeds. */
async function takeCode(
  db: ServiceDb,
  box: SecretBox,
  account: AccountRow,
  otp: string,
  nowMs: number,
): Promise<boolean> {
  const { user_id: userId, totp_secret: sealed, totp_last_step: lastStep } = account;
  const step = sealed === null ? undefined : totpStep(box.open(sealed, purposeOf(userId)), otp, nowMs, lastStep);
  if (step === undefined) return false;
  const { numUpdatedRows } = await db
    .updateTable('accounts')
    .set({ totp_last_step: step })
    .where('user_id', '=', userId)
    .where((eb) => eb.or([eb('totp_last_step', 'is', null), eb('totp_last_step', '<', step)]))
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

function purposeOf(userId: string): string {
  return `totp ${userId}`;
}
