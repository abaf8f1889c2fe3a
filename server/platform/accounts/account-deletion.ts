import { type ChangeOptions, endOwner } from 'capstan/internal';
import { demandPassword, findAccount } from './accounts';
import { demandOtherAdmin } from './administrators';
import { changeOptions, demandAdmin, type ServiceActor } from './actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { forgetFailures } from './sign-in-failures';

/** Deletes the account of the actor. @throws ServiceError `bad_credentials`, `conflict` */
export async function deleteOwnAccount(
  db: ServiceDb,
  actor: ServiceActor,
  password: string,
  nowMs: number,
): Promise<void> {
  const options = changeOptions(actor);
  await demandPassword(db, actor.userId, password, nowMs, options);
  await deleteAccount(db, actor.userId, nowMs, options);
}

/** Deletes another account, as an administrator. @throws ServiceError `forbidden`, `not_found`, `conflict` */
export async function deleteOtherAccount(
  db: ServiceDb,
  actor: ServiceActor,
  userId: string,
  nowMs: number,
): Promise<void> {
  demandAdmin(actor);
  if (userId === actor.userId)
    throw new ServiceError('conflict', 'this is your own account: delete it in your settings, with your password');
  await deleteAccount(db, userId, nowMs, changeOptions(actor));
}

/**
 * Deletes an account with its keys, tokens, webhooks and sessions, unless something depends on it. The audit keeps its
 * id. A new account may use its address.
 */
async function deleteAccount(db: ServiceDb, userId: string, nowMs: number, options: ChangeOptions): Promise<void> {
  await serviceChange(db, nowMs, options, async ({ tx, access, record }) => {
    const { email, isAdmin } = await findAccount(tx, userId);
    if (isAdmin) await demandOtherAdmin(tx, userId);
    await demandNothingLeft(tx, userId);
    const user = { type: 'user', id: userId } as const;
    const sources = await tx
      .deleteFrom('data_sources')
      .where('owner_type', '=', 'user')
      .where('owner_id', '=', userId)
      .returning(['id', 'name'])
      .execute();
    for (const { id, name } of sources)
      record({ action: 'source.deleted', owner: user, target: { type: 'source', id }, before: { name } });
    const tokens = await tx
      .updateTable('management_tokens')
      .set({ revoked_at: nowMs })
      .where('user_id', '=', userId)
      .where('revoked_at', 'is', null)
      .returning('id')
      .execute();
    for (const { id } of tokens) record({ action: 'token.deleted', owner: user, target: { type: 'token', id } });
    await tx.deleteFrom('webhooks').where('owner_type', '=', 'user').where('owner_id', '=', userId).execute();
    await tx.deleteFrom('money_budgets').where('owner_id', '=', userId).execute();
    for (const table of [
      'identities',
      'group_memberships',
      'sessions',
      'idempotency_keys',
      'password_resets',
      'recovery_codes',
      'accounts',
    ] as const)
      await tx.deleteFrom(table).where('user_id', '=', userId).execute();
    await forgetFailures(tx, userId, nowMs);
    await endOwner(access, user, options.actor?.id ?? null);
    await tx.updateTable('users').set({ name: userId }).where('id', '=', userId).execute();
    record({ action: 'account.deleted', owner: user, target: user, before: { email } });
  });
}

async function demandNothingLeft(tx: ServiceTx, userId: string): Promise<void> {
  const left = [
    [
      'deployments',
      await tx
        .selectFrom('deployments')
        .select('name')
        .where('owner_type', '=', 'user')
        .where('owner_id', '=', userId)
        .orderBy('name')
        .execute(),
    ],
    [
      'containers',
      await tx
        .selectFrom('containers')
        .select('name')
        .where('owner_type', '=', 'user')
        .where('owner_id', '=', userId)
        .orderBy('name')
        .execute(),
    ],
    ['organizations without another owner', await organizationsOf(tx, userId)],
    [
      'data in use by others',
      await tx
        .selectFrom('data_sources')
        .select('name')
        .where('owner_type', '=', 'user')
        .where('owner_id', '=', userId)
        .where('id', 'in', (eb) => eb.selectFrom('data_bindings').select('source_id'))
        .orderBy('name')
        .execute(),
    ],
  ] as const;
  const named = left
    .filter(([, rows]) => rows.length > 0)
    .map(([what, rows]) => `${what}: ${someOf(rows.map(({ name }) => name))}`);
  if (named.length > 0)
    throw new ServiceError('conflict', `the account cannot be deleted while it has ${named.join('; ')}`);
}

/** Returns the organizations that have no other owner. */
function organizationsOf(tx: ServiceTx, userId: string): Promise<{ name: string }[]> {
  return tx
    .selectFrom('memberships')
    .innerJoin('organizations', 'organizations.id', 'memberships.org_id')
    .select('organizations.name as name')
    .where('user_id', '=', userId)
    .where('role', '=', 'owner')
    .where('organizations.status', '=', 'active')
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom('memberships as others')
            .select('others.user_id')
            .whereRef('others.org_id', '=', 'memberships.org_id')
            .where('others.role', '=', 'owner')
            .where('others.user_id', '!=', userId),
        ),
      ),
    )
    .orderBy('name')
    .execute();
}

const MAX_NAMES = 5;

function someOf(names: readonly string[]): string {
  return (
    names.slice(0, MAX_NAMES).join(', ') + (names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : '')
  );
}
