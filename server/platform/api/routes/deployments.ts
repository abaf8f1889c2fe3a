import { DEPLOYMENT_STATES, type DeploymentState } from '../../deployments/deployment-state';
import type { Intent } from '../../control/intents';
import { CONFIRMATION, requireConfirmation } from '../confirm';
import { deploymentPage, deploymentView, OWNER_QUERY, ownerOf } from './deployment-view';
import { input, list, object, page } from '../json-schema';
import { Deployment, DeploymentEdit, NewDeployment, Propagation } from '../objects';
import { pagingById } from '../paging';
import { ApiProblem, toProblem } from '../problem';
import { propagationOf } from './propagation';
import { applied, reconcileSaved } from './reconcile';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'deployments';
const PATH = '/api/v1/deployments';

const ListQuery = input({
  ...pagingById('dep'),
  owner: OWNER_QUERY,
  state: {
    type: 'string',
    maxLength: 200,
    description: `One or more states, separated by commas: ${DEPLOYMENT_STATES.join(', ')}`,
  },
  q: { type: 'string', minLength: 1, maxLength: 100, description: 'Part of the name' },
});
const AccessSwitch = input({ enabled: { type: 'boolean' } }, 'enabled');
/** The warning `no_key`: no key can call the deployment now. */
const SwitchedDeployment = object({
  ...Deployment.properties,
  propagation: Propagation,
  warnings: list({ type: 'string' }),
});

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List your deployments and those of your organizations, newest first',
    tag: TAG,
    auth: 'any',
    query: ListQuery,
    responses: { 200: page(Deployment) },
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
    summary: 'Create a deployment. A name suffices for the embedded model',
    tag: TAG,
    auth: 'any',
    body: NewDeployment,
    responses: { 202: Deployment },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async (call) => {
      await checkUpstream(call);
      return accepted(call, (await call.context.store.createDeployment(call.actor, call.body)).id);
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get a deployment',
    tag: TAG,
    auth: 'any',
    responses: { 200: Deployment },
    handle: async ({ context, actor, params }) => ({
      status: 200,
      body: deploymentView(context, await context.store.getDeployment(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary:
      'Update the name, the aliases, the fallbacks, the upstream, the scale or the roll-out strategy of a deployment',
    tag: TAG,
    auth: 'any',
    body: DeploymentEdit,
    responses: { 200: Deployment },
    problems: ['stale', 'conflict', 'busy'],
    handle: async (call) => {
      const {
        context,
        actor,
        params: { id },
        body,
        ifMatch,
      } = call;
      // Who may not change the deployment learns nothing about hosts.
      if (body.upstream !== undefined) await context.store.demandDeployment(actor, id, 'deployment.change');
      await checkUpstream(call);
      await context.store.editDeployment(actor, id, body, ifMatch);
      return { status: 200, body: await settled(call, id) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a deployment. Its address is never reused',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    responses: { 202: Deployment },
    problems: ['stale', 'invalid_argument'],
    handle: async ({ context, actor, params: { id }, query, ifMatch }) => {
      const before = await context.store.getDeployment(actor, id);
      requireConfirmation(query, 'name', before.name);
      await context.store.discardDeployment(actor, id, ifMatch).catch((error: unknown) => {
        // A repeated request waits for the gateway, too.
        if (before.state !== 'deleting' || toProblem(error).code !== 'not_found') throw error;
      });
      await applied(
        context,
        id,
        'The deletion is saved, but requests still reach the deployment',
        'Send the DELETE request again until it succeeds or the deployment is not found',
      );
      await context.access.sync();
      return { status: 202, body: deploymentView(context, { ...before, state: 'deleting' }) };
    },
  }),
  defineRoute({
    method: 'PUT',
    path: `${PATH}/{id}/access-control`,
    summary: 'Turn access control on or off. When on, every request needs a key',
    tag: TAG,
    auth: 'any',
    body: AccessSwitch,
    needsIfMatch: true,
    responses: { 200: SwitchedDeployment },
    problems: ['busy'],
    handle: async (call) => {
      const {
        context,
        actor,
        params: { id },
        body: { enabled },
      } = call;
      const { hasKey, rev } = await switchAccess(call, id, enabled);
      await context.access.sync();
      const deployment = deploymentView(context, await context.store.getDeployment(actor, id));
      return {
        status: 200,
        body: {
          ...deployment,
          propagation: await propagationOf(context.access, rev),
          warnings: enabled && !hasKey ? ['no_key'] : [],
        },
      };
    },
  }),
  ...command('start', 'start', 'Start a deployment that is stopped, failed or scaled to zero'),
  ...command('stop', 'stop', 'Stop a deployment until it is started again'),
  ...command('restart', 'restart', 'Restart a deployment'),
  ...command('scale-to-zero', 'scaleToZero', 'Stop the replicas of a deployment until the next request'),
];

function command(verb: string, intent: Intent, summary: string): ApiRoute[] {
  return [
    defineRoute({
      method: 'POST',
      path: `${PATH}/{id}/${verb}`,
      summary,
      tag: TAG,
      auth: 'any',
      body: input({}),
      isBodyOptional: true,
      responses: { 202: Deployment },
      problems: ['wrong_state', 'busy'],
      handle: async (call) => {
        await call.context.store.applyIntent(call.actor, call.params.id, intent);
        return accepted(call, call.params.id);
      },
    }),
  ];
}

/** The gateway checks the address again at each connection. Here a user learns early that it is refused. */
async function checkUpstream({ context, body }: Pick<ApiCall, 'context'> & { body: DeploymentEdit }): Promise<void> {
  const url = body.upstream?.url;
  if (url !== undefined) await context.checkUpstream?.(url);
}

type Call = Pick<ApiCall, 'context' | 'actor'>;

/**
 * Saves the switch and waits until the gateway follows it. If the database fails meanwhile, the gateway requires keys:
 * the change may be saved although its response is lost.
 */
async function switchAccess(
  { context, actor, ifMatch }: Pick<ApiCall, 'context' | 'actor' | 'ifMatch'>,
  id: string,
  isOn: boolean,
): Promise<{ hasKey: boolean; rev: number }> {
  const { store, controller } = context;
  const requireKeys = (): void => {
    if (isOn) controller?.requireKeys(id);
  };
  try {
    const switched = await store.switchAccessControl(actor, id, isOn, ifMatch);
    requireKeys();
    await applied(
      context,
      id,
      'The switch is saved, but the gateway does not follow it yet and requires keys',
      'Read the deployment again',
    );
    return switched;
  } catch (error) {
    if (toProblem(error).status < 500) throw error;
    requireKeys();
    await reconcileSaved(context, id);
    throw error;
  }
}

/** Returns the deployment after the controller has reacted to the change. */
async function settled({ context, actor }: Call, id: string): Promise<Deployment> {
  await reconcileSaved(context, id);
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
        errors: [{ pointer: '?state', message: 'expected states separated by commas' }],
      });
    return state;
  });
}
