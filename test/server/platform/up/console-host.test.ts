import { refuseHost } from '../../../../server/platform/api/console-host';
import { consoleHandler } from '../../../../server/platform/up/console-handler';
import type { HttpHandler, HttpReply, HttpRequest, StreamHandler } from '../../../../server/http/transport';
import { makeFolder, removeFolders } from '../../access/support';

afterAll(removeFolders);

/** Sends a request and returns its status and `Location`. */
async function ask(
  handler: HttpHandler | StreamHandler,
  host: string,
  path = '/',
): Promise<[number, string | undefined]> {
  let result: [number, string | undefined] = [0, undefined];
  const reply = {
    send: (status: number, headers: Record<string, string>) => {
      result = [status, headers.Location];
    },
  };
  const request = { method: 'GET', path, query: path === '/orgs' ? 'a=1' : '', headers: [['host', host]] };
  await (handler as HttpHandler)(request as unknown as HttpRequest, reply as unknown as HttpReply);
  return result;
}

const passed: HttpHandler = (_request, reply) => Promise.resolve(reply.send(200, {}, ''));

test('the port of the deployments refuses the host name of the console, with any port', async () => {
  const handler = refuseHost('console.example.com', passed as unknown as StreamHandler);
  expect(await ask(handler, 'console.example.com:8091', '/d/x')).toEqual([421, undefined]);
  expect(await ask(handler, 'CONSOLE.example.com')).toEqual([421, undefined]);
  expect(await ask(handler, 'models.example.com:8091')).toEqual([200, undefined]);
  expect(await ask(handler, 'console.example.com.models.example.com')).toEqual([200, undefined]);
});

test('pages redirect to the host name of the console, and the API decides for itself', async () => {
  const settings = { isSecure: true, origin: 'https://console.example.com:8090', consoleHost: 'console.example.com' };
  const handler = consoleHandler({ handle: passed }, settings, makeFolder());
  expect(await ask(handler, '127.0.0.1:8090', '/orgs')).toEqual([307, 'https://console.example.com:8090/orgs?a=1']);
  expect(await ask(handler, '127.0.0.1:8090', '/api/v1/me')).toEqual([200, undefined]);
  // The folder has no build of the console.
  expect(await ask(handler, 'console.example.com:8090', '/orgs')).toEqual([503, undefined]);
  expect(
    await ask(consoleHandler({ handle: passed }, { ...settings, consoleHost: undefined }, makeFolder()), 'x'),
  ).toEqual([503, undefined]);
});
