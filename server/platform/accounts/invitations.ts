import { type ChangeOptions, type MemberRole, newId } from 'capstan/internal';
import { checkEmail } from './account-values';
import { findAccount, insertAccount, prepareAccount } from './accounts';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import { addMember, demandRight, roleOf } from './organizations';
import { demandRoleChange, ROLES } from './roles';
import type { InvitationRow, ServiceDb, ServiceTx } from '../store/schema';
import { newToken, tokenHash } from './tokens';

/** An invitation without its token. Only the inviter sees the token, once. */
export interface Invitation {
  id: string;
  orgId: string;
  email: string;
  role: MemberRole;
  invitedBy: string;
  expiresAt: number;
}

const LIFETIME_MS = 7 * 86_400_000;

/** Invites an address with a role no higher than the inviter's. Revokes an earlier invitation of the same address. */
export async function invite(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  spec: { email: string; role: MemberRole },
  nowMs: number,
  options: ChangeOptions = {},
): Promise<{ invitation: Invitation; token: string }> {
  const email = checkEmail(spec.email);
  if (!ROLES.includes(spec.role)) throw new ServiceError('invalid_argument', `role: expected ${ROLES.join(', ')}`);
  const token = newToken();
  return serviceChange(db, nowMs, options, async ({ tx, record }) => {
    demandRoleChange(await roleOf(tx, orgId, actorId), null, spec.role);
    const member = await tx
      .selectFrom('memberships')
      .innerJoin('accounts', 'accounts.user_id', 'memberships.user_id')
      .select('email')
      .where('org_id', '=', orgId)
      .where('email', '=', email)
      .executeTakeFirst();
    if (member !== undefined) throw new ServiceError('conflict', 'email: a user with this address is already a member');
    await tx
      .updateTable('invitations')
      .set({ revoked_at: nowMs })
      .where('org_id', '=', orgId)
      .where('email', '=', email)
      .where('accepted_at', 'is', null)
      .where('revoked_at', 'is', null)
      .execute();
    const row: InvitationRow = {
      id: newId('inv', nowMs),
      org_id: orgId,
      email,
      role: spec.role,
      token_hash: tokenHash(token),
      expires_at: nowMs + LIFETIME_MS,
      accepted_at: null,
      revoked_at: null,
      invited_by: actorId,
      created_at: nowMs,
    };
    await tx.insertInto('invitations').values(row).execute();
    const org = { type: 'org', id: orgId } as const;
    record({
      action: 'member.invited',
      owner: org,
      target: org,
      after: { invitation: row.id, email, role: spec.role },
    });
    return { invitation: toInvitation(row), token };
  });
}

/** Returns the open invitations, for members who may invite. */
export async function listInvitations(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  nowMs: number,
): Promise<Invitation[]> {
  await demandRight(db, orgId, actorId, 'member.change');
  const rows = await db
    .selectFrom('invitations')
    .selectAll()
    .where('org_id', '=', orgId)
    .where('accepted_at', 'is', null)
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', nowMs)
    .orderBy('id')
    .execute();
  return rows.map(toInvitation);
}

export async function revokeInvitation(
  db: ServiceDb,
  actorId: string,
  orgId: string,
  invitationId: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await serviceChange(db, nowMs, options, async ({ tx, record }) => {
    await demandRight(tx, orgId, actorId, 'member.change');
    const { numUpdatedRows } = await tx
      .updateTable('invitations')
      .set({ revoked_at: nowMs })
      .where('id', '=', invitationId)
      .where('org_id', '=', orgId)
      .where('accepted_at', 'is', null)
      .where('revoked_at', 'is', null)
      .executeTakeFirst();
    if (numUpdatedRows === 0n) throw new ServiceError('not_found', 'open invitation not found');
    const org = { type: 'org', id: orgId } as const;
    record({ action: 'member.invitation_revoked', owner: org, target: org, before: { invitation: invitationId } });
  });
}

/** Accepts an invitation once. Only the account with the invited address may accept it. */
export async function acceptInvitation(
  db: ServiceDb,
  userId: string,
  token: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<{ orgId: string; role: MemberRole }> {
  return serviceChange(db, nowMs, options, async (context) => {
    const { tx } = context;
    const row = await openInvitation(tx, token, nowMs);
    const { email } = await findAccount(tx, userId);
    if (email !== row.email)
      throw new ServiceError('forbidden', 'this invitation is for a different email address than yours');
    await tx.updateTable('invitations').set({ accepted_at: nowMs }).where('id', '=', row.id).execute();
    await addMember(context, row.org_id, userId, row.role);
    return { orgId: row.org_id, role: row.role };
  });
}

/** Creates an account for the invited address and accepts the invitation. Returns the user id. */
export async function acceptInvitationWithNewAccount(
  db: ServiceDb,
  token: string,
  spec: { name: string; password: string },
  nowMs: number,
): Promise<string> {
  const { email } = await openInvitation(db, token, nowMs);
  const values = await prepareAccount({ ...spec, email });
  return serviceChange(db, nowMs, {}, async (context) => {
    const { tx } = context;
    const row = await openInvitation(tx, token, nowMs);
    const { userId } = await insertAccount(context, values, false);
    await tx.updateTable('invitations').set({ accepted_at: nowMs }).where('id', '=', row.id).execute();
    await addMember(context, row.org_id, userId, row.role);
    return userId;
  });
}

/** An invitation as shown to the holder of its token. */
export interface InvitationView {
  organization: string;
  email: string;
  role: MemberRole;
  hasAccount: boolean;
}

export async function findInvitation(db: ServiceDb, token: string, nowMs: number): Promise<InvitationView> {
  const { org_id: orgId, email, role } = await openInvitation(db, token, nowMs);
  const { display_name: organization } = await db
    .selectFrom('org_settings')
    .select('display_name')
    .where('org_id', '=', orgId)
    .executeTakeFirstOrThrow();
  const account = await db.selectFrom('accounts').select('user_id').where('email', '=', email).executeTakeFirst();
  return { organization, email, role, hasAccount: account !== undefined };
}

async function openInvitation(db: ServiceDb | ServiceTx, token: string, nowMs: number): Promise<InvitationRow> {
  const row = await db
    .selectFrom('invitations')
    .innerJoin('organizations', 'organizations.id', 'invitations.org_id')
    .selectAll('invitations')
    .where('token_hash', '=', tokenHash(token))
    .where('organizations.status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined || row.accepted_at !== null || row.revoked_at !== null || row.expires_at <= nowMs)
    throw new ServiceError('gone', 'this invitation was used or revoked, or has expired');
  return row;
}

function toInvitation({
  id,
  org_id: orgId,
  email,
  role,
  invited_by: invitedBy,
  expires_at: expiresAt,
}: InvitationRow): Invitation {
  return { id, orgId, email, role, invitedBy, expiresAt };
}
