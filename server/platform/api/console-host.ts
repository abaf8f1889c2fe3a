import { header, type HttpReply, type HttpRequest, type StreamHandler } from 'capstan/internal';
import type { ApiSettings } from './context';
import { ApiProblem } from './problem';

type Head = Pick<HttpRequest, 'headers'>;

/** Returns whether a request names this host, with any port. */
export function isForHost(request: Head, host: string): boolean {
  return (header(request, 'host') ?? '').replace(/:\d{1,5}$/, '').toLowerCase() === host;
}

/** Refuses to set a cookie under a host name that the console may share. @throws ApiProblem `wrong_host` */
export function requireConsoleHost(request: Head, { consoleHost }: Pick<ApiSettings, 'consoleHost'>): void {
  if (consoleHost !== undefined && !isForHost(request, consoleHost))
    throw new ApiProblem('wrong_host', `sign in at the host name of the console: ${consoleHost}`);
}

/** Refuses the host name of the console on the port of the deployments, where a browser would send console cookies. */
export function refuseHost(host: string, handler: StreamHandler): StreamHandler {
  return (request, reply) =>
    isForHost(request, host) ? Promise.resolve(sendRefusal(reply, host)) : handler(request, reply);
}

function sendRefusal(reply: HttpReply, host: string): void {
  const message = `${host} is the host name of the console: use the URL of the deployment`;
  reply.send(
    421,
    { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' },
    JSON.stringify({ error: { message, type: 'invalid_request_error', code: 'wrong_host', param: null } }),
  );
}
