import {
  type Db,
  type DeploymentRef,
  findDeploymentById,
  type MemberRole,
  type OwnerRef,
  readKeyPolicy,
} from 'capstan/internal';
import { deleteOtherAccount, deleteOwnAccount } from '../accounts/account-deletion';
import {
  type Account,
  type AccountEdit,
  changeEmail,
  changePassword,
  createAccount,
  createBootstrapLink,
  editAccount,
  ensureFirstAdmin,
  findAccount,
  type NewAccount,
  redeemBootstrapLink,
} from '../accounts/accounts';
import { setAdministrator } from '../accounts/administrators';
import { changeOptions, demandOwner, type From, type ServiceActor } from '../accounts/actor';
import { ServiceError } from './errors';
import { beginIdempotent, endIdempotent, type SavedResponse } from './idempotency';
import {
  acceptInvitation,
  acceptInvitationWithNewAccount,
  findInvitation,
  type Invitation,
  type InvitationView,
  invite,
  listInvitations,
  revokeInvitation,
} from '../accounts/invitations';
import {
  createToken,
  findToken,
  listTokens,
  type ManagementToken,
  revokeToken,
  type TokenBearer,
  type TokenSpec,
} from '../accounts/management-tokens';
import {
  createOrganization,
  deleteOrganization,
  editOrganization,
  listMembers,
  listOrganizations,
  type Member,
  type OrganizationEdit,
  removeMember,
  setMemberRole,
} from '../accounts/organizations';
import { createPasswordReset, type PasswordReset, redeemPasswordReset } from '../accounts/password-resets';
import { objectNames } from '../deployments/object-names';
import { findOrganization, type OrganizationView } from '../accounts/owner-names';
import {
  editQuota,
  findQuota,
  listQuotas,
  type OwnerQuota,
  type QuotaEdit,
  type QuotaFilter,
} from '../deployments/quotas';
import type { Right } from '../accounts/roles';
import type { ServiceDb } from './schema';
import { countRecoveryCodes } from '../accounts/recovery-codes';
import {
  confirmTotp,
  type Credentials,
  recordSignIn,
  removeTotp,
  renewRecoveryCodes,
  signIn,
  startTotp,
} from '../accounts/second-factor';
import {
  findSession,
  recordSessionUse,
  listSessions,
  type NewSession,
  openSession,
  revokeSession,
  revokeSessions,
  type Session,
  type SessionView,
} from '../accounts/sessions';
import type { StoreContext } from './store-context';

export type { OrganizationView } from '../accounts/owner-names';

/** Accounts, sessions, tokens, organizations, quotas and rights. */
export interface AccountStore {
  createBootstrapLink(): Promise<string>;
  redeemBootstrapLink(token: string, spec: NewAccount, from: From): Promise<NewSession>;
  ensureFirstAdmin(spec: NewAccount): Promise<Account | undefined>;
  createAccount(spec: NewAccount): Promise<Account>;
  findAccount(userId: string): Promise<Account>;
  editAccount(actor: ServiceActor, edit: AccountEdit, ifRev?: number): Promise<Account>;
  /** Ends all sessions and opens a new one. */
  changePassword(actor: ServiceActor, current: string, wanted: string): Promise<NewSession>;
  changeEmail(actor: ServiceActor, email: string, password: string): Promise<Account>;
  deleteOwnAccount(actor: ServiceActor, password: string): Promise<void>;
  deleteOtherAccount(actor: ServiceActor, userId: string): Promise<void>;
  setAdministrator(actor: ServiceActor, userId: string, isAdmin: boolean): Promise<void>;
  createPasswordReset(actor: ServiceActor, userId: string): Promise<PasswordReset>;
  redeemPasswordReset(token: string, password: string, from: From): Promise<void>;
  startTotp(actor: ServiceActor, password: string): Promise<{ secret: string; url: string }>;
  /** Returns recovery codes, which cannot be read again. */
  confirmTotp(actor: ServiceActor, otp: string): Promise<string[]>;
  renewRecoveryCodes(actor: ServiceActor, password: string): Promise<string[]>;
  countRecoveryCodes(actor: ServiceActor): Promise<number>;
  removeTotp(actor: ServiceActor, password: string): Promise<void>;

  /** @param replaced The session cookie of the sign-in request. Its session ends. */
  signIn(credentials: Credentials, from: From, replaced?: string): Promise<NewSession>;
  /** @param isUse Whether this call extends the idle timeout. Default true. */
  findSession(token: string, isUse?: boolean): Promise<Session | undefined>;
  recordSessionUse(session: Session): Promise<void>;
  listSessions(actor: ServiceActor): Promise<SessionView[]>;
  revokeSession(actor: ServiceActor, idHash: string): Promise<void>;
  revokeSessions(actor: ServiceActor, exceptIdHash?: string): Promise<void>;

