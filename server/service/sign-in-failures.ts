import { type From, SIGN_IN_ACTOR } from './actor';
import { serviceChange } from './change';
import type { ServiceDb, ServiceTx } from './schema';

const WINDOW_MS = 3_600_000;
/** All addresses that no account has are counted as one: what was typed there may be a password. */
const NOBODY = 'nobody';

/**
 * Tells the audit of a failure. The first of an hour gets an entry, and each that doubles their number: a flood fills nothing, however long it lasts and however many addresses it tries.
 * @param userId Whose address it was; undefined when nobody has it.
 */
export async function recordFailure(
  db: ServiceDb,
  userId: string | undefined,
  from: From,
  nowMs: number,
): Promise<void> {
  const slot = userId ?? NOBODY;
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

/** How many there were within the hour, of which nothing is kept. */
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
