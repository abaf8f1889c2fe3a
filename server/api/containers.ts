import { CONFIRMATION, demandConfirmed } from './confirm';
import { accepted } from './deployments';
import { containerView, OWNER_QUERY, ownerOf } from './deployment-view';
import { input, page } from './json-schema';
import { Container, ContainerEdit, DeployContainer, Deployment, DeployPreview, NewContainer } from './objects';
import { pagingById } from './paging';
import { type ApiCall, type ApiRoute, defineRoute } from './route';

const TAG = 'containers';
const PATH = '/api/v1/containers';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Your training containers and those of your organizations, the newest first',
    tag: TAG,
    auth: 'any',
    query: input({ ...pagingById('con'), owner: OWNER_QUERY }),
    answers: { 200: page(Container) },
    handle: async ({ context, actor, query: { owner, after, limit } }) => {
      const { data, next } = await context.store.pageContainers(actor, { owner: ownerOf(owner), after, limit });
      return { status: 200, body: { data: data.map((record) => containerView(context, record)), next } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Make a container: it is stopped until it is started',
    tag: TAG,
    auth: 'any',
    body: NewContainer,
    answers: { 201: Container },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async ({ context, actor, body }) => {
      const made = containerView(context, await context.store.createContainer(actor, body));
      return { status: 201, body: made, headers: { Location: `${PATH}/${made.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'A container',
    tag: TAG,
    auth: 'any',
    answers: { 200: Container },
    handle: async ({ context, actor, params }) => ({
      status: 200,
      body: containerView(context, await context.store.getContainer(actor, params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Change what it runs: what runs now goes on as it was started',
    tag: TAG,
    auth: 'any',
    body: ContainerEdit,
    answers: { 200: Container },
    problems: ['stale', 'conflict', 'wrong_state'],
    handle: async ({ context, actor, params: { id }, body, ifMatch }) => ({
      status: 200,
      body: containerView(context, await context.store.editContainer(actor, id, body, ifMatch)),
    }),
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a container that is stopped, with its log',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    answers: { 204: null },
    problems: ['stale', 'wrong_state', 'invalid_argument'],
    handle: async ({ context: { store, controller }, actor, params: { id }, query, ifMatch }) => {
      demandConfirmed(query, 'name', (await store.getContainer(actor, id)).name);
      await store.removeContainer(actor, id, ifMatch);
      await controller?.forget(id);
      return { status: 204 };
    },
  }),
  ...command('start', 'Start what it runs: it serves on port 8080'),
  ...command('stop', 'End what it runs'),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}/deploy-preview`,
    summary: 'What a deployment would inherit: compute, image, workspace and bindings',
    tag: TAG,
    auth: 'any',
    answers: { 200: DeployPreview },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params }) => ({
      status: 200,
      body: await store.previewDeploy(actor, params.id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/deploy`,
    summary: 'Deploy what it runs, with changes where they are given',
    tag: TAG,
    auth: 'any',
    body: DeployContainer,
    answers: { 202: Deployment },
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
      answers: { 202: Container },
      problems: ['wrong_state'],
      handle: async ({ context, actor, params: { id } }: Pick<ApiCall, 'context' | 'actor' | 'params'>) => {
        await context.store.commandContainer(actor, id, verb);
        await context.controller?.changed(id);
        return { status: 202, body: containerView(context, await context.store.getContainer(actor, id)) };
      },
    }),
  ];
}
