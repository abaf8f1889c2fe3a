import type { OwnerQuota as StoredQuota } from '../service/quotas';
import { input, page } from './json-schema';
import { OwnerQuota, QuotaEdit } from './objects';
import { pageOfRows, pagingById } from './paging';
import { type ApiRoute, defineRoute } from './route';

const TAG = 'administration';
const PATH = '/api/v1/quotas';
const Search = {
  type: 'string',
  maxLength: 100,
  description: 'Part of an address, or of the slug of an organization',
} as const;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'How much of the machine every account and organization may have, and has (administrators)',
    tag: TAG,
    auth: 'any',
    query: input({ ...pagingById('usr', 'org'), q: Search }),
    answers: { 200: page(OwnerQuota) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOfRows(await store.listQuotas(actor, query), query.limit, ({ owner }) => owner.id, quotaView),
    }),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Those of one, by the id of the account or organization (administrators)',
    tag: TAG,
    auth: 'any',
    answers: { 200: OwnerQuota },
    handle: async ({ context: { store }, actor, params }) => ({
      status: 200,
      body: quotaView(await store.findQuota(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Change them (administrators): what an owner has beyond them stays',
    tag: TAG,
    auth: 'any',
    body: QuotaEdit,
    answers: { 200: OwnerQuota },
    problems: ['stale'],
    handle: async ({
      context: { store, controller },
      actor,
      params,
      body: { quota_gpu: quotaGpu, quota_deployments: quotaDeployments },
      ifMatch,
    }) => {
      const quota = await store.editQuota(actor, params.id, { quotaGpu, quotaDeployments }, ifMatch);
      await controller?.roomMade();
      return { status: 200, body: quotaView(quota) };
    },
  }),
];

export function quotaView({
  owner,
  quotaGpu,
  quotaDeployments,
  usedGpu,
  usedDeployments,
  isAdmin,
  rev,
}: StoredQuota): OwnerQuota {
  return {
    owner,
    quota_gpu: quotaGpu,
    quota_deployments: quotaDeployments,
    used_gpu: usedGpu,
    used_deployments: usedDeployments,
    is_admin: isAdmin,
    rev,
  };
}
