import type { MemberRole } from 'capstan/internal';
import { ROLES } from './roles';
import { revokeSessions } from './sessions';
import type { ServiceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceTx } from '../store/schema';

/** Members of `group` at the provider have `role` in the organization. */
export interface GroupMapping {
  group: string;
  org_id: string;
  role: MemberRole;
}

/** Returns the highest role of a user with these groups, by organization. */
export function rolesOf(mappings: readonly GroupMapping[], groups: readonly string[]): Map<string, MemberRole> {
  const roles = new Map<string, MemberRole>();
  for (const { group, org_id: orgId, role } of mappings)
    if (groups.includes(group)) roles.set(orgId, highest([role, roles.get(orgId) ?? role]));
  return roles;
}

/**
 * Makes the memberships of a user follow the groups at a provider. Memberships made by a person do not change. A
 * user who loses a role must sign in again.
 */
export async function applyGroups(
  change: ServiceChange,
  providerId: string,
  userId: string,
  wanted: ReadonlyMap<string, MemberRole>,
): Promise<void> {
  const { tx } = change;
  const grants = await tx.selectFrom('group_memberships').selectAll().where('user_id', '=', userId).execute();
  const old = grants.filter(({ provider_id: id }) => id === providerId);
  const active = await activeOrganizations(tx, [...wanted.keys()]);
  for (const { org_id: orgId } of old.filter(({ org_id: id }) => !wanted.has(id) || !active.has(id))) {
    await tx
      .deleteFrom('group_memberships')
      .where('user_id', '=', userId)
      .where('org_id', '=', orgId)
      .where('provider_id', '=', providerId)
      .execute();
    await setRole(change, orgId, userId);
  }
  for (const [orgId, role] of wanted) {
    const isGranted = grants.some(({ org_id: id }) => id === orgId);
    if (!active.has(orgId) || (!isGranted && (await isMember(tx, orgId, userId)))) continue;
    await tx
      .insertInto('group_memberships')
      .values({ provider_id: providerId, user_id: userId, org_id: orgId, role })
      .onConflict((conflict) => conflict.columns(['user_id', 'org_id', 'provider_id']).doUpdateSet({ role }))
      .execute();
    await setRole(change, orgId, userId);
  }
}

/** @throws ServiceError `conflict` if the groups at a provider decide about this membership. */
export async function demandOwnMembership(tx: ServiceTx, orgId: string, userId: string): Promise<void> {
  const row = await tx
    .selectFrom('group_memberships')
    .innerJoin('identity_providers', 'identity_providers.id', 'group_memberships.provider_id')
    .select('name')
    .where('user_id', '=', userId)
    .where('org_id', '=', orgId)
    .executeTakeFirst();
  if (row !== undefined)
    throw new ServiceError(
      'conflict',
      `this role comes from a group at ${row.name}: change the groups of the user there`,
    );
}

/** Sets the membership to the highest role that the providers grant, or removes it. The last owner stays. */
async function setRole({ tx, nowMs, record }: ServiceChange, orgId: string, userId: string): Promise<void> {
  const roles = await tx
    .selectFrom('group_memberships')
    .select('role')
    .where('user_id', '=', userId)
    .where('org_id', '=', orgId)
    .execute();
  const after = roles.length === 0 ? undefined : highest(roles.map(({ role }) => role));
  const row = await tx
    .selectFrom('memberships')
    .select('role')
    .where('org_id', '=', orgId)
    .where('user_id', '=', userId)
    .executeTakeFirst();
  const before = row?.role;
  if (before === after) return;
  if (before === 'owner' && !(await hasOtherOwner(tx, orgId, userId))) {
    // From now on the membership is like one that a person made, so that a new owner can change it.
    await tx.deleteFrom('group_memberships').where('org_id', '=', orgId).where('user_id', '=', userId).execute();
    record({
      action: 'member.last_owner_kept',
      owner: { type: 'org', id: orgId },
      target: { type: 'user', id: userId },
      after: { role: before },
    });
    return;
  }
  if (after === undefined)
    await tx.deleteFrom('memberships').where('org_id', '=', orgId).where('user_id', '=', userId).execute();
  else if (before === undefined)
    await tx
      .insertInto('memberships')
      .values({ org_id: orgId, user_id: userId, role: after, created_at: nowMs })
      .execute();
  else
    await tx
      .updateTable('memberships')
      .set({ role: after })
      .where('org_id', '=', orgId)
      .where('user_id', '=', userId)
      .execute();
  if (before !== undefined && (after === undefined || rank(after) < rank(before)))
    await revokeSessions(tx, userId, nowMs);
  record({
    action: actionOf(before, after),
    owner: { type: 'org', id: orgId },
    target: { type: 'user', id: userId },
    ...(before === undefined ? {} : { before: { role: before } }),
    after: { role: after ?? null },
  });
}

export async function hasOtherOwner(tx: ServiceTx, orgId: string, userId: string): Promise<boolean> {
  const row = await tx
    .selectFrom('memberships')
    .select('user_id')
    .where('org_id', '=', orgId)
    .where('role', '=', 'owner')
    .where('user_id', '!=', userId)
    .executeTakeFirst();
  return row !== undefined;
}

function actionOf(before: MemberRole | undefined, after: MemberRole | undefined): string {
  if (before === undefined) return 'member.added';
  return after === undefined ? 'member.removed' : 'member.role_changed';
}

async function activeOrganizations(tx: ServiceTx, ids: readonly string[]): Promise<Set<string>> {
  if (ids.length === 0) return new Set();
  const rows = await tx
    .selectFrom('organizations')
    .select('id')
    .where('id', 'in', ids)
    .where('status', '=', 'active')
    .execute();
  return new Set(rows.map(({ id }) => id));
}

async function isMember(tx: ServiceTx, orgId: string, userId: string): Promise<boolean> {
  const row = await tx
    .selectFrom('memberships')
    .select('user_id')
    .where('org_id', '=', orgId)
    .where('user_id', '=', userId)
    .executeTakeFirst();
  return row !== undefined;
}

function rank(role: MemberRole): number {
  return ROLES.indexOf(role);
}

function highest(roles: readonly MemberRole[]): MemberRole {
  return roles.reduce((best, role) => (rank(role) > rank(best) ? role : best));
}
