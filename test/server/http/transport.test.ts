/** The same behaviour over both transports, seen by raw sockets where it matters. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { request as httpsRequest } from 'node:https';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ApiError } from '../../../server/errors';
import { renderError } from '../../../server/errors';
import { createTransport } from '../../../server/http/create-transport';
import {
  type StreamHandler,
  type HttpHandler,
  type HttpReply,
  type HttpRequest,
  type ReplyStream,
  type Transport,
  type TransportOptions,
} from '../../../server/http/transport';

const TLS = join(__dirname, '../../fakes/tls');
const tlsFile = (name: string): string => join(TLS, name);

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer();
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

describe.each(['uws', 'node'] as const)('%s', (name) => {
  const transports: Transport[] = [];
  const sockets: Socket[] = [];

  async function listen(
    handler: StreamHandler,
    options: Partial<TransportOptions> = {},
  ): Promise<{ port: number; transport: Transport }> {
    const transport = await createTransport(name, { handler, maxBodyBytes: 1000, bodyTimeoutMs: 60_000, ...options });
    expect(transport.name).toBe(name);
    transports.push(transport);
    return { port: await transport.listen('127.0.0.1', 0), transport };
  }

  function open(port: number): {
    socket: Socket;
    received: () => string;
    until: (text: string | RegExp) => Promise<string>;
    closed: Promise<unknown>;
  } {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    let text = '';
    socket.on('data', (bytes) => {
      text += bytes.toString();
    });
    socket.on('error', () => {});
    const until = async (wanted: string | RegExp): Promise<string> => {
      for (const startedMs = performance.now(); performance.now() - startedMs < 60_000;) {
        if (typeof wanted === 'string' ? text.includes(wanted) : wanted.test(text)) return text;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      throw new Error(`never came: ${String(wanted)}; got: ${text}`);
    };
    return { socket, received: () => text, until, closed: new Promise((resolve) => socket.once('close', resolve)) };
  }

  /** As the app answers: the body back, or an error's envelope. */
  const echo: HttpHandler = async (request, reply) => {
    try {
      const body = await request.readBody();
      reply.send(
        200,
        { 'Content-Type': 'application/json' },
        JSON.stringify({
          method: request.method,
          path: request.path,
          query: request.query,
          headers: request.headers,
          body: body.toString(),
        }),
      );
    } catch (error) {
      const apiError = error as ApiError;
      reply.send(apiError.status, apiError.headers, renderError(apiError));
    }
  };

  afterEach(async () => {
    sockets.splice(0).forEach((socket) => socket.destroy());
    await Promise.all(transports.splice(0).map((transport) => transport.close()));
  });

  test('a port that a server before it left is had at once, one that is in use is not', async () => {
    const script = `
      require('${join(__dirname, '../../oracle/register-ts.cjs')}');
      const { createTransport } = require('${join(__dirname, '../../../server/http/create-transport.ts')}');
      void createTransport('${name}', { handler: async (_request, reply) => reply.send(200, {}, 'ok'), maxBodyBytes: 1, bodyTimeoutMs: 1 }).then((transport) => transport.listen('127.0.0.1', Number(process.argv[1]))).then(() => console.log('listening'));`;
    const port = await freePort();
    const child = spawn(process.execPath, ['-e', script, '--', String(port)], { stdio: ['ignore', 'pipe', 'inherit'] });
    await once(child.stdout, 'data');
    const { until } = open(port);
    sockets.at(-1)!.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    await until('ok');
    const taken = await createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1 });
    await expect(taken.listen('127.0.0.1', port)).rejects.toMatchObject({ code: 'EADDRINUSE' });
    child.kill('SIGKILL');
    await once(child, 'exit');
    transports.push(taken);
    expect(await taken.listen('127.0.0.1', port)).toBe(port);
    const other = await createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1 });
    await expect(other.listen('127.0.0.1', port)).rejects.toMatchObject({ code: 'EADDRINUSE' });
    await other.close();
  });

  test('hands over method, path, query, headers and body', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write(
      'POST /a/b%20c?x=1&y HTTP/1.1\r\nHost: h\r\nX-One:  a \r\nx-one: b\r\nContent-Length: 7\r\n\r\n{"ü":1',
    );
    const response = await until(':1"}');
    expect(response).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(response).toMatch(/\r\nContent-Length: \d+\r\n/i);
    const { headers, ...rest } = JSON.parse(response.slice(response.indexOf('\r\n\r\n') + 4)) as {
      headers: [string, string][];
    };
    expect(rest).toEqual({ method: 'POST', path: '/a/b%20c', query: 'x=1&y', body: '{"ü":1' });
    expect(headers.filter(([header]) => header === 'x-one')).toEqual([
      ['x-one', 'a'],
      ['x-one', 'b'],
    ]);
  });

  test('a body may come in pieces, chunked ones too, after which the connection closes', async () => {
    const { port } = await listen(echo);
    const pieces = open(port);
    pieces.socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc');
    await new Promise((resolve) => setTimeout(resolve, 30));
    pieces.socket.write('def');
    expect(await pieces.until('"}')).toContain('"body":"abcdef"');
    const chunked = open(port);
    chunked.socket.write(
      'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n',
    );
    expect(await chunked.until('"}')).toContain('"body":"abcde"');
    expect(chunked.received()).toMatch(/connection: close/i);
    await chunked.closed;
  });

  test('keeps a connection for several requests', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('GET /1 HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('"/1"');
    socket.write('POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx');
    await until('"/2"');
    socket.write('HEAD /3 HTTP/1.1\r\nHost: h\r\n\r\n');
    await until(/(HTTP\/1\.1 200.*){3}\r\n\r\n$/s);
    socket.write('GET /4 HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('"/4"');
  });

  test('HEAD has the length of the body and no body', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(200, {}, 'four'));
    const { socket, until } = open(port);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    const response = await until('\r\n\r\n');
    expect(response).toMatch(/content-length: 4\r\n/i);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(response.endsWith('\r\n\r\n')).toBe(true);
  });

  test('an answer before the end of a body is not lost, however long the body', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'));
    const { socket, received, closed } = open(port);
    const body = Buffer.alloc(8_000_000, 'x');
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`);
    socket.write(body);
    await closed;
    expect(received()).toMatch(/^HTTP\/1\.1 401 Unauthorized\r\n[^]*\r\n\r\nno$/);
    expect(received()).toMatch(/connection: close/i);
  });

  test('what follows a refused request on its connection is not answered', async () => {
    const { port } = await listen(echo);
    const { socket, received, closed } = open(port);
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n`);
    socket.write('x'.repeat(200_000));
    // What cannot be told from a body is not read: the connection may be reset.
    await closed.catch(() => {});
    expect((received().match(/HTTP\/1\.1 /g) ?? []).length).toBeLessThanOrEqual(1);
  });

  test('an expectation that nobody knows is no obstacle', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nExpect: weird\r\nContent-Length: 1\r\n\r\nx');
    expect(await until('"body":"x"')).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
  });

  test.each([
    ['two lengths', 'Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx'],
    ['two equal lengths', 'Content-Length: 1\r\nContent-Length: 1\r\n\r\nx'],
    ['a length and chunks', 'Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
    ['an encoding that is nearly chunked', 'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n'],
    ['two encodings', 'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n'],
    ['a signed length', 'Content-Length: +1\r\n\r\nx'],
    ['two hosts', 'Host: g\r\n\r\n'],
  ])('refuses ambiguous framing and closes: %s', async (_name, rest) => {
    const seen: string[] = [];
    const { port } = await listen(async (request, reply) => {
      seen.push(request.path);
      reply.send(200, {}, 'ok');
    });
    const { socket, received, closed } = open(port);
    socket.write(`POST /first HTTP/1.1\r\nHost: h\r\n${rest}GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n`);
    await closed;
    expect(seen).toEqual([]);
    // uWebSockets.js closes some of them without a word.
    if (received() !== '') {
      expect(received()).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
      expect(received()).toContain('"code":"malformed_request"');
    }
  });

  test('nothing of a chunked request is taken for the next one', async () => {
    const seen: string[] = [];
    const { port } = await listen(async (request, reply) => {
      seen.push(request.path);
      await request.readBody().catch(() => {});
      reply.send(200, {}, 'ok');
    });
    const { socket, closed } = open(port);
    socket.write(
      'POST /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nXXGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n',
    );
    await closed;
    expect(seen).not.toContain('/smuggled');
  });

  test('a body over the cap is refused: by its length before it is sent, by its count when chunked', async () => {
    const { port } = await listen(echo);
    const long = open(port);
    long.socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n');
    expect(await long.until('request_too_large')).toMatch(/^HTTP\/1\.1 413 /);
    await long.closed;
    const chunked = open(port);
    chunked.socket.write(
      `POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${`c8\r\n${'x'.repeat(200)}\r\n`.repeat(6)}`,
    );
    expect(await chunked.until('request_too_large')).toMatch(/^HTTP\/1\.1 413 /);
    await chunked.closed;
  });

  test('a body that stops coming ends with 408', async () => {
    const { port } = await listen(echo, { bodyTimeoutMs: 300 });
    const { socket, until, closed } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc');
    expect(await until('request_timeout')).toMatch(/^HTTP\/1\.1 408 /);
    await closed;
  });

  test('a handler that answers without reading the body closes the connection', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'));
    const { socket, until, closed } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\nabc');
    expect(await until('no')).toMatch(/connection: close/i);
    await closed;
  });

  test('a handler that throws costs its own connection and nothing else', async () => {
    let numCalls = 0;
    const { port } = await listen((_request, reply) => {
      if (++numCalls === 1) throw new Error('sync');
      if (numCalls === 2) return Promise.reject(new Error('async'));
      reply.send(200, {}, 'fine');
      return Promise.resolve();
    });
    for (let i = 0; i < 2; i++) {
      const { socket, closed } = open(port);
      socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
      await closed;
    }
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('fine');
  });

  test('streams pieces as they are written, and ends in order', async () => {
    let stream: ReplyStream | undefined;
    const { port } = await listen(async (_request, reply) => {
      await Promise.resolve();
      stream = reply.stream(200, { 'Content-Type': 'text/event-stream' });
    });
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    while (stream === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
    stream.write('data: 1\n\n');
    expect(await until('data: 1')).toMatch(/transfer-encoding: chunked/i);
    stream.write('data: ü\n\n');
    await until('data: ü');
    stream.end();
    await until('0\r\n\r\n');
  });

  test('a stream to a client that wants no further answers ends with its connection', async () => {
    const { port } = await listen(async (_request, reply) => {
      const stream = reply.stream(200, { Connection: 'keep-alive' });
      stream.write('data: 1\n\n');
      stream.end();
    });
    const { socket, received, closed } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n');
    await closed;
    expect(received()).toMatch(/data: 1\n\n\r\n0\r\n\r\n$/);
  });

  test('a client that leaves aborts the signal, before and during the answer', async () => {
    const requests: HttpRequest[] = [];
    const streams: ReplyStream[] = [];
    const { port } = await listen(async (request, reply: HttpReply) => {
      requests.push(request);
      if (request.path === '/stream') streams.push(reply.stream(200, {}));
      else request.signal.addEventListener('abort', () => reply.send(200, {}, 'too late'));
    });
    for (const path of ['/wait', '/stream']) {
      const { socket } = open(port);
      socket.write(`GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`);
      while (!requests.some((request) => request.path === path)) await new Promise((resolve) => setTimeout(resolve, 5));
      expect(requests.at(-1)!.signal.aborted).toBe(false);
      socket.destroy();
      if (!requests.at(-1)!.signal.aborted) await once(requests.at(-1)!.signal, 'abort');
    }
    expect(streams[0].write('x')).toBe(true);
    await streams[0].drained();
    streams[0].end();
  });

  test('a slow reader shows as back pressure, and its end as drained', async () => {
    let stream!: ReplyStream;
    const { port } = await listen(async (_request, reply) => {
      stream = reply.stream(200, {});
      stream.write('begun');
    });
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('begun');
    socket.pause();
    const piece = 'x'.repeat(64 * 1024);
    // The kernel takes the first few megabytes, with pauses between.
    const isStuck = async (): Promise<boolean> =>
      Promise.race([
        stream.drained().then(() => false),
        new Promise<boolean>((resolve) => {
          setTimeout(resolve, 100, true);
        }),
      ]);
    let numWritten = 0;
    for (;;) {
      if (!stream.write(piece) && (await isStuck())) break;
      if (++numWritten > 2000) throw new Error('no back pressure after 128 MB');
    }
    const drained = stream.drained();
    socket.resume();
    await drained;
    stream.end();
    await until('0\r\n\r\n');
  });

  test('a port that is taken is an error, also when its holder is the same transport', async () => {
    const { port } = await listen(echo);
    const second = await createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1 });
    transports.push(second);
    await expect(second.listen('127.0.0.1', port)).rejects.toMatchObject({ code: 'EADDRINUSE' });
    const holder = createServer();
    await new Promise<void>((resolve) => {
      holder.listen(0, '127.0.0.1', resolve);
    });
    await expect(second.listen('127.0.0.1', (holder.address() as { port: number }).port)).rejects.toMatchObject({
      code: 'EADDRINUSE',
    });
    holder.close();
  });

  test('stopListening refuses new connections and lets answers go on', async () => {
    let stream!: ReplyStream;
    const { port, transport } = await listen(async (_request, reply) => {
      stream = reply.stream(200, {});
      stream.write('begun');
    });
    const running = open(port);
    running.socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    await running.until('begun');
    transport.stopListening();
    const refused = connect(port, '127.0.0.1');
    await expect(once(refused, 'connect')).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    stream.write('still here');
    stream.end();
    await running.until('still here');
    await running.until('0\r\n\r\n');
  });

  test('requests written at once are answered in order, or the connection closes; no answer is lost or mixed up', async () => {
    const { port } = await listen(async (request, reply) => reply.send(200, {}, `[${request.path}]`));
    const { socket, until } = open(port);
    socket.write(['/1', '/2', '/3'].map((path) => `GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`).join(''));
    const text = await until('[/3]');
    expect(text.match(/\[\/\d\]/g)).toEqual(['[/1]', '[/2]', '[/3]']);
  });

  test('a request that comes while a stream is open never ends up inside the stream', async () => {
    let stream!: ReplyStream;
    const { port } = await listen(async (request, reply) => {
      if (request.path !== '/stream') return reply.send(200, {}, 'SECOND');
      stream = reply.stream(200, {});
      stream.write('begun');
    });
    const { socket, until, received, closed } = open(port);
    socket.write('GET /stream HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('begun');
    socket.write('GET /second HTTP/1.1\r\nHost: h\r\n\r\n');
    await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 100))]);
    expect(received()).not.toContain('SECOND');
    stream.write('end');
    stream.end();
    if (name === 'uws') return closed;
    const text = await until('SECOND');
    expect(text.indexOf('0\r\n\r\n')).toBeLessThan(text.indexOf('SECOND'));
  });

  test('the form of a request to a proxy is answered by node:http, and by none as something else', async () => {
    const { port } = await listen(echo);
    const { socket, until, received } = open(port);
    socket.write('GET http://h:1/a?b HTTP/1.1\r\nHost: h\r\n\r\n');
    if (name === 'node') expect(await until('"}')).toContain('"path":"/a","query":"b"');
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(received()).not.toContain('"path":"http');
  });

  test('a second header is seen however many come before it', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    // uWebSockets.js takes no more than 48 lines.
    const between = Array.from({ length: name === 'node' ? 2500 : 40 }, () => 'a:\r\n').join('');
    socket.write(`GET / HTTP/1.1\r\nHost: h\r\nAuthorization: one\r\n${between}Authorization: two\r\n\r\n`);
    expect((await until('"body"')).match(/\["authorization","\w+"\]/g)).toHaveLength(2);
  });

  test('a header block that is too large or has no end harms no other request', async () => {
    const { port } = await listen(echo);
    const large = open(port);
    large.socket.write(`GET / HTTP/1.1\r\nHost: h\r\nX-Large: ${'x'.repeat(200_000)}`);
    const many = open(port);
    many.socket.write(
      `GET / HTTP/1.1\r\nHost: h\r\n${Array.from({ length: 5000 }, (_, i) => `X-${i}: y\r\n`).join('')}\r\n`,
    );
    open(port).socket.write('GET / HT');
    const { socket, until } = open(port);
    socket.write('GET /fine HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('"/fine"');
    for (const { received } of [large, many]) expect(received()).not.toMatch(/^HTTP\/1\.1 200/);
  });

  test('a body that nobody reads is not kept, however much of it comes', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'));
    const { socket, until, closed } = open(port);
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n${'x'.repeat(100_000)}`);
    await until('no');
    await closed;
  });

  test('a request without a Host is not handled; where it is answered, with an error as all others', async () => {
    const { port } = await listen(echo);
    const { socket, received, closed } = open(port);
    socket.write('GET / HTTP/1.1\r\nConnection: close\r\n\r\n');
    await closed;
    if (name === 'uws') expect(received()).not.toMatch(/^HTTP\/1\.1 200/);
    else expect(received()).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n[^]*"code":"malformed_request"/);
  });

  test('a refusal of the transport itself has an id too', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx');
    expect(await until('malformed_request')).toMatch(/\r\nX-Request-Id: [0-9a-f]{32}\r\n/i);
  });

  test('an answer may be bytes, in one piece and in several, and a header may come several times', async () => {
    const bytes = Buffer.from([0xff, 0x00, 0xfe, 0x0a]);
    const { port } = await listen(async (request, reply) => {
      if (request.path === '/whole') return reply.send(200, { 'Set-Cookie': ['a=1', 'b=2'] }, bytes);
      const stream = reply.stream(200, {});
      stream.write(bytes.subarray(0, 2));
      stream.write(bytes.subarray(2));
      stream.end();
    });
    const whole = await fetch(`http://127.0.0.1:${port}/whole`);
    expect(whole.headers.getSetCookie()).toEqual(['a=1', 'b=2']);
    expect(Buffer.from(await whole.arrayBuffer())).toEqual(bytes);
    expect(Buffer.from(await (await fetch(`http://127.0.0.1:${port}/`)).arrayBuffer())).toEqual(bytes);
  });

  test('an answer to HEAD may name the length that GET would have', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(200, { 'Content-Length': '1234' }, null));
    const { socket, until } = open(port);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    const response = await until('\r\n\r\n');
    expect(response.match(/content-length: .*/gi)).toEqual(['Content-Length: 1234']);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    await until(/(HTTP\/1\.1 200.*){2}\r\n\r\n$/s);
  });

  test.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE'])('hands over %s', async (method) => {
    const { port } = await listen(echo, { streamsBodies: true });
    const { socket, until } = open(port);
    socket.write(`${method} /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi`);
    expect(await until('"body":"hi"')).toContain(`"method":"${method}"`);
  });

  describe('a body that is streamed', () => {
    const collect = async (pieces: AsyncIterable<Buffer>): Promise<Buffer> => {
      const all: Buffer[] = [];
      for await (const piece of pieces) all.push(piece);
      return Buffer.concat(all);
    };

    test('comes piece by piece, before its end', async () => {
      const seen: string[] = [];
      const { port } = await listen(
        async (request, reply) => {
          for await (const piece of request.bodyPieces()) seen.push(piece.toString());
          reply.send(200, {}, `[${seen.join('')}]`);
        },
        { streamsBodies: true },
      );
      const { socket, until, closed } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n');
      while (seen.join('') !== 'abc') await new Promise((resolve) => setTimeout(resolve, 5));
      socket.write('2\r\nde\r\n0\r\n\r\n');
      await until('[abcde]');
      await closed;
    });

    test('can be had whole as well, and is nothing where there is none', async () => {
      const { port } = await listen(
        async (request, reply) => {
          const body = request.path === '/pieces' ? await collect(request.bodyPieces()) : await request.readBody();
          reply.send(200, {}, `[${body.toString()}]`);
        },
        { streamsBodies: true },
      );
      const { socket, until } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc');
      await until('[abc]');
      socket.write('GET /pieces HTTP/1.1\r\nHost: h\r\n\r\n');
      await until('[]');
      socket.write('POST /pieces HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ndef');
      await until('[def]');
    });

    test('waits at its client while nobody takes it, and loses nothing', async () => {
      let take!: () => void;
      const taken = new Promise<void>((resolve) => {
        take = resolve;
      });
      const { port } = await listen(
        async (request, reply) => {
          await taken;
          const body = await collect(request.bodyPieces());
          reply.send(200, {}, `[${body.length} ${body.every((byte, i) => byte === i % 251)}]`);
        },
        { streamsBodies: true, maxBodyBytes: 100_000_000 },
      );
      const { socket, until } = open(port);
      const body = Buffer.alloc(60_000_000).map((_byte, i) => i % 251);
      socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`);
      socket.write(body);
      // The kernel takes the first few megabytes.
      let left = -1;
      while (left !== socket.writableLength) {
        left = socket.writableLength;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      expect(left).toBeGreaterThan(30_000_000);
      take();
      await until('[60000000 true]');
      // The connection serves on.
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n\0');
      await until('[1 true]');
    });

    test('an answer that comes before its end is not lost, and nothing of it is taken for a request', async () => {
      const seen: string[] = [];
      const { port } = await listen(
        async (request, reply) => {
          seen.push(request.path);
          reply.send(401, {}, 'no');
        },
        { streamsBodies: true, maxBodyBytes: 100_000_000 },
      );
      const { socket, received, closed } = open(port);
      const body = Buffer.from('GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n'.repeat(100_000));
      socket.write(`POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`);
      socket.write(body);
      await closed;
      expect(received()).toMatch(/^HTTP\/1\.1 401 Unauthorized\r\n[^]*\r\n\r\nno$/);
      expect(seen).toEqual(['/first']);
    });

    test('a stream in answer to chunks ends in order, and nothing follows it', async () => {
      const seen: string[] = [];
      const { port } = await listen(
        async (request, reply) => {
          seen.push(request.path);
          const stream = reply.stream(200, {});
          for await (const piece of request.bodyPieces()) stream.write(piece);
          stream.end();
        },
        { streamsBodies: true },
      );
      const { socket, until, received } = open(port);
      socket.write('POST /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n');
      await until('\r\n0\r\n\r\n');
      expect(received()).toMatch(/connection: close/i);
      expect(received()).toMatch(/\r\n\r\n3\r\nabc\r\n0\r\n\r\n$/);
      socket.write('GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n');
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(seen).toEqual(['/first']);
    });

    test('a long answer to a long body that still comes is whole', async () => {
      const { port } = await listen(
        async (request, reply) => {
          const stream = reply.stream(200, {});
          for await (const piece of request.bodyPieces()) if (!stream.write(piece)) await stream.drained();
          stream.end();
        },
        { streamsBodies: true, maxBodyBytes: 10_000_000 },
      );
      const body = Buffer.alloc(8_000_000).map((_byte, i) => i % 251);
      for (let i = 0; i < 2; i++) {
        const response = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body });
        expect(Buffer.from(await response.arrayBuffer()).equals(body)).toBe(true);
      }
    });

    test('a stream may begin, and end, while the body still comes', async () => {
      const { port } = await listen(
        async (request, reply) => {
          const stream = reply.stream(200, {});
          for await (const piece of request.bodyPieces()) {
            stream.write(`[${piece.toString()}]`);
            if (piece.includes('end')) break;
          }
          stream.end();
        },
        { streamsBodies: true },
      );
      const { socket, until, closed } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc');
      await until('[abc]');
      socket.write('end');
      await until('[end]');
      await closed;
    });

    test.each([
      ['whole', 'request_timeout', ''],
      ['pieces', 'request_timeout', '/pieces'],
    ])('that stops coming is a time-out, %s', async (_name, code, path) => {
      const { port } = await listen(
        async (request, reply) => {
          const error = (await (request.path === '/pieces' ? collect(request.bodyPieces()) : request.readBody()).catch(
            (caught: ApiError) => caught,
          )) as ApiError;
          reply.send(error.status, {}, error.code);
        },
        { streamsBodies: true, bodyTimeoutMs: 300 },
      );
      const { socket, until, closed } = open(port);
      socket.write(`POST ${path || '/'} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc`);
      await until(code);
      await closed;
    });

    test('that is too large is refused, by its length or by its count', async () => {
      const { port } = await listen(
        async (request, reply) => {
          const error = (await collect(request.bodyPieces()).catch((caught: ApiError) => caught)) as ApiError;
          reply.send(error.status, {}, error.code);
        },
        { streamsBodies: true },
      );
      const long = open(port);
      long.socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n');
      await long.until('request_too_large');
      const chunked = open(port);
      chunked.socket.write(
        `POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${`c8\r\n${'x'.repeat(200)}\r\n`.repeat(6)}`,
      );
      await chunked.until('request_too_large');
    });

    test('ends with an error when its client leaves', async () => {
      let begin!: () => void;
      const begun = new Promise<void>((resolve) => {
        begin = resolve;
      });
      let fail!: (error: unknown) => void;
      const failed = new Promise((resolve) => {
        fail = resolve;
      });
      const { port } = await listen(
        async (request) => {
          begin();
          await collect(request.bodyPieces()).catch(fail);
        },
        { streamsBodies: true },
      );
      const { socket } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc');
      await begun;
      socket.destroy();
      expect(await failed).toMatchObject({ code: 'request_timeout' });
    });
  });

  describe('TLS', () => {
    const fetchTls = (port: number): Promise<{ status: number; text: string }> =>
      new Promise((resolve, reject) => {
        httpsRequest(
          { port, host: '127.0.0.1', path: '/a', ca: readFileSync(tlsFile('cert.pem')), agent: false },
          (response) => {
            let text = '';
            response.on('data', (bytes) => {
              text += String(bytes);
            });
            response.on('end', () => resolve({ status: response.statusCode!, text }));
          },
        )
          .on('error', reject)
          .end();
      });

    test.each([
      ['key.pem', undefined],
      ['locked-key.pem', 'open-sesame'],
    ])('answers with the certificate, %s', async (key, passphrase) => {
      const { port } = await listen(echo, {
        tls: {
          keyFile: tlsFile(key),
          certFile: tlsFile('cert.pem'),
          ...(passphrase === undefined ? {} : { passphrase }),
        },
      });
      const { status, text } = await fetchTls(port);
      expect([status, (JSON.parse(text) as { path: string }).path]).toEqual([200, '/a']);
      // What speaks no TLS costs its own connection alone.
      const plain = open(port);
      plain.socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
      await plain.closed;
      expect(plain.received()).not.toContain('HTTP/1.1 200');
      expect((await fetchTls(port)).status).toBe(200);
    });

    test.each([
      [
        { keyFile: '/no/key.pem', certFile: tlsFile('cert.pem') },
        "--ssl-keyfile: expected a file that can be read, got '/no/key.pem' (ENOENT)",
      ],
      [
        { keyFile: tlsFile('key.pem'), certFile: tlsFile('README.md') },
        '--ssl-certfile: expected a certificate in PEM form',
      ],
      [
        { keyFile: tlsFile('cert.pem'), certFile: tlsFile('cert.pem') },
        '--ssl-keyfile: expected a private key in PEM form',
      ],
      [
        { keyFile: tlsFile('locked-key.pem'), certFile: tlsFile('cert.pem'), passphrase: 'wrong' },
        '--ssl-keyfile: expected a private key in PEM form and its password',
      ],
      [
        { keyFile: tlsFile('other-key.pem'), certFile: tlsFile('cert.pem') },
        '--ssl-keyfile: expected the key of the certificate',
      ],
    ])('refuses files that do not fit, by name: %j', async (tls, message) => {
      await expect(createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1, tls })).rejects.toThrow(
        message,
      );
    });
  });

  describe('a Unix socket', () => {
    let folder: string;
    beforeEach(() => {
      folder = mkdtempSync(join(tmpdir(), 'capstan-uds-'));
    });
    afterEach(() => rmSync(folder, { recursive: true, force: true }));

    async function listenUnix(path: string): Promise<Transport> {
      const transport = await createTransport(name, { handler: echo, maxBodyBytes: 1000, bodyTimeoutMs: 60_000 });
      transports.push(transport);
      await transport.listenUnix(path);
      return transport;
    }

    function ask(path: string): Promise<string> {
      return new Promise((resolve, reject) => {
        const socket = connect(path);
        sockets.push(socket);
        socket.on('data', (bytes) => resolve(bytes.toString()));
        socket.on('error', reject);
        socket.write('GET /a HTTP/1.1\r\nHost: h\r\n\r\n');
      });
    }

    test('answers there, to its user and group alone, and leaves no file', async () => {
      const path = join(folder, 's');
      const before = process.umask();
      const transport = await listenUnix(path);
      expect(statSync(path).mode & 0o777).toBe(0o660);
      expect(process.umask()).toBe(before);
      expect(await ask(path)).toContain('"path":"/a"');
      transport.stopListening();
      await transport.close();
      expect(existsSync(path)).toBe(false);
    });

    test('takes the place of what a dead server left, and of nothing else', async () => {
      const path = join(folder, 's');
      await listenUnix(path);
      const second = await createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1 });
      transports.push(second);
      await expect(second.listenUnix(path)).rejects.toMatchObject({ code: 'EADDRINUSE' });
      expect(await ask(path)).toContain('"path":"/a"');

      const left = join(folder, 'left');
      const script = `require('net').createServer().listen(${JSON.stringify(left)}, () => process.kill(process.pid, 'SIGKILL'))`;
      spawnSync(process.execPath, ['-e', script]);
      expect(existsSync(left)).toBe(true);
      await second.listenUnix(left);
      expect(await ask(left)).toContain('"path":"/a"');

      const file = join(folder, 'file');
      writeFileSync(file, 'mine');
      await expect(listenUnix(file)).rejects.toMatchObject({ code: 'EEXIST' });
      expect(readFileSync(file, 'utf8')).toBe('mine');
      await expect(listenUnix(join(folder, 'x'.repeat(120)))).rejects.toMatchObject({ code: 'ENAMETOOLONG' });
      await expect(listenUnix(join(folder, 'no', 'folder'))).rejects.toThrow();
    });
  });

  test.each([
    'garbage\r\n\r\n',
    'GET / HTTP/1.1\r\n\r\n',
    'GET / HTTP/1.1\r\nHost h\r\n\r\n',
    '\x16\x03\x01\x02\x00\x01\x00',
  ])('what is no request harms nobody: %j', async (bytes) => {
    const { port } = await listen(echo);
    open(port).socket.write(bytes);
    const { socket, until } = open(port);
    socket.write('GET /fine HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('"/fine"');
  });
});
