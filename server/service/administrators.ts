import { findAccount } from './accounts';
import { changeOptions, demandAdmin, type ServiceActor } from './actor';
import { serviceChange } from './change';
import { ServiceError } from './errors';
import type { ServiceDb, ServiceTx } from './schema';

/** Makes an account an administrator of the installation, or no longer one; it signs in anew. @throws ServiceError `conflict` for the last one */
export async function setAdministrator(
  db: ServiceDb,
  actor: ServiceActor,
  userId: string,
  isAdmin: boolean,
  nowMs: number,
): Promise<void> {
  demandAdmin(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    // Of two who take the role from each other, one comes first.
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

/** @throws ServiceError `conflict` */
export async function demandOtherAdmin(tx: ServiceTx, userId: string): Promise<void> {
  const other = await tx
    .selectFrom('accounts')
    .innerJoin('users', 'users.id', 'accounts.user_id')
    .select('user_id')
    .where('is_admin', '=', 1)
    .where('users.status', '=', 'active')
    .where('user_id', '!=', userId)
    .executeTakeFirst();
  if (other === undefined) throw new ServiceError('conflict', 'this is the only administrator: the service needs one');
}