  createToken(actor: ServiceActor, spec: TokenSpec): Promise<{ made: ManagementToken; token: string }>;
  listTokens(actor: ServiceActor): Promise<ManagementToken[]>;
  revokeToken(actor: ServiceActor, tokenId: string): Promise<void>;
  findToken(token: string, ip: string | null): Promise<TokenBearer | undefined>;

  /** @param request Text that identifies the request. Only its keyed digest is stored. */
  beginIdempotent(userId: string, key: string, request: string): Promise<SavedResponse | undefined>;
  endIdempotent(userId: string, key: string, response?: SavedResponse): Promise<void>;

  createOrganization(actor: ServiceActor, spec: { slug: string; name: string }): Promise<OrganizationView>;
  listOrganizations(actor: ServiceActor): Promise<OrganizationView[]>;
  findOrganization(actor: ServiceActor, orgId: string): Promise<OrganizationView>;
  editOrganization(
    actor: ServiceActor,
    orgId: string,
    edit: OrganizationEdit,
    ifRev?: number,
  ): Promise<OrganizationView>;
  deleteOrganization(actor: ServiceActor, orgId: string): Promise<void>;
  listMembers(actor: ServiceActor, orgId: string): Promise<Member[]>;
  setMemberRole(actor: ServiceActor, orgId: string, userId: string, role: MemberRole): Promise<void>;
  removeMember(actor: ServiceActor, orgId: string, userId: string): Promise<void>;
  invite(
    actor: ServiceActor,
    orgId: string,
    spec: { email: string; role: MemberRole },
  ): Promise<{ invitation: Invitation; token: string }>;
  listInvitations(actor: ServiceActor, orgId: string): Promise<Invitation[]>;
  revokeInvitation(actor: ServiceActor, orgId: string, invitationId: string): Promise<void>;
  findInvitation(token: string): Promise<InvitationView>;
  acceptInvitation(actor: ServiceActor, token: string): Promise<{ orgId: string }>;
  /** Creates an account for the invited address and signs in. */
  acceptInvitationWithNewAccount(
    token: string,
    spec: { name: string; password: string },
    from: From,
  ): Promise<NewSession>;

  listQuotas(actor: ServiceActor, filter: QuotaFilter): Promise<OwnerQuota[]>;
  findQuota(actor: ServiceActor, ownerId: string): Promise<OwnerQuota>;
  editQuota(actor: ServiceActor, ownerId: string, edit: QuotaEdit, ifRev?: number): Promise<OwnerQuota>;

  /** @throws ServiceError `not_found`, `forbidden`: see `demandOwner`. */
  demandOwner(actor: ServiceActor, owner: OwnerRef, right: Right): Promise<void>;
  /** The same for the owner of a deployment. */
  demandDeployment(actor: ServiceActor, deploymentId: string, right: Right): Promise<DeploymentRef>;
  /** Returns the names of objects by id. Deleted objects are missing. */
  objectNames(ids: readonly string[]): Promise<Map<string, string>>;
  /** Returns how many keys of the owner were created after `sinceMs`. */
  countKeysSince(ownerId: string, sinceMs: number): Promise<number>;
}

