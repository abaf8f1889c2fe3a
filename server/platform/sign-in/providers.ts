import { checkName, type MemberRole, newId } from 'capstan/internal';
import { changeOptions, demandAdmin, type ServiceActor } from '../accounts/actor';
import { ROLES } from '../accounts/roles';
import type { SecretBox } from '../accounts/secret-box';
import { revokeSessions } from '../accounts/sessions';
import { serviceChange, type ServiceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { rfc3339 } from '../store/times';
import { applyGroups, type GroupMapping } from '../accounts/group-memberships';
import type { ProviderRow } from './sign-in-schema';

/** A mapping as users write it: with the slug of the organization, or its id. */
export interface NamedMapping {
  group: string;
  org: string;
  role: MemberRole;
}

/** What an administrator sets. Missing fields keep their value, or get the default. */
export interface ProviderEdit {
  name?: string;
  client_id?: string;
  /** Null removes it, for a public client. */
  client_secret?: string | null;
  scopes?: readonly string[];
  groups_claim?: string;
  mappings?: readonly NamedMapping[];
  authorization_params?: Readonly<Record<string, string>>;
  email_domains?: readonly string[];
  requires_group?: boolean;
  links_by_email?: boolean;
  own_redirect_uri?: boolean;
  recheck_s?: number;
  enabled?: boolean;
}

export type NewProvider = ProviderEdit & { name: string; issuer: string; client_id: string };

export interface ProviderView {
  id: string;
  name: string;
  issuer: string;
  client_id: string;
  has_client_secret: boolean;
  scopes: string[];
  groups_claim: string;
  mappings: NamedMapping[];
  authorization_params: Record<string, string>;
  email_domains: string[];
  requires_group: boolean;
  links_by_email: boolean;
  own_redirect_uri: boolean;
  recheck_s: number;
  enabled: boolean;
  /** The number of users that have signed in. */
  users: number;
  created_at: string;
  updated_at: string;
  rev: number;
}

/** A provider as the client of the protocol needs it. The secret never leaves the service. */
export interface ProviderClient {
  id: string;
  name: string;
  issuer: string;
  clientId: string;
  clientSecret: string | null;
  scopes: string[];
  groupsClaim: string;
  params: Record<string, string>;
  /** Whether its redirect URI names it. */
  hasOwnRedirect: boolean;
  rev: number;
}

const MAX_PROVIDERS = 20;
const DEFAULT_RECHECK_S = 3_600;
/** Parameters of the authorization request that the service sets. */
const OWN_PARAMS = new Set([
  'client_id',
  'client_secret',
  'redirect_uri',
  'response_type',
  'response_mode',
  'scope',
  'state',
  'nonce',
  'code_challenge',
  'code_challenge_method',
  'request',
  'request_uri',
]);
const DOMAIN = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;

/** Returns all providers by name. */
export async function listProviders({ db }: StoreContext, actor: ServiceActor): Promise<ProviderView[]> {
  demandAdmin(actor);
  const rows = await db.selectFrom('identity_providers').selectAll().orderBy('name').execute();
  return toViews(db, rows);
}

export async function getProvider({ db }: StoreContext, actor: ServiceActor, id: string): Promise<ProviderView> {
  demandAdmin(actor);
  return (await toViews(db, [await findProvider(db, id)]))[0];
}

/** Returns what the sign-in page shows. */
export async function listSignInProviders({ db }: StoreContext): Promise<{ id: string; name: string }[]> {
  return db
    .selectFrom('identity_providers')
    .select(['id', 'name'])
    .where('status', '=', 'active')
    .orderBy('name')
    .execute();
}

/** @throws ServiceError `not_found` for an unknown or disabled provider */
export async function readProviderClient({ db, box }: StoreContext, id: string): Promise<ProviderClient> {
  const row = await findProvider(db, id);
  if (row.status !== 'active') throw new ServiceError('not_found', 'identity provider not found');
  return toClient(row, box);
}

export function createProvider(
  { db, box, now }: StoreContext,
  actor: ServiceActor,
  { issuer, ...spec }: NewProvider,
): Promise<ProviderView> {
  demandAdmin(actor);
  checkIssuer(issuer);
  const nowMs = now();
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const known = await tx.selectFrom('identity_providers').select('issuer').execute();
    if (known.length >= MAX_PROVIDERS)
      throw new ServiceError(
        'quota_exceeded',
        `expected at most ${MAX_PROVIDERS} identity providers: delete one first`,
      );
    if (known.some((other) => other.issuer === issuer))
      throw new ServiceError('conflict', 'issuer: another identity provider has this issuer');
    const empty: ProviderRow = {
      id: newId('idp', nowMs),
      name: '',
      issuer,
      client_id: '',
      client_secret: null,
      scopes: JSON.stringify(['openid', 'profile', 'email']),
      groups_claim: 'groups',
      mappings: '[]',
      params: '{}',
      domains: '[]',
      requires_group: 0,
      links_by_email: 0,
      own_redirect: 1,
      recheck_s: DEFAULT_RECHECK_S,
      status: 'active',
      created_at: nowMs,
      updated_at: nowMs,
      rev,
    };
    const row = await edited(tx, box, empty, spec);
    await tx.insertInto('identity_providers').values(row).execute();
    record({ action: 'provider.created', ...subjectsOf(actor, row), after: auditView(row) });
    return (await toViews(tx, [row]))[0];
  });
}

