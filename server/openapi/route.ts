import type { Route } from '../routes';
import { packageVersion } from '../version';
import { openApiDocument } from './document';

/** GET /openapi.json. @param routes Of the serving port, this one included; read at the first request. */
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