export function accountMethods({ db, box, now }: StoreContext): AccountStore {
  const open = (userId: string, from: From) => openSession(db, userId, from, now());
  const view = (actor: ServiceActor, orgId: string) => findOrganization(db, orgId, actor.userId);
  return {
    createBootstrapLink: () => createBootstrapLink(db, now()),
    redeemBootstrapLink: async (token, spec, from) =>
      open((await redeemBootstrapLink(db, token, spec, now())).userId, from),
    ensureFirstAdmin: (spec) => ensureFirstAdmin(db, spec, now()),
    createAccount: (spec) => createAccount(db, spec, now()),
    findAccount: (userId) => findAccount(db, userId),
    editAccount: (actor, edit, ifRev) => editAccount(db, actor.userId, edit, now(), changeOptions(actor, ifRev)),
    changePassword: async (actor, current, wanted) => {
      await changePassword(db, actor.userId, current, wanted, now(), changeOptions(actor));
      return open(actor.userId, actor);
    },
    changeEmail: (actor, email, password) =>
      changeEmail(db, actor.userId, email, password, now(), changeOptions(actor)),
    deleteOwnAccount: (actor, password) => deleteOwnAccount(db, actor, password, now()),
    deleteOtherAccount: (actor, userId) => deleteOtherAccount(db, actor, userId, now()),
    setAdministrator: (actor, userId, isAdmin) => setAdministrator(db, actor, userId, isAdmin, now()),
    createPasswordReset: (actor, userId) => createPasswordReset(db, actor, userId, now()),
    redeemPasswordReset: (token, password, from) => redeemPasswordReset(db, token, password, from, now()),
    startTotp: (actor, password) => startTotp(db, box, actor.userId, password, now(), changeOptions(actor)),
    confirmTotp: (actor, otp) => confirmTotp(db, box, actor.userId, otp, now(), changeOptions(actor)),
    renewRecoveryCodes: (actor, password) =>
      renewRecoveryCodes(db, box, actor.userId, password, now(), changeOptions(actor)),
    countRecoveryCodes: (actor) => countRecoveryCodes(db, actor.userId),
    removeTotp: (actor, password) => removeTotp(db, actor.userId, password, now(), changeOptions(actor)),

    signIn: async (credentials, from, replaced) => {
      const { userId } = await signIn(db, box, credentials, from, now());
      await recordSignIn(db, userId, from, now());
      const before = replaced === undefined ? undefined : await findSession(db, replaced, now());
      if (before !== undefined) await revokeSession(db, before.userId, before.idHash, now());
      return open(userId, from);
    },
    findSession: (token, isUse) => findSession(db, token, now(), isUse),
    recordSessionUse: (session) => recordSessionUse(db, session, now()),
    listSessions: (actor) => listSessions(db, actor.userId, now()),
    revokeSession: async (actor, idHash) => {
      if (!(await revokeSession(db, actor.userId, idHash, now())))
        throw new ServiceError('not_found', 'session not found');
    },
    revokeSessions: (actor, exceptIdHash) => revokeSessions(db, actor.userId, now(), exceptIdHash),

    createToken: (actor, spec) => createToken(db, actor.userId, spec, now(), changeOptions(actor)),
    listTokens: (actor) => listTokens(db, actor.userId, now()),
    revokeToken: (actor, tokenId) => revokeToken(db, actor.userId, tokenId, now(), changeOptions(actor)),
    findToken: (token, ip) => findToken(db, token, ip, now()),

    beginIdempotent: (userId, key, request) => beginIdempotent(db, userId, key, box.digest(request), now()),
    endIdempotent: (userId, key, response) => endIdempotent(db, userId, key, response, now()),

    createOrganization: async (actor, spec) =>
      view(actor, (await createOrganization(db, actor.userId, spec, now(), changeOptions(actor))).id),
    listOrganizations: async (actor) =>
      Promise.all(
        (await listOrganizations(db, actor.userId)).map(async (org) => ({
          ...org,
          keyPolicy: await readKeyPolicy(accessDb(db), org.id),
        })),
      ),
    findOrganization: (actor, orgId) => view(actor, orgId),
    editOrganization: async (actor, orgId, edit, ifRev) =>
      view(actor, (await editOrganization(db, actor.userId, orgId, edit, now(), changeOptions(actor, ifRev))).id),
    deleteOrganization: (actor, orgId) => deleteOrganization(db, actor.userId, orgId, now(), changeOptions(actor)),
    listMembers: (actor, orgId) => listMembers(db, actor.userId, orgId),
    setMemberRole: (actor, orgId, userId, role) =>
      setMemberRole(db, actor.userId, orgId, userId, role, now(), changeOptions(actor)),
    removeMember: (actor, orgId, userId) => removeMember(db, actor.userId, orgId, userId, now(), changeOptions(actor)),
    invite: (actor, orgId, spec) => invite(db, actor.userId, orgId, spec, now(), changeOptions(actor)),
    listInvitations: (actor, orgId) => listInvitations(db, actor.userId, orgId, now()),
    revokeInvitation: (actor, orgId, invitationId) =>
      revokeInvitation(db, actor.userId, orgId, invitationId, now(), changeOptions(actor)),
    findInvitation: (token) => findInvitation(db, token, now()),
    acceptInvitation: (actor, token) => acceptInvitation(db, actor.userId, token, now(), changeOptions(actor)),
    acceptInvitationWithNewAccount: async (token, spec, from) =>
      open(await acceptInvitationWithNewAccount(db, token, spec, now()), from),

    listQuotas: (actor, filter) => listQuotas(db, actor, filter),
    findQuota: (actor, ownerId) => findQuota(db, actor, ownerId),
    editQuota: (actor, ownerId, edit, ifRev) => editQuota(db, actor, ownerId, edit, now(), ifRev),

    demandOwner: (actor, owner, right) => demandOwner(db, actor, owner, right),
    demandDeployment: async (actor, deploymentId, right) => {
      const deployment = await findDeploymentById(accessDb(db), deploymentId);
      if (deployment === undefined) throw new ServiceError('not_found', 'deployment not found');
      await demandOwner(db, actor, { type: deployment.ownerType, id: deployment.ownerId }, right);
      return deployment;
    },
    objectNames: (ids) => objectNames(db, ids),
    countKeysSince: async (ownerId, sinceMs) => {
      const { count } = await db
        .selectFrom('api_keys')
        .select((eb) => eb.fn.countAll<number | string>().as('count'))
        .where('owner_id', '=', ownerId)
        .where('created_at', '>', sinceMs)
        .executeTakeFirstOrThrow();
      return Number(count);
    },
  };
}

/** The service's tables contain those of access. */
function accessDb(db: ServiceDb): Db {
  return db;
}
