import type { HttpHandler } from 'capstan/internal';
import { type Api, API_PREFIX } from '../api/api';
import { CONSOLE_FOLDER, ConsoleFiles } from '../api/console-files';

/** Serves the management API and the console on one origin. */
export function consoleHandler(api: Api, settings: { isSecure: boolean }): HttpHandler {
  const files = new ConsoleFiles(CONSOLE_FOLDER, settings);
  return (request, reply) => (request.path.startsWith(API_PREFIX) ? api : files).handle(request, reply);
}
