import type { ChangeOptions } from '../access/change';
import { newId } from '../access/ids';
import { endOwner } from '../access/key-changes';
import { type KeyPolicy, writeKeyPolicy } from '../access/key-policy';
import type { MemberRole } from '../access/schema';
import { checkDisplayName, checkSlug } from './account-values';
import { serviceChange, type ServiceChange } from './change';
import { ServiceError } from './errors';
import { demand, demandRoleChange, type Right } from './roles';
import type { OrgSettingsRow, ServiceDb, ServiceTx } from './schema';

export interface Organization {
  id: string;
  /** A DNS label; keys and deployments name the owner `org:SLUG`. */
  slug: string;
  name: string;
  /** Null is no bound. */
  quotaGpu: number | null;
  quotaDeployments: number | null;
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
  /** Null is none. */
  keyPolicy?: KeyPolicy | null;
}

/** Whoever makes an organization owns it. */
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
    if (taken !== undefined) throw new ServiceError('conflict', 'slug: another organization has this one, or had it');
    const id = newId('org', nowMs);
    const settings: OrgSettingsRow = {
      org_id: id,
      display_name: name,
      quota_gpu: null,
      quota_deployments: null,
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

/** Those that a user is a member of, by slug. */
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
        `the organization was changed by somebody else: its revision is ${settings.rev}, not ${options.ifRev}`,
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

/** With its keys; not while it has deployments. */
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
    await endOwner(access, { type: 'org', id: orgId }, actorId);
  });
}

/** @throws ServiceError `not_found` for who is no member: strangers do not learn that it exists. */
export async function roleOf(db: ServiceDb | ServiceTx, orgId: string, userId: string): Promise<MemberRole> {
  const row = await db
    .selectFrom('memberships')
    .innerJoin('organizations', 'organizations.id', 'memberships.org_id')
    .select('role')
    .where('org_id', '=', orgId)
    .where('user_id', '=', userId)
    .where('organizations.status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'there is no such organization');
  return row.role;
}

/** @throws ServiceError */
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

/** Members may leave by themselves. */
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
    if (row === undefined) throw new ServiceError('not_found', 'there is no such member');
    const mine = () =>
      tx
        .selectFrom('memberships')
        .select('user_id')
        .where('org_id', '=', orgId)
        .where('role', '=', 'owner')
        .where('user_id', '!=', userId);
    if (row.role === 'owner' && to !== 'owner' && (await mine().executeTakeFirst()) === undefined) {
      throw new ServiceError('conflict', 'this is the last owner: name another one first');
    }
    if (to === null)
      await tx.deleteFrom('memberships').where('org_id', '=', orgId).where('user_id', '=', userId).execute();
    else
      await tx
        .updateTable('memberships')
        .set({ role: to })
        .where('org_id', '=', orgId)
        .where('user_id', '=', userId)
        .execute();
    // Whoever has another role than before signs in anew.
    if (!isLeaving)
      await tx
        .updateTable('sessions')
        .set({ revoked_at: nowMs })
        .where('user_id', '=', userId)
        .where('revoked_at', 'is', null)
        .execute();
    record({
      action: to === null ? 'member.removed' : 'member.role_changed',
      owner: { type: 'org', id: orgId },
      target: { type: 'user', id: userId },
      before: { role: row.role },
      after: { role: to },
    });
  });
}

/** @throws ServiceError when the user is one already. */
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
  if (known !== undefined) throw new ServiceError('conflict', 'this user is a member already');
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

function toOrganization(
  slug: string,
  { org_id: id, display_name: name, quota_gpu: quotaGpu, quota_deployments: quotaDeployments, rev }: OrgSettingsRow,
): Organization {
  return { id, slug, name, quotaGpu, quotaDeployments, rev };
}
