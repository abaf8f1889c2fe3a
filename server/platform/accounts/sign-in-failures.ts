import { type From, SIGN_IN_ACTOR } from './actor';
import { serviceChange } from '../store/change';
import type { ServiceDb, ServiceTx } from '../store/schema';

const WINDOW_MS = 3_600_000;
/** All unknown addresses share one slot. They are not stored, because users type passwords there by mistake. */
const UNKNOWN_USER = 'nobody';

/**
 * Records a failed sign-in in the audit. Within an hour only failures 1, 2, 4, 8, … get an entry, so that a flood
 * cannot fill the audit.
 * @param userId The user with this address, or undefined.
 */
export async function recordFailure(
  db: ServiceDb,
  userId: string | undefined,
  from: From,
  nowMs: number,
): Promise<void> {
  const slot = userId ?? UNKNOWN_USER;
  const isOver = ['sign_in_failures.since', '<=', nowMs - WINDOW_MS] as const;
  const { failures, since } = await db
    .insertInto('sign_in_failures')
    .values({ slot, since: nowMs, failures: 1 })
    .onConflict((conflict) =>
      conflict.column('slot').doUpdateSet((eb) => ({
        failures: eb
          .case()
          .when(...isOver)
          .then(1)
          .else(eb('sign_in_failures.failures', '+', 1))
          .end(),
        since: eb
          .case()
          .when(...isOver)
          .then(nowMs)
          .else(eb.ref('sign_in_failures.since'))
          .end(),
      })),
    )
    .returning(['failures', 'since'])
    .executeTakeFirstOrThrow();
  if (!isPowerOfTwo(failures)) return;
  await serviceChange(db, nowMs, { actor: { ...SIGN_IN_ACTOR, ...from } }, ({ record }) => {
    const user = { type: 'user', id: slot } as const;
    record({
      action: 'account.sign_in_failed',
      owner: user,
      target: user,
      after: { failures, since: new Date(since).toISOString() },
      result: 'denied',
    });
    return Promise.resolve();
  });
}

/** Deletes the counter of a user and returns the number of failures in the last hour. */
export async function forgetFailures(tx: ServiceTx, userId: string, nowMs: number): Promise<number> {
  const row = await tx
    .deleteFrom('sign_in_failures')
    .where('slot', '=', userId)
    .returning(['failures', 'since'])
    .executeTakeFirst();
  return row === undefined || row.since <= nowMs - WINDOW_MS ? 0 : row.failures;
}

function isPowerOfTwo(count: number): boolean {
  return (count & (count - 1)) === 0;
}
