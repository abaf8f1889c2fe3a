import { type From, SIGN_IN_ACTOR } from '../accounts/actor';
import { checkDisplayName, checkEmail, NO_PASSWORD } from '../accounts/account-values';
import { insertAccount } from '../accounts/accounts';
import { revokeTokens } from '../accounts/management-tokens';
import { deleteRecoveryCodes } from '../accounts/recovery-codes';
import { findSession, type NewSession, openSession, revokeSession, revokeSessions } from '../accounts/sessions';
import { tokenHash } from '../accounts/tokens';
import { serviceChange, type ServiceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { AccountRow, ServiceDb } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { applyGroups, rolesOf } from '../accounts/group-memberships';
import { findProvider, mappingsOf, type ProviderClient, toClient } from './providers';
import type { IdentityRow, ProviderRow } from './sign-in-schema';

/** The claims of a provider about a user. The caller has verified them. */
export interface ProviderClaims {
  issuer: string;
  subject: string;
  email: string | null;
  /** Null if the provider does not say. */
  isEmailVerified: boolean | null;
  name: string | null;
  groups: readonly string[];
}

export interface ProviderTokens {
  /** For the logout at the provider. */
  idToken: string | null;
  refreshToken: string | null;
}

/** An identity and the time of its last confirmation. A response is ignored if a later confirmation exists. */
export interface ReadIdentity {
  issuer: string;
  subject: string;
  confirmedAt: number;
}

/** An identity that the provider must confirm now. */
export interface DueIdentity extends ReadIdentity {
  refreshToken: string;
  provider: ProviderClient;
}

/** How long an identity stays valid after a refresh was due, while the provider does not respond. */
const OUTAGE_MS = 30 * 60_000;
/** If the provider did not respond, a refresh is repeated after this time. */
const RETRY_MS = 60_000;
/** Maximum number of identities to refresh at a time, for each provider. */
const MAX_DUE = 50;
/** Longer tokens are not stored. The provider then asks the user to confirm the logout. */
const MAX_ID_TOKEN_LENGTH = 16_384;
const MAX_STORED_GROUPS = 1_000;

/**
 * Signs in a user of a provider. The first sign-in creates an account without a password, or links an existing account
 * if the provider allows it.
 * @param replaced The session cookie of the request. Its session ends.
 * @throws ServiceError `sign_in_refused`
 */
export async function signInWithProvider(
  context: StoreContext,
  providerId: string,
  claims: ProviderClaims,
  tokens: ProviderTokens,
  from: From,
  replaced?: string,
): Promise<NewSession & { userId: string }> {
  const { db, box, now } = context;
  const nowMs = now();
  const userId = await serviceChange(db, nowMs, { actor: { ...SIGN_IN_ACTOR, ...from } }, async (change) => {
    const provider = await findProvider(change.tx, providerId);
    if (provider.status !== 'active') throw refused('this identity provider is disabled');
    requireAdmission(provider, claims);
    const known = await findIdentity(change, claims);
    const user = known?.user_id ?? (await createOrLinkUser(change, provider, claims));
    await confirm(context, change, provider, { claims, userId: user, known, refreshToken: tokens.refreshToken });
    const actor = { type: 'user', id: user } as const;
    change.record({ action: 'account.signed_in', owner: actor, target: actor, after: { provider: provider.name } });
    return user;
  });
  const before = replaced === undefined ? undefined : await findSession(db, replaced, nowMs);
  if (before !== undefined) await revokeSession(db, before.userId, before.idHash, nowMs);
  const session = await openSession(db, userId, from, nowMs);
  const idHash = tokenHash(session.token);
  const { idToken } = tokens;
  await db
    .insertInto('provider_sessions')
    .values({
      id_hash: idHash,
      provider_id: providerId,
      id_token:
        idToken === null || idToken.length > MAX_ID_TOKEN_LENGTH ? null : box.seal(idToken, idTokenPurpose(idHash)),
    })
    .execute();
  return { ...session, userId };
}

/** Returns whether a sign-in has had no response yet. Now it has had one. */
export async function takeSignIn({ db, now }: StoreContext, state: string, expiresAt: number): Promise<boolean> {
  await db.deleteFrom('used_sign_ins').where('expires_at', '<=', now()).execute();
  const { numInsertedOrUpdatedRows: num } = await db
    .insertInto('used_sign_ins')
    .values({ state_hash: tokenHash(state), expires_at: expiresAt })
    .onConflict((conflict) => conflict.column('state_hash').doNothing())
    .executeTakeFirstOrThrow();
  return num === 1n;
}

/** Returns the provider and the ID token of a session that began at a provider. */
export async function findProviderSession(
  { db, box }: StoreContext,
  idHash: string,
): Promise<{ provider: ProviderClient; idToken: string | null } | undefined> {
  const row = await db
    .selectFrom('provider_sessions')
    .innerJoin('identity_providers', 'identity_providers.id', 'provider_sessions.provider_id')
    .selectAll('identity_providers')
    .select('id_token')
    .where('id_hash', '=', idHash)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  const { id_token: sealed, ...provider } = row;
  return {
    provider: toClient(provider, box),
    idToken: sealed === null ? null : box.open(sealed, idTokenPurpose(idHash)),
  };
}

/**
 * Returns identities to refresh, by provider: their time has come, and a session or a management token of the user
 * needs them.
 */
export async function dueIdentities({ db, box, now }: StoreContext): Promise<DueIdentity[][]> {
  const nowMs = now();
  const providers = await db.selectFrom('identity_providers').selectAll().where('status', '=', 'active').execute();
  const due: DueIdentity[][] = [];
  for (const provider of providers) {
    const rows = await findDue(db, provider.id, nowMs);
    if (rows.length === 0) continue;
    const client = toClient(provider, box);
    due.push(
      rows.map((row) => ({
        issuer: row.issuer,
        subject: row.subject,
        confirmedAt: row.confirmed_at,
        refreshToken: box.open(row.refresh_token!, refreshPurpose(row)),
        provider: client,
      })),
    );
  }
  return due;
}

function findDue(db: ServiceDb, providerId: string, nowMs: number): Promise<IdentityRow[]> {
  return db
    .selectFrom('identities')
    .selectAll()
    .where('provider_id', '=', providerId)
    .where('refresh_at', '<=', nowMs)
    .where('refresh_token', 'is not', null)
    .where((eb) =>
      eb.or([
        eb.exists(
          eb
            .selectFrom('sessions')
            .innerJoin('provider_sessions', 'provider_sessions.id_hash', 'sessions.id_hash')
            .select('sessions.id_hash')
            .whereRef('sessions.user_id', '=', 'identities.user_id')
            .whereRef('provider_sessions.provider_id', '=', 'identities.provider_id')
            .where('sessions.revoked_at', 'is', null)
            .where('sessions.expires_at', '>', nowMs)
            .where('sessions.idle_expires_at', '>', nowMs),
        ),
        eb.exists(
          eb
            .selectFrom('management_tokens')
            .select('management_tokens.id')
            .whereRef('management_tokens.user_id', '=', 'identities.user_id')
            .where('management_tokens.revoked_at', 'is', null)
            .where((of) =>
              of.or([of('management_tokens.expires_at', 'is', null), of('management_tokens.expires_at', '>', nowMs)]),
            ),
        ),
      ]),
    )
    .orderBy('refresh_at')
    .orderBy('subject')
    .limit(MAX_DUE)
    .execute();
}

/**
 * Records that a provider has confirmed a user, and applies the groups. Does nothing if the user has signed in after
 * `confirmedAt`.
 * @returns Why the user may no longer sign in. Undefined if it may.
 */
export async function confirmIdentity(
  context: StoreContext,
  claims: ProviderClaims,
  refreshToken: string | null,
  confirmedAt: number,
): Promise<string | undefined> {
  const { db, now } = context;
  const nowMs = now();
  return serviceChange(db, nowMs, { actor: SIGN_IN_ACTOR }, async (change) => {
    const known = await findIdentity(change, claims);
    if (known === undefined) return 'the identity was deleted';
    if (known.confirmed_at !== confirmedAt) return undefined;
    const provider = await findProvider(change.tx, known.provider_id);
    try {
      requireAdmission(provider, { ...claims, email: claims.email ?? known.email });
    } catch (error) {
      await end(change, known, provider, (error as Error).message);
      return (error as Error).message;
    }
    await confirm(context, change, provider, { claims, userId: known.user_id, known, refreshToken });
    return undefined;
  });
}

/**
 * Ends sessions, management tokens and group memberships of a user that the provider no longer confirms. Does nothing
 * if the user has signed in after `confirmedAt`.
 */
export async function endIdentity(
  { db, now }: StoreContext,
  { issuer, subject, confirmedAt }: ReadIdentity,
  reason: string,
): Promise<void> {
  await serviceChange(db, now(), { actor: SIGN_IN_ACTOR }, async (change) => {
    const known = await findIdentity(change, { issuer, subject });
    if (known?.confirmed_at === confirmedAt)
      await end(change, known, await findProvider(change.tx, known.provider_id), reason);
  });
}

/**
 * Postpones the refresh of all due users of a provider, because it did not respond for this one. This user comes last,
 * so that a failure for one user cannot block the others.
 */
export async function postponeProvider(
  { db, now }: StoreContext,
  { issuer, subject, confirmedAt }: ReadIdentity,
): Promise<void> {
  const nowMs = now();
  const others = db.updateTable('identities').set({ refresh_at: nowMs + RETRY_MS - 1 });
  await others.where('issuer', '=', issuer).where('subject', '!=', subject).where('refresh_at', '<=', nowMs).execute();
  await db
    .updateTable('identities')
    .set({ refresh_at: nowMs + RETRY_MS })
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .where('confirmed_at', '=', confirmedAt)
    .where('refresh_token', 'is not', null)
    .execute();
}

async function confirm(
  { box }: StoreContext,
  change: ServiceChange,
  provider: ProviderRow,
  {
    claims,
    userId,
    known,
    refreshToken,
  }: { claims: ProviderClaims; userId: string; known: IdentityRow | undefined; refreshToken: string | null },
): Promise<void> {
  const { tx, nowMs } = change;
  const { issuer, subject } = claims;
  // Some providers send a refresh token only with the first sign-in.
  const sealed =
    refreshToken === null
      ? (known?.refresh_token ?? null)
      : box.seal(refreshToken, refreshPurpose({ issuer, subject }));
  const dueAt = nowMs + provider.recheck_s * 1000;
  const state = {
    email: claims.email ?? known?.email ?? null,
    groups: JSON.stringify(claims.groups.slice(0, MAX_STORED_GROUPS)),
    refresh_token: sealed,
    refresh_at: sealed === null ? null : dueAt,
    valid_until: sealed === null ? dueAt : dueAt + OUTAGE_MS,
    confirmed_at: nowMs,
  };
  if (known === undefined)
    await tx
      .insertInto('identities')
      .values({ issuer, subject, provider_id: provider.id, user_id: userId, ...state, created_at: nowMs })
      .execute();
  else
    await tx.updateTable('identities').set(state).where('issuer', '=', issuer).where('subject', '=', subject).execute();
  await applyGroups(change, provider.id, userId, rolesOf(mappingsOf(provider), claims.groups));
}

async function end(change: ServiceChange, known: IdentityRow, provider: ProviderRow, reason: string): Promise<void> {
  const { tx, nowMs, record } = change;
  await tx
    .updateTable('identities')
    .set({ groups: '[]', refresh_token: null, refresh_at: null, valid_until: nowMs })
    .where('issuer', '=', known.issuer)
    .where('subject', '=', known.subject)
    .execute();
  await applyGroups(change, provider.id, known.user_id, new Map());
  await tx
    .updateTable('sessions')
    .set({ revoked_at: nowMs })
    .where('user_id', '=', known.user_id)
    .where('revoked_at', 'is', null)
    .where('id_hash', 'in', (eb) =>
      eb.selectFrom('provider_sessions').select('id_hash').where('provider_id', '=', provider.id),
    )
    .execute();
  const user = { type: 'user', id: known.user_id } as const;
  record({ action: 'account.provider_ended', owner: user, target: user, after: { provider: provider.name, reason } });
}

function findIdentity(
  { tx }: ServiceChange,
  { issuer, subject }: Pick<ProviderClaims, 'issuer' | 'subject'>,
): Promise<IdentityRow | undefined> {
  return tx
    .selectFrom('identities')
    .selectAll()
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .executeTakeFirst();
}

/** @throws ServiceError `sign_in_refused` */
function requireAdmission(provider: ProviderRow, { email, isEmailVerified, groups }: ProviderClaims): void {
  const domains = JSON.parse(provider.domains) as string[];
  const domain = email?.split('@').pop()?.toLowerCase() ?? '';
  if (domains.length > 0 && (isEmailVerified !== true || !domains.includes(domain)))
    throw refused(`expected a verified email address of ${domains.join(', ')}`);
  if (provider.requires_group === 1 && rolesOf(mappingsOf(provider), groups).size === 0)
    throw refused(`you are not in a group at ${provider.name} that may sign in: ask an administrator`);
}

/** Creates an account for a first sign-in, or links an existing one. Returns its user. */
async function createOrLinkUser(change: ServiceChange, provider: ProviderRow, claims: ProviderClaims): Promise<string> {
  if (claims.email === null)
    throw refused(`${provider.name} sent no email address: ask an administrator to request the scope email`);
  if (claims.isEmailVerified === false) throw refused(`your email address is not verified at ${provider.name}`);
  const email = validEmail(claims.email);
  const account = await change.tx.selectFrom('accounts').selectAll().where('email', '=', email).executeTakeFirst();
  if (account !== undefined) return linkUser(change, provider, claims, account);
  return (await insertAccount(change, { email, name: displayName(claims.name, email), hash: NO_PASSWORD }, false))
    .userId;
}

/**
 * Links an existing local account. It loses its password, second factor, sessions and management tokens, so that the
 * provider alone decides about its access. An account of another provider is never linked.
 */
async function linkUser(
  { tx, rev, nowMs, record }: ServiceChange,
  provider: ProviderRow,
  { isEmailVerified }: ProviderClaims,
  account: AccountRow,
): Promise<string> {
  const { user_id: userId, email, is_admin: isAdmin } = account;
  if (provider.links_by_email === 0)
    throw refused(
      `an account with the address ${email} already exists, and ${provider.name} may not take it over: sign in with the password, or ask an administrator to allow linking`,
    );
  if (isEmailVerified !== true)
    throw refused(
      `an account with the address ${email} already exists, and ${provider.name} has not verified the address`,
    );
  if (isAdmin === 1)
    throw refused(`the account ${email} belongs to an administrator, and is not linked: sign in with the password`);
  const holder = await tx
    .selectFrom('identities')
    .innerJoin('identity_providers', 'identity_providers.id', 'identities.provider_id')
    .select(['identity_providers.id', 'name'])
    .where('user_id', '=', userId)
    .executeTakeFirst();
  if (holder?.id === provider.id) throw refused(`the account ${email} belongs to another user of ${provider.name}`);
  // That provider may not have verified the address, so its user may be another person.
  if (holder !== undefined)
    throw refused(
      `the account ${email} belongs to a user of ${holder.name}: sign in with ${holder.name}, or ask an administrator to delete the account if it is not yours`,
    );
  await tx
    .updateTable('accounts')
    .set({
      password_hash: NO_PASSWORD,
      totp_secret: null,
      totp_confirmed_at: null,
      totp_last_step: null,
      updated_at: nowMs,
      rev,
    })
    .where('user_id', '=', userId)
    .execute();
  await deleteRecoveryCodes(tx, userId);
  await tx.deleteFrom('password_resets').where('user_id', '=', userId).execute();
  await revokeSessions(tx, userId, nowMs);
  await revokeTokens(tx, userId, nowMs);
  const user = { type: 'user', id: userId } as const;
  record({ action: 'account.provider_linked', owner: user, target: user, after: { provider: provider.name } });
  return userId;
}

/** Returns the name from the provider if it is valid, or else the start of the address. */
function displayName(name: string | null, email: string): string {
  try {
    return checkDisplayName(name);
  } catch {
    return email.split('@')[0];
  }
}

function validEmail(email: string): string {
  try {
    return checkEmail(email);
  } catch (error) {
    throw refused((error as Error).message);
  }
}

function refused(message: string): ServiceError {
  return new ServiceError('sign_in_refused', message);
}

function refreshPurpose({ issuer, subject }: { issuer: string; subject: string }): string {
  return `refresh token ${issuer} ${subject}`;
}

function idTokenPurpose(idHash: string): string {
  return `id token ${idHash}`;
}
