import { type ChangeOptions, endOwner, type KeyPolicy, type MemberRole, newId, writeKeyPolicy } from 'capstan/internal';
import { checkDisplayName, checkSlug } from './account-values';
import { serviceChange, type ServiceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import { demandOwnMembership, hasOtherOwner } from './group-memberships';
import { demand, demandRoleChange, type Right } from './roles';
import { revokeSessions } from './sessions';
import type { OrgSettingsRow, ServiceDb, ServiceTx } from '../store/schema';
import { NO_QUOTAS, type Quotas, quotasOf } from './quota-columns';

export interface Organization {
  id: string;
  /** A DNS label; keys and deployments name the owner `org:SLUG`. */
  slug: string;
  name: string;
  /** Null means no limit. */
  quotas: Quotas;
  rev: number;
}

export interface Member {
  userId: string;
  email: string;
  name: string;
  role: MemberRole;
}

export interface OrganizationEdit {
  name?: string;
  /** Null removes the policy. */
  keyPolicy?: KeyPolicy | null;
}

/** Creates an organization. The user becomes its owner. */
export async function createOrganization(
  db: ServiceDb,
  userId: string,
  spec: { slug: string; name: string },
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Organization> {
  const slug = checkSlug(spec.slug);
  const name = checkDisplayName(spec.name);
  return serviceChange(db, nowMs, options, async ({ tx, rev, touch, record }) => {
    const taken = await tx.selectFrom('organizations').select('id').where('name', '=', slug).executeTakeFirst();
    if (taken !== undefined)
      throw new ServiceError('conflict', 'slug: another organization uses this slug or has used it');
    const id = newId('org', nowMs);
    const settings: OrgSettingsRow = {
      org_id: id,
      display_name: name,
      ...NO_QUOTAS,
      created_at: nowMs,
      updated_at: nowMs,
      rev,
    };
    await tx
      .insertInto('organizations')
      .values({ id, name: slug, status: 'active', key_policy: null, created_at: nowMs, updated_at: nowMs, rev })
      .execute();
    await tx.insertInto('org_settings').values(settings).execute();
    await tx
      .insertInto('memberships')
      .values({ org_id: id, user_id: userId, role: 'owner', created_at: nowMs })
      .execute();
    await touch('owner', id);
    const org = { type: 'org', id } as const;
    record({ action: 'owner.created', owner: org, target: org, after: { name: slug } });
    return toOrganization(slug, settings);
  });
}

/** Returns the organizations of a user, ordered by slug. */
export async function listOrganizations(
  db: ServiceDb,
  userId: string,
): Promise<(Organization & { role: MemberRole })[]> {
  const rows = await db
    .selectFrom('memberships')
    .innerJoin('organizations', 'organizations.id', 'memberships.org_id')
    .innerJoin('org_settings', 'org_settings.org_id', 'memberships.org_id')
    .selectAll('org_settings')
    .select(['organizations.name as slug', 'role'])
    .where('user_id', '=', userId)
    .where('organizations.status', '=', 'active')
    .orderBy('slug')
    .execute();
  return rows.map(({ slug, role, ...settings }) => ({ ...toOrganization(slug, settings), role }));
}

export async function editOrganization(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  edit: OrganizationEdit,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<Organization> {
  return serviceChange(db, nowMs, options, async (context) => {
    const { tx, access, rev, record } = context;
    await demandRight(tx, orgId, actorId, 'policy.change');
    const { slug, settings } = await lockedOrganization(tx, orgId);
    if (options.ifRev !== undefined && options.ifRev !== settings.rev)
      throw new ServiceError(
        'stale',
        `the organization has changed: expected revision ${options.ifRev}, it is now ${settings.rev}`,
      );
    const changed: OrgSettingsRow = {
      ...settings,
      updated_at: nowMs,
      rev,
      ...(edit.name === undefined ? {} : { display_name: checkDisplayName(edit.name) }),
    };
    await tx.updateTable('org_settings').set(changed).where('org_id', '=', orgId).execute();
    const org = { type: 'org', id: orgId } as const;
    record({ action: 'org.updated', owner: org, target: org, before: view(settings), after: view(changed) });
    if (edit.keyPolicy !== undefined) await writeKeyPolicy(access, orgId, edit.keyPolicy);
    return toOrganization(slug, changed);
  });
}

/** Deletes an organization and its keys. @throws ServiceError `conflict` if it has deployments or containers. */
export async function deleteOrganization(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await serviceChange(db, nowMs, options, async ({ tx, access }) => {
    await demandRight(tx, orgId, actorId, 'org.delete');
    const deployment = await tx
      .selectFrom('deployments')
      .select('name')
      .where('owner_id', '=', orgId)
      .executeTakeFirst();
    if (deployment !== undefined)
      throw new ServiceError(
        'conflict',
        `the organization has deployments, such as ${deployment.name}: delete them first`,
      );
    const container = await tx.selectFrom('containers').select('name').where('owner_id', '=', orgId).executeTakeFirst();
    if (container !== undefined)
      throw new ServiceError(
        'conflict',
        `the organization has containers, such as ${container.name}: delete them first`,
      );
    await tx
      .updateTable('invitations')
      .set({ revoked_at: nowMs })
      .where('org_id', '=', orgId)
      .where('accepted_at', 'is', null)
      .where('revoked_at', 'is', null)
      .execute();
    await tx.deleteFrom('webhooks').where('owner_id', '=', orgId).execute();
    await tx.deleteFrom('money_budgets').where('owner_id', '=', orgId).execute();
    await endOwner(access, { type: 'org', id: orgId }, actorId);
  });
}

/** Returns a member's role. @throws ServiceError `not_found` for other users, so that they cannot detect it. */
export async function roleOf(db: ServiceDb | ServiceTx, orgId: string, userId: string): Promise<MemberRole> {
  const row = await db
    .selectFrom('memberships')
    .innerJoin('organizations', 'organizations.id', 'memberships.org_id')
    .select('role')
    .where('org_id', '=', orgId)
    .where('user_id', '=', userId)
    .where('organizations.status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'organization not found');
  return row.role;
}

/** Returns the user's role. @throws ServiceError `not_found`, `forbidden` */
export async function demandRight(
  db: ServiceDb | ServiceTx,
  orgId: string,
  userId: string,
  right: Right,
): Promise<MemberRole> {
  const role = await roleOf(db, orgId, userId);
  demand(role, right);
  return role;
}

export async function listMembers(db: ServiceDb, actorId: string, orgId: string): Promise<Member[]> {
  await demandRight(db, orgId, actorId, 'read');
  const rows = await db
    .selectFrom('memberships')
    .innerJoin('accounts', 'accounts.user_id', 'memberships.user_id')
    .select(['memberships.user_id', 'email', 'display_name', 'role'])
    .where('org_id', '=', orgId)
    .orderBy('email')
    .execute();
  return rows.map(({ user_id: userId, email, display_name: name, role }) => ({ userId, email, name, role }));
}

export function setMemberRole(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  userId: string,
  role: MemberRole,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  return changeMember(db, actorId, orgId, userId, role, nowMs, options);
}

/** Removes a member. Members may also remove themselves. */
export function removeMember(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  userId: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  return changeMember(db, actorId, orgId, userId, null, nowMs, options);
}

async function changeMember(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  userId: string,
  to: MemberRole | null,
  nowMs: number,
  options: ChangeOptions,
): Promise<void> {
  await serviceChange(db, nowMs, options, async ({ tx, record }) => {
    const actorRole = await roleOf(tx, orgId, actorId);
    const row = await tx
      .selectFrom('memberships')
      .select('role')
      .where('org_id', '=', orgId)
      .where('user_id', '=', userId)
      .executeTakeFirst();
    const isLeaving = actorId === userId && to === null;
    if (!isLeaving) demandRoleChange(actorRole, row?.role ?? null, to);
    if (row === undefined) throw new ServiceError('not_found', 'member not found');
    await demandOwnMembership(tx, orgId, userId);
    if (row.role === 'owner' && to !== 'owner' && !(await hasOtherOwner(tx, orgId, userId)))
      throw new ServiceError('conflict', 'this is the last owner: make another member an owner first');
    if (to === null)
      await tx.deleteFrom('memberships').where('org_id', '=', orgId).where('user_id', '=', userId).execute();
    else
      await tx
        .updateTable('memberships')
        .set({ role: to })
        .where('org_id', '=', orgId)
        .where('user_id', '=', userId)
        .execute();
    // A user whose role changes must sign in again.
    if (!isLeaving) await revokeSessions(tx, userId, nowMs);
    record({
      action: to === null ? 'member.removed' : 'member.role_changed',
      owner: { type: 'org', id: orgId },
      target: { type: 'user', id: userId },
      before: { role: row.role },
      after: { role: to },
    });
  });
}

/** @throws ServiceError `conflict` if the user is already a member. */
export async function addMember(
  { tx, nowMs, record }: ServiceChange,
  orgId: string,
  userId: string,
  role: MemberRole,
): Promise<void> {
  const known = await tx
    .selectFrom('memberships')
    .select('role')
    .where('org_id', '=', orgId)
    .where('user_id', '=', userId)
    .executeTakeFirst();
  if (known !== undefined) throw new ServiceError('conflict', 'this user is already a member');
  await tx.insertInto('memberships').values({ org_id: orgId, user_id: userId, role, created_at: nowMs }).execute();
  record({
    action: 'member.added',
    owner: { type: 'org', id: orgId },
    target: { type: 'user', id: userId },
    after: { role },
  });
}

async function lockedOrganization(tx: ServiceTx, orgId: string): Promise<{ slug: string; settings: OrgSettingsRow }> {
  const { slug, ...settings } = await tx
    .selectFrom('org_settings')
    .innerJoin('organizations', 'organizations.id', 'org_settings.org_id')
    .selectAll('org_settings')
    .select('organizations.name as slug')
    .where('org_id', '=', orgId)
    .executeTakeFirstOrThrow();
  return { slug, settings };
}

function view({ display_name: name }: OrgSettingsRow): object {
  return { name };
}

function toOrganization(slug: string, row: OrgSettingsRow): Organization {
  return { id: row.org_id, slug, name: row.display_name, quotas: quotasOf(row), rev: row.rev };
}
