import type { KeyPolicy as StoredPolicy } from 'capstan/internal';
import type { OrganizationView } from '../../store/store-accounts';
import { CONFIRMATION, requireConfirmation } from '../confirm';
import { input, page } from '../json-schema';
import { type KeyPolicy, NewOrganization, Organization, OrganizationEdit } from '../objects';
import { pageOf, pagingById } from '../paging';
import { type ApiRoute, defineRoute } from '../route';

const TAG = 'organizations';
const PATH = '/api/v1/orgs';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List your organizations',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('org')),
    responses: { 200: page(Organization) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOf((await store.listOrganizations(actor)).map(view), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create an organization. You become its owner',
    tag: TAG,
    auth: 'any',
    body: NewOrganization,
    responses: { 201: Organization },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, body }) => {
      const org = await store.createOrganization(actor, body);
      return { status: 201, body: view(org), headers: { Location: `${PATH}/${org.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{org}`,
    summary: 'Get an organization',
    tag: TAG,
    auth: 'any',
    responses: { 200: Organization },
    handle: async ({ context: { store }, actor, params }) => ({
      status: 200,
      body: view(await store.findOrganization(actor, params.org)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{org}`,
    summary: 'Update the name or the key policy of an organization',
    tag: TAG,
    auth: 'any',
    body: OrganizationEdit,
    responses: { 200: Organization },
    problems: ['stale'],
    handle: async ({ context: { store }, actor, params, body: { name, key_policy: keyPolicy }, ifMatch }) => {
      const edit = { name, keyPolicy: keyPolicy && toPolicy(keyPolicy) };
      return { status: 200, body: view(await store.editOrganization(actor, params.org, edit, ifMatch)) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{org}`,
    summary: 'Delete an organization without deployments, and its keys',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    responses: { 204: null },
    problems: ['conflict', 'invalid_argument'],
    handle: async ({ context: { store, access }, actor, params, query }) => {
      requireConfirmation(query, 'slug', (await store.findOrganization(actor, params.org)).slug);
      await store.deleteOrganization(actor, params.org);
      await access.sync();
      return { status: 204 };
    },
  }),
];

function view({ id, slug, name, role, quotas, keyPolicy, rev }: OrganizationView): Organization {
  return {
    id,
    slug,
    name,
    role,
    ...quotas,
    key_policy: keyPolicy === null ? null : policyView(keyPolicy),
    rev,
  };
}

function policyView({ maxLifetimeMs, requireExpiry, allowedTypes }: StoredPolicy): KeyPolicy {
  return {
    max_lifetime_s: maxLifetimeMs === null ? null : Math.floor(maxLifetimeMs / 1000),
    require_expiry: requireExpiry,
    allowed_types: [...allowedTypes],
  };
}

function toPolicy({
  max_lifetime_s: maxLifetimeS,
  require_expiry: requireExpiry,
  allowed_types: allowedTypes,
}: KeyPolicy): StoredPolicy {
  return { maxLifetimeMs: maxLifetimeS === null ? null : maxLifetimeS * 1000, requireExpiry, allowedTypes };
}
