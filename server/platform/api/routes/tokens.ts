import type { ManagementToken } from '../../accounts/management-tokens';
import { input, page } from '../json-schema';
import { MadeToken, NewToken, Token } from '../objects';
import { pageOf, pagingById } from '../paging';
import { type ApiRoute, defineRoute } from '../route';
import { msOf, timeOf } from '../times';

const TAG = 'management tokens';
const PATH = '/api/v1/tokens';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List your management tokens, newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('tok')),
    responses: { 200: page(Token) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOf((await store.listTokens(actor)).map(view), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a management token for this API. It is shown once',
    tag: TAG,
    auth: 'session',
    body: NewToken,
    secrets: ['token'],
    responses: { 201: MadeToken },
    problems: ['quota_exceeded'],
    handle: async ({ context: { store }, actor, body: { name, rights, expires_at: expiresAt } }) => {
      const { made, token } = await store.createToken(actor, { name, rights, expiresAt: msOf(expiresAt) });
      return { status: 201, body: { ...view(made), token }, headers: { Location: `${PATH}/${made.id}` } };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Revoke a management token',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context: { store }, actor, params }) => {
      await store.revokeToken(actor, params.id);
      return { status: 204 };
    },
  }),
];

function view({ id, name, rights, display, expiresAt, lastUsedAt, lastUsedIp, createdAt }: ManagementToken): Token {
  return {
    id,
    name,
    rights,
    display,
    expires_at: timeOf(expiresAt),
    last_used_at: timeOf(lastUsedAt),
    last_used_ip: lastUsedIp,
    created_at: timeOf(createdAt),
  };
}
