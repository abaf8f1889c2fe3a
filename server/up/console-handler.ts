import type { Api } from '../api/api';
import type { HttpHandler } from '../http/transport';

/** One origin: the management interface and the pages that use it. */
export function consoleHandler(api: Api): HttpHandler {
  return (request, reply) => api.handle(request, reply);
}
