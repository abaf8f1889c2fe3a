import { CONFIRMATION, demandConfirmed } from './confirm';
import { type ApiRoute, defineRoute } from './route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'DELETE', path: '/api/v1/users/{id}', summary: 'Delete somebody’s account with its keys and tokens (administrators); not while it has deployments or containers, or an organization has no other owner', tag: 'administration', auth: 'any',
    query: CONFIRMATION, answers: { 204: null }, problems: ['conflict', 'invalid_argument'],
    handle: async ({ context: { store, access }, actor, params, query }) => {
      const { owner } = await store.findQuota(actor, params.id);
      demandConfirmed(query, 'address', owner.name);
      await store.deleteOtherAccount(actor, owner.id);
      await access.sync();
      return { status: 204 };
    },
  }),
];
