import { CONFIRMATION, requireConfirmation } from '../confirm';
import { input } from '../json-schema';
import { MadePasswordReset, OwnerQuota } from '../objects';
import { quotaView } from './quotas';
import { type ApiRoute, defineRoute } from '../route';
import { timeOf } from '../times';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'DELETE',
    path: '/api/v1/users/{id}',
    summary: 'Delete an account without deployments and containers, and its keys and tokens (administrators)',
    tag: 'administration',
    auth: 'any',
    query: CONFIRMATION,
    responses: { 204: null },
    problems: ['conflict', 'invalid_argument'],
    handle: async ({ context: { store, access }, actor, params, query }) => {
      const { owner } = await store.findQuota(actor, params.id);
      requireConfirmation(query, 'address', owner.name);
      await store.deleteOtherAccount(actor, owner.id);
      await access.sync();
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'PUT',
    path: '/api/v1/users/{id}/administrator',
    summary: 'Grant or revoke the administrator role (administrators). The last administrator keeps it',
    tag: 'administration',
    auth: 'any',
    body: input({ enabled: { type: 'boolean' } }, 'enabled'),
    responses: { 200: OwnerQuota },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params, body }) => {
      await store.setAdministrator(actor, params.id, body.enabled);
      return { status: 200, body: quotaView(await store.findQuota(actor, params.id)) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/users/{id}/password-reset',
    summary: 'Create a link that sets a new password (administrators). The token is shown once and works for a day',
    tag: 'administration',
    auth: 'any',
    body: input({}),
    isBodyOptional: true,
    secrets: ['token'],
    responses: { 201: MadePasswordReset },
    handle: async ({ context: { store }, actor, params }) => {
      const { email, token, expiresAt } = await store.createPasswordReset(actor, params.id);
      return { status: 201, body: { email, expires_at: timeOf(expiresAt), token } };
    },
  }),
];
