import { numberOf } from './deployment-view';
import { input, page } from '../json-schema';
import { NewVersion, Version } from '../objects';
import { cursorNumber, pagingByNumber } from '../paging';
import { reconcileSaved } from './reconcile';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'versions';
const PATH = '/api/v1/deployments/{id}/versions';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the versions of a deployment, newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingByNumber(9)),
    responses: { 200: page(Version) },
    handle: async ({ context: { store }, actor, params: { id }, query: { after, limit } }) => ({
      status: 200,
      body: await store.pageVersions(actor, id, { after: cursorNumber(after), limit }),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a version and roll it out. Omitted fields keep their values',
    tag: TAG,
    auth: 'any',
    body: NewVersion,
    responses: { 202: Version },
    problems: ['conflict', 'busy', 'wrong_state', 'quota_exceeded'],
    handle: async (call) =>
      accepted(call, (await call.context.store.createVersion(call.actor, call.params.id, call.body)).number),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{n}`,
    summary: 'Get a version: its spec, its state, and why it failed',
    tag: TAG,
    auth: 'any',
    responses: { 200: Version },
    handle: async ({ context: { store }, actor, params: { id, n } }) => ({
      status: 200,
      body: await store.getVersion(actor, id, numberOf(n)),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{n}/activate`,
    summary: 'Roll out an earlier version again',
    tag: TAG,
    auth: 'any',
    body: input({}),
    isBodyOptional: true,
    responses: { 202: Version },
    problems: ['conflict', 'busy', 'wrong_state'],
    handle: async (call) => {
      const {
        context: { store },
        actor,
        params: { id, n },
      } = call;
      await store.activateVersion(actor, id, numberOf(n));
      return accepted(call, numberOf(n));
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{n}`,
    summary: 'Delete a stopped or failed version and its log',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    problems: ['wrong_state', 'conflict', 'busy'],
    handle: async ({ context: { store, controller }, actor, params: { id, n } }) => {
      const versionId = await store.deleteVersion(actor, id, numberOf(n));
      await controller?.deleteFiles(versionId);
      return { status: 204 };
    },
  }),
];

async function accepted(
  { context, actor, params: { id } }: Pick<ApiCall, 'context' | 'actor' | 'params'>,
  number: number,
): Promise<{ status: number; body: Version; headers: Record<string, string> }> {
  await reconcileSaved(context, id);
  return {
    status: 202,
    body: await context.store.getVersion(actor, id, number),
    headers: { Location: `/api/v1/deployments/${id}/versions/${number}` },
  };
}
