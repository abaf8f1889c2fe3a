import type { ProviderView } from '../../sign-in/providers';
import { CONFIRMATION, requireConfirmation } from '../confirm';
import { input, page } from '../json-schema';
import { IdentityProvider, IdentityProviderEdit, NewIdentityProvider } from '../objects';
import { pageOf, pagingById } from '../paging';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';
import { providersOf } from './provider-sign-in';

const TAG = 'administration';
const PATH = '/api/v1/identity-providers';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the identity providers (administrators)',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('idp')),
    responses: { 200: page(IdentityProvider) },
    handle: async (call) => {
      const found = await call.context.store.listProviders(call.actor);
      return {
        status: 200,
        body: pageOf(
          found.map((provider) => view(call, provider)),
          call.query,
          ({ id }) => id,
        ),
      };
    },
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Add an OpenID Connect provider for the sign-in (administrators)',
    tag: TAG,
    auth: 'any',
    body: NewIdentityProvider,
    responses: { 201: IdentityProvider },
    problems: ['conflict', 'quota_exceeded'],
    handle: async (call) => {
      const { store } = call.context;
      // Check the right first: the check sends a request to an address that the caller chose.
      await store.listProviders(call.actor);
      await providersOf(call).check({ issuer: call.body.issuer, clientId: call.body.client_id });
      const made = await store.createProvider(call.actor, call.body);
      return { status: 201, body: view(call, made), headers: { Location: `${PATH}/${made.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get an identity provider (administrators)',
    tag: TAG,
    auth: 'any',
    responses: { 200: IdentityProvider },
    handle: async (call) => ({
      status: 200,
      body: view(call, await call.context.store.getProvider(call.actor, call.params.id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update, enable or disable an identity provider (administrators). Its issuer cannot change',
    tag: TAG,
    auth: 'any',
    body: IdentityProviderEdit,
    responses: { 200: IdentityProvider },
    problems: ['conflict', 'stale'],
    handle: async (call) => ({
      status: 200,
      body: view(call, await call.context.store.editProvider(call.actor, call.params.id, call.body, call.ifMatch)),
    }),
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete an identity provider, and the memberships that its groups gave (administrators)',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    responses: { 204: null },
    problems: ['invalid_argument'],
    handle: async (call) => {
      const { store } = call.context;
      requireConfirmation(call.query, 'name', (await store.getProvider(call.actor, call.params.id)).name);
      await store.deleteProvider(call.actor, call.params.id);
      return { status: 204 };
    },
  }),
];

function view(call: Pick<ApiCall, 'context'>, provider: ProviderView): IdentityProvider {
  return {
    ...provider,
    redirect_uri: providersOf(call).redirectUri({ id: provider.id, hasOwnRedirect: provider.own_redirect_uri }),
  };
}
