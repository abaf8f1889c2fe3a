import { DEPLOYMENT_STATES, type DeploymentState } from '../service/deployment-state';
import type { Wish } from '../service/wishes';
import { CONFIRMATION, demandConfirmed } from './confirm';
import { deploymentPage, deploymentView, OWNER_QUERY, ownerOf } from './deployment-view';
import { input, list, object, page } from './json-schema';
import { Deployment, DeploymentEdit, NewDeployment, Propagation } from './objects';
import { pagingById } from './paging';
import { ApiProblem } from './problem';
import { propagationOf } from './propagation';
import { type ApiCall, type ApiRoute, defineRoute } from './route';

const TAG = 'deployments';
const PATH = '/api/v1/deployments';

const ListQuery = input({
  ...pagingById('dep'),
  owner: OWNER_QUERY,
  state: {
    type: 'string',
    maxLength: 200,
    description: `One or several, parted by commas: ${DEPLOYMENT_STATES.join(', ')}`,
  },
  q: { type: 'string', minLength: 1, maxLength: 100, description: 'Part of the name' },
});
const AccessSwitch = input({ enabled: { type: 'boolean' } }, 'enabled');
/** `no_key`: nobody can call it now. */
const SwitchedDeployment = object({
  ...Deployment.properties,
  propagation: Propagation,
  warnings: list({ type: 'string' }),
});

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Your deployments and those of your organizations, the newest first',
    tag: TAG,
    auth: 'any',
    query: ListQuery,
    answers: { 200: page(Deployment) },
    handle: async ({ context, actor, query: { owner, state, q, after, limit } }) => {
      const found = await context.store.pageDeployments(actor, {
        owner: ownerOf(owner),
        states: statesOf(state),
        q,
        after,
        limit,
      });
      return { status: 200, body: deploymentPage(context, found) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Make a deployment: a name is enough for the embedded model',
    tag: TAG,
    auth: 'any',
    body: NewDeployment,
    answers: { 202: Deployment },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async (call) => accepted(call, (await call.context.store.createDeployment(call.actor, call.body)).id),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'A deployment',
    tag: TAG,
    auth: 'any',
    answers: { 200: Deployment },
    handle: async ({ context, actor, params }) => ({
      status: 200,
      body: deploymentView(context, await context.store.getDeployment(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Change the name, the scale or how new versions take over',
    tag: TAG,
    auth: 'any',
    body: DeploymentEdit,
    answers: { 200: Deployment },
    problems: ['stale', 'conflict', 'busy'],
    handle: async (call) => {
      const {
        context,
        actor,
        params: { id },
        body,
        ifMatch,
      } = call;
      await context.store.editDeployment(actor, id, body, ifMatch);
      return { status: 200, body: await settled(call, id) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'End a deployment for good: its address is never given again',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    answers: { 202: Deployment },
    problems: ['stale', 'invalid_argument'],
    handle: async ({ context, actor, params: { id }, query, ifMatch }) => {
      const before = await context.store.getDeployment(actor, id);
      demandConfirmed(query, 'name', before.name);
      await context.store.discardDeployment(actor, id, ifMatch);
      await context.access.sync();
      await context.controller?.changed(id);
      return { status: 202, body: deploymentView(context, { ...before, state: 'deleting' }) };
    },
  }),
  defineRoute({
    method: 'PUT',
    path: `${PATH}/{id}/access-control`,
    summary: 'Whether every request needs a key',
    tag: TAG,
    auth: 'any',
    body: AccessSwitch,
    needsIfMatch: true,
    answers: { 200: SwitchedDeployment },
    problems: ['busy'],
    handle: async (call) => {
      const {
        context: { store, access },
        actor,
        params: { id },
        body: { enabled },
        ifMatch,
      } = call;
      const { hasKey, rev } = await store.switchAccessControl(actor, id, enabled, ifMatch);
      await access.sync();
      const deployment = await settled(call, id);
      return {
        status: 200,
        body: {
          ...deployment,
          propagation: await propagationOf(access, rev),
          warnings: enabled && !hasKey ? ['no_key'] : [],
        },
      };
    },
  }),
  ...command('start', 'start', 'Start what was stopped, has failed or sleeps'),
  ...command('stop', 'stop', 'End what runs, until somebody starts it'),
  ...command('restart', 'restart', 'End what runs and start it anew'),
  ...command('scale-to-zero', 'scaleToZero', 'End what runs, until the next request'),
];

function command(verb: string, wish: Wish, summary: string): ApiRoute[] {
  return [
    defineRoute({
      method: 'POST',
      path: `${PATH}/{id}/${verb}`,
      summary,
      tag: TAG,
      auth: 'any',
      body: input({}),
      isBodyOptional: true,
      answers: { 202: Deployment },
      problems: ['wrong_state', 'busy'],
      handle: async (call) => {
        await call.context.store.wishDeployment(call.actor, call.params.id, wish);
        return accepted(call, call.params.id);
      },
    }),
  ];
}

type Call = Pick<ApiCall, 'context' | 'actor'>;

/** Once what follows at once has followed. */
async function settled({ context, actor }: Call, id: string): Promise<Deployment> {
  await context.controller?.changed(id);
  return deploymentView(context, await context.store.getDeployment(actor, id));
}

export async function accepted(
  call: Call,
  id: string,
): Promise<{ status: number; body: Deployment; headers: Record<string, string> }> {
  return { status: 202, body: await settled(call, id), headers: { Location: `${PATH}/${id}` } };
}

function statesOf(text: string | undefined): DeploymentState[] | undefined {
  return text?.split(',').map((name) => {
    const state = DEPLOYMENT_STATES.find((candidate) => candidate === name);
    if (state === undefined)
      throw new ApiProblem('invalid_request', `?state: expected ${DEPLOYMENT_STATES.join(', ')}`, {
        errors: [{ pointer: '?state', message: 'expected states parted by commas' }],
      });
    return state;
  });
}