/** Changes a provider. New mappings apply to a user at the next confirmation, which this schedules at once. */
export function editProvider(
  { db, box, now }: StoreContext,
  actor: ServiceActor,
  id: string,
  edit: ProviderEdit,
  ifRev?: number,
): Promise<ProviderView> {
  demandAdmin(actor);
  const nowMs = now();
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await findProvider(tx, id);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', `the identity provider has changed: its revision is ${before.rev}, not ${ifRev}`);
    const after: ProviderRow = { ...(await edited(tx, box, before, edit)), updated_at: nowMs, rev };
    await tx.updateTable('identity_providers').set(after).where('id', '=', id).execute();
    await tx
      .updateTable('identities')
      .set({ refresh_at: nowMs })
      .where('provider_id', '=', id)
      .where('refresh_token', 'is not', null)
      .execute();
    record({
      action: 'provider.updated',
      ...subjectsOf(actor, after),
      before: auditView(before),
      after: { ...auditView(after), ...(edit.client_secret === undefined ? {} : { client_secret: 'changed' }) },
    });
    return (await toViews(tx, [after]))[0];
  });
}

/** Deletes a provider, its identities, and the memberships and sessions that they have. The accounts stay. */
export async function deleteProvider({ db, now }: StoreContext, actor: ServiceActor, id: string): Promise<void> {
  demandAdmin(actor);
  const nowMs = now();
  await serviceChange(db, nowMs, changeOptions(actor), async (change) => {
    const { tx, record } = change;
    const row = await findProvider(tx, id);
    await endUsers(change, id);
    await tx.deleteFrom('identities').where('provider_id', '=', id).execute();
    await tx.deleteFrom('provider_sessions').where('provider_id', '=', id).execute();
    await tx.deleteFrom('identity_providers').where('id', '=', id).execute();
    record({ action: 'provider.deleted', ...subjectsOf(actor, row), before: auditView(row) });
  });
}

async function endUsers(change: ServiceChange, providerId: string): Promise<void> {
  const users = await change.tx
    .selectFrom('identities')
    .select('user_id')
    .where('provider_id', '=', providerId)
    .execute();
  for (const { user_id: userId } of users) {
    await applyGroups(change, providerId, userId, new Map());
    await revokeSessions(change.tx, userId, change.nowMs);
  }
}

export async function findProvider(db: ServiceDb | ServiceTx, id: string): Promise<ProviderRow> {
  const row = await db.selectFrom('identity_providers').selectAll().where('id', '=', id).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'identity provider not found');
  return row;
}

export function mappingsOf({ mappings }: Pick<ProviderRow, 'mappings'>): GroupMapping[] {
  return JSON.parse(mappings) as GroupMapping[];
}

export function toClient(row: ProviderRow, box: SecretBox): ProviderClient {
  return {
    id: row.id,
    name: row.name,
    issuer: row.issuer,
    clientId: row.client_id,
    clientSecret: row.client_secret === null ? null : box.open(row.client_secret, purposeOf(row.id)),
    scopes: JSON.parse(row.scopes) as string[],
    groupsClaim: row.groups_claim,
    params: JSON.parse(row.params) as Record<string, string>,
    hasOwnRedirect: row.own_redirect === 1,
    rev: row.rev,
  };
}

/** @throws ServiceError `invalid_argument` */
export function checkIssuer(issuer: string): URL {
  const url = URL.canParse(issuer) ? new URL(issuer) : undefined;
  const isAllowed = url?.protocol === 'https:' || (url?.protocol === 'http:' && LOOPBACK.test(url.hostname));
  if (
    url === undefined ||
    !isAllowed ||
    url.username !== '' ||
    url.password !== '' ||
    url.search !== '' ||
    url.hash !== ''
  )
    throw new ServiceError(
      'invalid_argument',
      'issuer: expected an https:// URL without user, query and fragment; http:// is accepted for this machine only',
    );
  return url;
}

