import { numberOf } from './deployment-view';
import { input, page } from './json-schema';
import { NewVersion, Version } from './objects';
import { cursorNumber, pagingByNumber } from './paging';
import { type ApiCall, type ApiRoute, defineRoute } from './route';

const TAG = 'versions';
const PATH = '/api/v1/deployments/{id}/versions';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Versions of a deployment, the newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingByNumber(9)),
    answers: { 200: page(Version) },
    handle: async ({ context: { store }, actor, params: { id }, query: { after, limit } }) => ({
      status: 200,
      body: await store.pageVersions(actor, id, { after: cursorNumber(after), limit }),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Roll out a change: what is left out stays as the deployment has it',
    tag: TAG,
    auth: 'any',
    body: NewVersion,
    answers: { 202: Version },
    problems: ['conflict', 'busy', 'wrong_state', 'quota_exceeded'],
    handle: async (call) =>
      accepted(call, (await call.context.store.createVersion(call.actor, call.params.id, call.body)).number),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{n}`,
    summary: 'A version: what it runs, its state, and why it failed',
    tag: TAG,
    auth: 'any',
    answers: { 200: Version },
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
    answers: { 202: Version },
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
    summary: 'Delete a version that is stopped or failed, with its log',
    tag: TAG,
    auth: 'any',
    answers: { 204: null },
    problems: ['wrong_state', 'conflict', 'busy'],
    handle: async ({ context: { store, controller }, actor, params: { id, n } }) => {
      const versionId = await store.deleteVersion(actor, id, numberOf(n));
      await controller?.forget(versionId);
      return { status: 204 };
    },
  }),
];

async function accepted(
  { context: { store, controller }, actor, params: { id } }: Pick<ApiCall, 'context' | 'actor' | 'params'>,
  number: number,
): Promise<{ status: number; body: Version; headers: Record<string, string> }> {
  await controller?.changed(id);
  return {
    status: 202,
    body: await store.getVersion(actor, id, number),
    headers: { Location: `/api/v1/deployments/${id}/versions/${number}` },
  };
}
