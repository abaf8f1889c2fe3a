import { endedCookie } from '../cookies';
import { input, page } from '../json-schema';
import { Session } from '../objects';
import { pageOf, paging } from '../paging';
import { type ApiRoute, defineRoute } from '../route';
import { timeOf } from '../times';

const TAG = 'sessions';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/sessions',
    summary: 'List your console sessions, most recently used first',
    tag: TAG,
    auth: 'any',
    query: input(paging('^[0-9a-f]{64}$')),
    responses: { 200: page(Session) },
    handle: async ({ context: { store }, actor, session, query }) => {
      const sessions = (await store.listSessions(actor)).map((found) => ({
        id: found.idHash,
        is_current: found.idHash === session?.idHash,
        ip: found.createdIp,
        user_agent: found.userAgent,
        created_at: timeOf(found.createdAt),
        last_seen_at: timeOf(found.lastSeenAt),
      }));
      return { status: 200, body: pageOf(sessions, query, ({ id }) => id) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: '/api/v1/sessions',
    summary: 'End all your other sessions',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context: { store }, actor, session }) => {
      await store.revokeSessions(actor, session?.idHash);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: '/api/v1/sessions/{id}',
    summary: 'End one of your sessions',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context: { store, settings }, actor, session, params }) => {
      await store.revokeSession(actor, params.id);
      return { status: 204, headers: params.id === session?.idHash ? endedCookie(settings) : {} };
    },
  }),
];