async function edited(tx: ServiceTx, box: SecretBox, row: ProviderRow, edit: ProviderEdit): Promise<ProviderRow> {
  const next = { ...row };
  if (edit.name !== undefined) {
    next.name = checkName(edit.name);
    const other = await tx
      .selectFrom('identity_providers')
      .select('id')
      .where('name', '=', next.name)
      .where('id', '!=', row.id)
      .executeTakeFirst();
    if (other !== undefined) throw new ServiceError('conflict', 'name: another identity provider has this name');
  }
  if (edit.client_id !== undefined) next.client_id = edit.client_id;
  if (edit.client_secret !== undefined)
    next.client_secret = edit.client_secret === null ? null : box.seal(edit.client_secret, purposeOf(row.id));
  if (edit.scopes !== undefined) next.scopes = JSON.stringify(checkScopes(edit.scopes));
  if (edit.groups_claim !== undefined) next.groups_claim = edit.groups_claim;
  if (edit.mappings !== undefined) next.mappings = JSON.stringify(await checkMappings(tx, edit.mappings));
  if (edit.authorization_params !== undefined) next.params = JSON.stringify(checkParams(edit.authorization_params));
  if (edit.email_domains !== undefined) next.domains = JSON.stringify(checkDomains(edit.email_domains));
  if (edit.requires_group !== undefined) next.requires_group = edit.requires_group ? 1 : 0;
  if (edit.links_by_email !== undefined) next.links_by_email = edit.links_by_email ? 1 : 0;
  if (edit.own_redirect_uri !== undefined) next.own_redirect = edit.own_redirect_uri ? 1 : 0;
  if (edit.recheck_s !== undefined) next.recheck_s = edit.recheck_s;
  if (edit.enabled !== undefined) next.status = edit.enabled ? 'active' : 'disabled';
  return next;
}

function checkScopes(scopes: readonly string[]): string[] {
  const bad = scopes.find((scope) => !/^[!#-[\]-~]+$/.test(scope));
  if (bad !== undefined) throw new ServiceError('invalid_argument', 'scopes: expected names without spaces and quotes');
  return [...new Set(['openid', ...scopes])];
}

async function checkMappings(tx: ServiceTx, mappings: readonly NamedMapping[]): Promise<GroupMapping[]> {
  const checked: GroupMapping[] = [];
  for (const [i, { group, org: name, role }] of mappings.entries()) {
    if (!ROLES.includes(role))
      throw new ServiceError('invalid_argument', `mappings/${i}/role: expected ${ROLES.join(', ')}`);
    const org = await tx
      .selectFrom('organizations')
      .select('id')
      .where((eb) => eb.or([eb('id', '=', name), eb('name', '=', name)]))
      .where('status', '=', 'active')
      .executeTakeFirst();
    if (org === undefined)
      throw new ServiceError('invalid_argument', `mappings/${i}/org: no organization has the slug ${name}`);
    checked.push({ group, org_id: org.id, role });
  }
  return checked;
}

function checkParams(params: Readonly<Record<string, string>>): Record<string, string> {
  const own = Object.keys(params).find((name) => OWN_PARAMS.has(name));
  if (own !== undefined)
    throw new ServiceError('invalid_argument', `authorization_params: the service sets ${own} itself`);
  return { ...params };
}

function checkDomains(domains: readonly string[]): string[] {
  const checked = domains.map((domain) => domain.trim().toLowerCase());
  const bad = checked.find((domain) => !DOMAIN.test(domain));
  if (bad !== undefined)
    throw new ServiceError('invalid_argument', `email_domains: expected a domain such as example.com, got '${bad}'`);
  return [...new Set(checked)];
}

function purposeOf(providerId: string): string {
  return `identity provider ${providerId}`;
}

function subjectsOf(actor: ServiceActor, { id }: ProviderRow) {
  return {
    owner: { type: 'user', id: actor.userId },
    target: { type: 'provider', id },
  } as const;
}

/** Without the secret. */
function auditView(row: ProviderRow): object {
  return {
    name: row.name,
    issuer: row.issuer,
    client_id: row.client_id,
    mappings: mappingsOf(row),
    email_domains: JSON.parse(row.domains) as string[],
    requires_group: row.requires_group === 1,
    links_by_email: row.links_by_email === 1,
    own_redirect_uri: row.own_redirect === 1,
    recheck_s: row.recheck_s,
    enabled: row.status === 'active',
  };
}

async function toViews(db: ServiceDb | ServiceTx, rows: readonly ProviderRow[]): Promise<ProviderView[]> {
  const counts = await db
    .selectFrom('identities')
    .select((eb) => ['provider_id', eb.fn.countAll<number | string>().as('num')])
    .groupBy('provider_id')
    .execute();
  const slugs = new Map(
    (await db.selectFrom('organizations').select(['id', 'name']).execute()).map(({ id, name }) => [id, name]),
  );
  return rows.map((row) => ({
    id: row.id,
    name: row.name,
    issuer: row.issuer,
    client_id: row.client_id,
    has_client_secret: row.client_secret !== null,
    scopes: JSON.parse(row.scopes) as string[],
    groups_claim: row.groups_claim,
    mappings: mappingsOf(row).map(({ group, org_id: orgId, role }) => ({
      group,
      org: slugs.get(orgId) ?? orgId,
      role,
    })),
    authorization_params: JSON.parse(row.params) as Record<string, string>,
    email_domains: JSON.parse(row.domains) as string[],
    requires_group: row.requires_group === 1,
    links_by_email: row.links_by_email === 1,
    own_redirect_uri: row.own_redirect === 1,
    recheck_s: row.recheck_s,
    enabled: row.status === 'active',
    users: Number(counts.find(({ provider_id: id }) => id === row.id)?.num ?? 0),
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    rev: row.rev,
  }));
}
