import type { OwnerQuota as StoredQuota } from '../../deployments/quotas';
import { input, page } from '../json-schema';
import { OwnerQuota, QuotaEdit } from '../objects';
import { pageOfRows, pagingById } from '../paging';
import { type ApiRoute, defineRoute } from '../route';

const TAG = 'administration';
const PATH = '/api/v1/quotas';
const Search = {
  type: 'string',
  maxLength: 100,
  description: 'Part of an email address or of an organization slug',
} as const;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List quotas and usage of all accounts and organizations (administrators)',
    tag: TAG,
    auth: 'any',
    query: input({ ...pagingById('usr', 'org'), q: Search }),
    responses: { 200: page(OwnerQuota) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOfRows(await store.listQuotas(actor, query), query.limit, ({ owner }) => owner.id, quotaView),
    }),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get the quotas of an account or organization by its id (administrators)',
    tag: TAG,
    auth: 'any',
    responses: { 200: OwnerQuota },
    handle: async ({ context: { store }, actor, params }) => ({
      status: 200,
      body: quotaView(await store.findQuota(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update quotas (administrators). Existing resources over a quota are kept',
    tag: TAG,
    auth: 'any',
    body: QuotaEdit,
    responses: { 200: OwnerQuota },
    problems: ['stale'],
    handle: async ({ context: { store, controller }, actor, params, body, ifMatch }) => {
      const quota = await store.editQuota(actor, params.id, body, ifMatch);
      await controller?.capacityFreed();
      return { status: 200, body: quotaView(quota) };
    },
  }),
];

export function quotaView({ owner, quotas, used, isAdmin, rev }: StoredQuota): OwnerQuota {
  return { owner, ...quotas, ...used, is_admin: isAdmin, rev };
}
