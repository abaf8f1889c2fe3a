/** Bodies of the HTTP client of the hub. */
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { createHttp, type HttpResponse } from '../../../ts/hub/http';
import { transient } from '../../../ts/hub/hub-client';

let server: Server;
let sockets: Socket[];
let http: ReturnType<typeof createHttp>;

afterEach(() => {
  http.close();
  server.closeAllConnections();
  server.close();
});

async function serve(listener: RequestListener): Promise<(method?: 'GET' | 'HEAD') => Promise<HttpResponse>> {
  server = createServer(listener);
  sockets = [];
  server.on('connection', (socket) => sockets.push(socket));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  http = createHttp({});
  const url = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  return (method = 'GET') => http.send(url, { method, headers: {}, signal: new AbortController().signal });
}

async function read({ body }: HttpResponse): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of transient(body)) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

test.each(['gzip', 'br', 'deflate'])('a body that is no %s says so, and its connection is closed', async (encoding) => {
  const send = await serve((_request, response) => {
    response.writeHead(200, { 'Content-Encoding': encoding });
    // The server sends no end.
    response.write('this is not compressed at all');
  });
  await expect(read(await send())).rejects.toThrow('the response has a content encoding that cannot be decoded');
  if (!sockets[0].closed) await once(sockets[0], 'close');
});

test('a body that is cut says that the connection was cut', async () => {
  const send = await serve((_request, response) => {
    const body = gzipSync('x'.repeat(1000));
    response.writeHead(200, { 'Content-Encoding': 'gzip', 'Content-Length': body.length });
    response.write(body.subarray(0, body.length - 4), () => response.socket?.end());
  });
  await expect(read(await send())).rejects.toThrow('the connection was cut');
});

test('an ignored body is not decoded, but received to its end', async () => {
  let onSent = (): void => {};
  const sent = new Promise<void>((resolve) => (onSent = resolve));
  const send = await serve((_request, response) => {
    // More than the buffers of a connection hold.
    response.writeHead(500, { 'Content-Encoding': 'gzip' }).end(Buffer.alloc(32 << 20), onSent);
  });
  (await send()).body.resume();
  await sent;
  expect(sockets[0].destroyed).toBe(false);
});

test('a response without a body is read although it names an encoding', async () => {
  const send = await serve((request, response) => {
    response.writeHead(request.method === 'HEAD' ? 200 : 204, { 'Content-Encoding': 'br' }).end();
  });
  for (const method of ['HEAD', 'GET'] as const) expect(await read(await send(method))).toBe('');
});
