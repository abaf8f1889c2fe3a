import { CONFIRMATION, demandConfirmed } from './confirm';
import { input } from './json-schema';
import { OwnerQuota } from './objects';
import { quotaView } from './quotas';
import { type ApiRoute, defineRoute } from './route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'DELETE',
    path: '/api/v1/users/{id}',
    summary:
      'Delete somebody’s account with its keys and tokens (administrators); not while it has deployments or containers, or an organization has no other owner',
    tag: 'administration',
    auth: 'any',
    query: CONFIRMATION,
    answers: { 204: null },
    problems: ['conflict', 'invalid_argument'],
    handle: async ({ context: { store, access }, actor, params, query }) => {
      const { owner } = await store.findQuota(actor, params.id);
      demandConfirmed(query, 'address', owner.name);
      await store.deleteOtherAccount(actor, owner.id);
      await access.sync();
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'PUT',
    path: '/api/v1/users/{id}/administrator',
    summary:
      'Whether somebody is an administrator of the installation (administrators); the last one stays it, and who gets or loses the role signs in anew',
    tag: 'administration',
    auth: 'any',
    body: input({ enabled: { type: 'boolean' } }, 'enabled'),
    answers: { 200: OwnerQuota },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params, body }) => {
      await store.setAdministrator(actor, params.id, body.enabled);
      return { status: 200, body: quotaView(await store.findQuota(actor, params.id)) };
    },
  }),
];
