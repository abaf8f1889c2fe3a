import { findAccount } from './accounts';
import { changeOptions, demandAdmin, type ServiceActor } from './actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';

/**
 * Grants or revokes the administrator role and ends the sessions of the account.
 * @throws ServiceError `conflict` if it would remove the last administrator.
 */
export async function setAdministrator(
  db: ServiceDb,
  actor: ServiceActor,
  userId: string,
  isAdmin: boolean,
  nowMs: number,
): Promise<void> {
  demandAdmin(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    // Check again in the transaction: two administrators may revoke each other's role at the same time.
    demandAdmin({ ...actor, isAdmin: (await findAccount(tx, actor.userId)).isAdmin });
    const account = await findAccount(tx, userId);
    if (account.isAdmin === isAdmin) return;
    if (!isAdmin) await demandOtherAdmin(tx, userId);
    await tx
      .updateTable('accounts')
      .set({ is_admin: isAdmin ? 1 : 0, updated_at: nowMs, rev })
      .where('user_id', '=', userId)
      .execute();
    await tx
      .updateTable('sessions')
      .set({ revoked_at: nowMs })
      .where('user_id', '=', userId)
      .where('revoked_at', 'is', null)
      .execute();
    const user = { type: 'user', id: userId } as const;
    record({
      action: 'account.role_changed',
      owner: user,
      target: user,
      before: { is_admin: account.isAdmin },
      after: { is_admin: isAdmin },
    });
  });
}

/** @throws ServiceError `conflict` if the user is the only administrator. */
export async function demandOtherAdmin(tx: ServiceTx, userId: string): Promise<void> {
  const other = await tx
    .selectFrom('accounts')
    .innerJoin('users', 'users.id', 'accounts.user_id')
    .select('user_id')
    .where('is_admin', '=', 1)
    .where('users.status', '=', 'active')
    .where('user_id', '!=', userId)
    .executeTakeFirst();
  if (other === undefined)
    throw new ServiceError('conflict', 'this is the only administrator: make another user an administrator first');
}
