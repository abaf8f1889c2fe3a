import type { Route } from '../../http/routes';
import { packageVersion } from '../../base/version';
import { openApiDocument } from './document';

/** Creates GET /openapi.json. @param routes Returns all routes of the serving port. Called at the first request. */
export function openApiRoute(routes: () => readonly Route[], hasAccess: boolean): Route {
  let text: string | undefined;
  return {
    method: 'GET',
    path: '/openapi.json',
    handle: (_context, _request, reply) => {
      text ??= JSON.stringify(openApiDocument(routes(), { version: packageVersion(), hasAccess }));
      reply.send(200, { 'Content-Type': 'application/json' }, text);
    },
  };
}
