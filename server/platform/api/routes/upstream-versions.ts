import { list, object } from '../json-schema';
import { UpstreamVersion } from '../objects';
import { type ApiRoute, defineRoute } from '../route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/upstream-versions',
    summary: 'List the versions of the upstream of a deployment, newest first. Empty without an upstream',
    tag: 'versions',
    auth: 'any',
    responses: { 200: object({ data: list(UpstreamVersion) }) },
    handle: async ({ context: { store }, actor, params: { id } }) => ({
      status: 200,
      body: { data: await store.listUpstreamVersions(actor, id) },
    }),
  }),
];
