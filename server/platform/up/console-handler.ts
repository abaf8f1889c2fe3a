import type { HttpHandler } from 'capstan/internal';
import { type Api, API_PREFIX } from '../api/api';
import { CONSOLE_FOLDER, ConsoleFiles } from '../api/console-files';
import { isForHost } from '../api/console-host';

export interface ConsoleSettings {
  isSecure: boolean;
  /** Where browsers reach the console. */
  origin: string;
  /** The host name that only the console has. Under other names, pages redirect to `origin`. */
  consoleHost: string | undefined;
}

/** Serves the management API and the console on one origin. */
export function consoleHandler(
  api: Pick<Api, 'handle'>,
  { isSecure, origin, consoleHost }: ConsoleSettings,
  folder = CONSOLE_FOLDER,
): HttpHandler {
  const files = new ConsoleFiles(folder, { isSecure });
  return (request, reply) => {
    if (request.path.startsWith(API_PREFIX)) return api.handle(request, reply);
    if (consoleHost === undefined || isForHost(request, consoleHost)) return files.handle(request, reply);
    const address = `${origin}${request.path}${request.query === '' ? '' : `?${request.query}`}`;
    return Promise.resolve(reply.send(307, { Location: address, 'Cache-Control': 'no-store' }, ''));
  };
}
