import { input } from '../json-schema';
import { Canary, CanarySplit, LastCanary } from '../objects';
import { reconcileSaved } from './reconcile';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'versions';
const PATH = '/api/v1/deployments/{id}/canary';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Get the last canary of a deployment, with its comparison',
    tag: TAG,
    auth: 'any',
    responses: { 200: LastCanary },
    handle: async ({ context: { store }, actor, params: { id } }) => ({
      status: 200,
      body: { canary: await store.getCanary(actor, id) },
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: PATH,
    summary: 'Change which requests go to the running canary',
    tag: TAG,
    auth: 'any',
    body: CanarySplit,
    responses: { 200: Canary },
    problems: ['wrong_state'],
    handle: async (call) => {
      await call.context.store.editCanary(call.actor, call.params.id, call.body);
      await reconcileSaved(call.context, call.params.id);
      return current(call);
    },
  }),
  ...decision('promote', 'promoting', 'Make the running canary the active version'),
  ...decision('rollback', 'rolling_back', 'Stop the running canary'),
];

function decision(verb: string, state: 'promoting' | 'rolling_back', summary: string): ApiRoute[] {
  return [
    defineRoute({
      method: 'POST',
      path: `${PATH}/${verb}`,
      summary,
      tag: TAG,
      auth: 'any',
      body: input({}),
      isBodyOptional: true,
      responses: { 202: Canary },
      problems: ['wrong_state'],
      handle: async (call) => {
        await call.context.store.decideCanary(call.actor, call.params.id, state);
        await reconcileSaved(call.context, call.params.id);
        return { ...(await current(call)), status: 202 };
      },
    }),
  ];
}

async function current({ context: { store }, actor, params }: Pick<ApiCall<unknown>, 'context' | 'actor' | 'params'>) {
  return { status: 200, body: await store.getCanary(actor, params.id) };
}
