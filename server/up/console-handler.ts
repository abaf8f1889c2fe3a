import { type Api, API_PREFIX } from '../api/api';
import { CONSOLE_FOLDER, ConsoleFiles } from '../console-files';
import type { HttpHandler } from '../http/transport';

/** One origin: the management interface and the pages that use it. */
export function consoleHandler(api: Api, settings: { isSecure: boolean }): HttpHandler {
  const files = new ConsoleFiles(CONSOLE_FOLDER, settings);
  return (request, reply) => (request.path.startsWith(API_PREFIX) ? api : files).handle(request, reply);
}
