import { CONFIRMATION, requireConfirmation } from '../confirm';
import { accepted } from './deployments';
import { containerView, OWNER_QUERY, ownerOf } from './deployment-view';
import { input, page } from '../json-schema';
import { Container, ContainerEdit, DeployContainer, Deployment, DeployPreview, NewContainer } from '../objects';
import { pagingById } from '../paging';
import { reconcileSaved } from './reconcile';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'containers';
const PATH = '/api/v1/containers';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List your training containers and those of your organizations, newest first',
    tag: TAG,
    auth: 'any',
    query: input({ ...pagingById('con'), owner: OWNER_QUERY }),
    responses: { 200: page(Container) },
    handle: async ({ context, actor, query: { owner, after, limit } }) => {
      const { data, next } = await context.store.pageContainers(actor, { owner: ownerOf(owner), after, limit });
      return { status: 200, body: { data: data.map((record) => containerView(context, record)), next } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a container. It is stopped until you start it',
    tag: TAG,
    auth: 'any',
    body: NewContainer,
    responses: { 201: Container },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async ({ context, actor, body }) => {
      const created = containerView(context, await context.store.createContainer(actor, body));
      return { status: 201, body: created, headers: { Location: `${PATH}/${created.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get a container',
    tag: TAG,
    auth: 'any',
    responses: { 200: Container },
    handle: async ({ context, actor, params }) => ({
      status: 200,
      body: containerView(context, await context.store.getContainer(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update a container. Changes apply at its next start',
    tag: TAG,
    auth: 'any',
    body: ContainerEdit,
    responses: { 200: Container },
    problems: ['stale', 'conflict', 'wrong_state'],
    handle: async ({ context, actor, params: { id }, body, ifMatch }) => ({
      status: 200,
      body: containerView(context, await context.store.editContainer(actor, id, body, ifMatch)),
    }),
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a stopped container and its log',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    responses: { 204: null },
    problems: ['stale', 'wrong_state', 'invalid_argument'],
    handle: async ({ context: { store, controller }, actor, params: { id }, query, ifMatch }) => {
      requireConfirmation(query, 'name', (await store.getContainer(actor, id)).name);
      await store.removeContainer(actor, id, ifMatch);
      await controller?.deleteFiles(id);
      return { status: 204 };
    },
  }),
  ...command('start', 'Start a container. It serves on port 8080'),
  ...command('stop', 'Stop a container'),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}/deploy-preview`,
    summary: 'Preview a deployment of a container: compute, image, workspace and bindings',
    tag: TAG,
    auth: 'any',
    responses: { 200: DeployPreview },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params }) => ({
      status: 200,
      body: await store.previewDeploy(actor, params.id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/deploy`,
    summary: 'Deploy a container, optionally with changes',
    tag: TAG,
    auth: 'any',
    body: DeployContainer,
    responses: { 202: Deployment },
    problems: ['conflict', 'quota_exceeded'],
    handle: async (call) =>
      accepted(call, (await call.context.store.deployContainer(call.actor, call.params.id, call.body)).id),
  }),
];

function command(verb: 'start' | 'stop', summary: string): ApiRoute[] {
  return [
    defineRoute({
      method: 'POST',
      path: `${PATH}/{id}/${verb}`,
      summary,
      tag: TAG,
      auth: 'any',
      body: input({}),
      isBodyOptional: true,
      responses: { 202: Container },
      problems: ['wrong_state'],
      handle: async ({ context, actor, params: { id } }: Pick<ApiCall, 'context' | 'actor' | 'params'>) => {
        await context.store.commandContainer(actor, id, verb);
        await reconcileSaved(context, id);
        return { status: 202, body: containerView(context, await context.store.getContainer(actor, id)) };
      },
    }),
  ];
}
