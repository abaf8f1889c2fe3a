import { randomInt } from 'node:crypto';
import { serviceChange } from '../store/change';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { From } from './actor';
import type { SecretBox } from './secret-box';

const NUM_CODES = 10;
/** Without letters that look like digits. */
const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** 5 random bits each: 50 bits. */
const CODE_LENGTH = 10;

/** Replaces the recovery codes of a user. Only keyed digests are stored. */
export async function replaceRecoveryCodes(tx: ServiceTx, box: SecretBox, userId: string): Promise<string[]> {
  const codes = Array.from({ length: NUM_CODES }, newCode);
  await deleteRecoveryCodes(tx, userId);
  await tx
    .insertInto('recovery_codes')
    .values(codes.map((code) => ({ user_id: userId, code_digest: digestOf(box, userId, code) })))
    .execute();
  return codes.map((code) => `${code.slice(0, CODE_LENGTH / 2)}-${code.slice(CODE_LENGTH / 2)}`);
}

export async function deleteRecoveryCodes(tx: ServiceTx, userId: string): Promise<void> {
  await tx.deleteFrom('recovery_codes').where('user_id', '=', userId).execute();
}

export async function countRecoveryCodes(db: ServiceDb | ServiceTx, userId: string): Promise<number> {
  const { count } = await db
    .selectFrom('recovery_codes')
    .select((eb) => eb.fn.countAll<number | string>().as('count'))
    .where('user_id', '=', userId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Uses up a recovery code. Returns false if it is wrong. Spaces, hyphens and case do not count. */
export async function takeRecoveryCode(
  db: ServiceDb,
  box: SecretBox,
  userId: string,
  text: string,
  from: From,
  nowMs: number,
): Promise<boolean> {
  const digest = digestOf(box, userId, text.replace(/[\s-]/g, '').toLowerCase());
  const found = await db
    .selectFrom('recovery_codes')
    .select('user_id')
    .where('user_id', '=', userId)
    .where('code_digest', '=', digest)
    .executeTakeFirst();
  if (found === undefined) return false;
  return serviceChange(db, nowMs, { actor: { type: 'user', id: userId, ...from } }, async ({ tx, record }) => {
    const { numDeletedRows } = await tx
      .deleteFrom('recovery_codes')
      .where('user_id', '=', userId)
      .where('code_digest', '=', digest)
      .executeTakeFirst();
    // Another sign-in may have used it at the same time.
    if (numDeletedRows === 0n) return false;
    const user = { type: 'user', id: userId } as const;
    const left = await countRecoveryCodes(tx, userId);
    record({ action: 'account.recovery_code_used', owner: user, target: user, after: { left } });
    return true;
  });
}

function digestOf(box: SecretBox, userId: string, code: string): string {
  return box.digest(`recovery ${userId} ${code}`);
}

function newCode(): string {
  return Array.from({ length: CODE_LENGTH }, () => ALPHABET[randomInt(ALPHABET.length)]).join('');
}
