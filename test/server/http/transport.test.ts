/** Both transports behave the same. Raw sockets check what an HTTP client would hide. */
import { spawn, spawnSync } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { request as httpsRequest } from 'node:https';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ApiError } from '../../../server/base/errors';
import { renderError } from '../../../server/base/errors';
import { createTransport } from '../../../server/http/create-transport';
import { isCurrentUws } from '../../../server/http/uws-module';
import { freePort } from '../../fakes/free-port';
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

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** Bytes with a period of 251, so that lost or repeated blocks are found. */
function patterned(length: number): Buffer {
  return Buffer.alloc(
    length,
    Uint8Array.from({ length: 251 }, (_, i) => i),
  );
}

describe.each(['uws', 'node'] as const)('%s', (name) => {
  const transports: Transport[] = [];
  const sockets: Socket[] = [];

  /** Unread bodies are dropped for this long, unless a test says otherwise. */
  const lingerMs = 20;

  async function listen(
    handler: StreamHandler,
    options: Partial<TransportOptions> = {},
  ): Promise<{ port: number; transport: Transport }> {
    const defaults = { maxBodyBytes: 1000, bodyTimeoutMs: 60_000, lingerMs };
    const transport = await createTransport(name, { handler, ...defaults, ...options });
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
    let notify = () => {};
    socket.on('data', (bytes) => {
      text += bytes.toString();
      notify();
    });
    socket.on('close', () => notify());
    socket.on('error', () => {});
    const until = async (wanted: string | RegExp): Promise<string> => {
      const isReceived = () => (typeof wanted === 'string' ? text.includes(wanted) : wanted.test(text));
      while (!isReceived()) {
        if (socket.closed) throw new Error(`closed before ${String(wanted)}, got: ${text}`);
        await new Promise<void>((resolve) => {
          notify = resolve;
        });
      }
      return text;
    };
    return { socket, received: () => text, until, closed: new Promise((resolve) => socket.once('close', resolve)) };
  }

  /** Resolves when the server has read everything that was sent before: a later request has its response. */
  async function roundTrip(port: number): Promise<void> {
    const { socket, until } = open(port);
    socket.write('GET /round-trip HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('\r\n\r\n');
    socket.destroy();
  }

  /** Responds as the app does: with the request as JSON, or with an error. */
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

  test('listens at once on the port of a server that died, but not on a port in use', async () => {
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

  test('passes method, path, query, headers and body to the handler', async () => {
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

  test('reads a body in pieces and a chunked body, after which it closes the connection', async () => {
    const { port } = await listen(echo);
    const pieces = open(port);
    pieces.socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc');
    await roundTrip(port);
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

  test('keeps a connection open for several requests', async () => {
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

  test('responds to HEAD with the length of the body and no body', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(200, {}, 'four'));
    const { socket, until } = open(port);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    const response = await until('\r\n\r\n');
    expect(response).toMatch(/content-length: 4\r\n/i);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    expect(await until('four')).toMatch(/\r\n\r\nHTTP\/1\.1 200 OK\r\n/);
  });

  test('delivers a response that is sent before the end of a long body', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'), { lingerMs: 60_000 });
    const { socket, received, closed } = open(port);
    const body = Buffer.alloc(8_000_000, 'x');
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`);
    socket.write(body);
    await closed;
    expect(received()).toMatch(/^HTTP\/1\.1 401 Unauthorized\r\n[^]*\r\n\r\nno$/);
    expect(received()).toMatch(/connection: close/i);
  });

  test('does not answer bytes that follow a refused request', async () => {
    const { port } = await listen(echo);
    const { socket, received, closed } = open(port);
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n`);
    socket.write('x'.repeat(200_000));
    // The bytes may belong to a body, so they are not read, and the connection may be reset.
    await closed.catch(() => {});
    expect((received().match(/HTTP\/1\.1 /g) ?? []).length).toBeLessThanOrEqual(1);
  });

  test('ignores an unknown Expect header', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nExpect: weird\r\nContent-Length: 1\r\n\r\nx');
    expect(await until('"body":"x"')).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
  });

  // uWebSockets.js 20.30 itself removes all bytes above 127 from both ends of a value.
  const keepsOuterBytes = name === 'node';

  test.each([
    ['two lengths', 'Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx'],
    ['two equal lengths', 'Content-Length: 1\r\nContent-Length: 1\r\n\r\nx'],
    ['a length and chunks', 'Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
    ['an encoding similar to chunked', 'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n'],
    ['two encodings', 'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n'],
    ...(keepsOuterBytes
      ? [
          ['a no-break space before chunked', 'Transfer-Encoding: \xa0chunked\r\n\r\n0\r\n\r\n'],
          ['a no-break space after chunked', 'Transfer-Encoding: chunked\xa0\r\n\r\n0\r\n\r\n'],
          ['a no-break space after a length', 'Content-Length: 1\xa0\r\n\r\nx'],
        ]
      : []),
    ['a signed length', 'Content-Length: +1\r\n\r\nx'],
    ['two hosts', 'Host: g\r\n\r\n'],
  ])('refuses ambiguous framing and closes the connection: %s', async (_name, rest) => {
    const seen: string[] = [];
    const { port } = await listen(async (request, reply) => {
      seen.push(request.path);
      reply.send(200, {}, 'ok');
    });
    const { socket, received, closed } = open(port);
    socket.write(`POST /first HTTP/1.1\r\nHost: h\r\n${rest}GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n`, 'latin1');
    await closed;
    expect(seen).toEqual([]);
    // uWebSockets.js closes some of these connections without a response.
    if (received() !== '') {
      expect(received()).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
      expect(received()).toContain('"code":"malformed_request"');
    }
  });

  test('removes spaces and tabs around a header value, and no other character', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\nX-One: \t a b \t\r\nX-Two: Bearer k\xa0\r\n\r\n', 'latin1');
    const { headers } = JSON.parse((await until(/\}$/)).split('\r\n\r\n')[1]) as { headers: [string, string][] };
    expect(headers).toEqual(
      expect.arrayContaining([
        ['x-one', 'a b'],
        ['x-two', keepsOuterBytes ? 'Bearer k\xa0' : 'Bearer k'],
      ]),
    );
  });

  test('parses no part of a chunked request as the next request', async () => {
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

  test('refuses a body over the limit with 413, by its Content-Length or by its size if chunked', async () => {
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

  test('answers 408 if the rest of a body does not arrive in time', async () => {
    const { port } = await listen(echo, { bodyTimeoutMs: 50 });
    const { socket, until, closed } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc');
    expect(await until('request_timeout')).toMatch(/^HTTP\/1\.1 408 /);
    await closed;
  });

  test('closes the connection if the handler did not read the body', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'));
    const { socket, until, closed } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\nabc');
    expect(await until('no')).toMatch(/connection: close/i);
    await closed;
  });

  test('a handler that throws affects only its own connection', async () => {
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

  test('sends each piece of a stream as it is written, then the end', async () => {
    const begun = deferred<ReplyStream>();
    const { port } = await listen(async (_request, reply) => {
      await Promise.resolve();
      begun.resolve(reply.stream(200, { 'Content-Type': 'text/event-stream' }));
    });
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    const stream = await begun.promise;
    stream.write('data: 1\n\n');
    expect(await until('data: 1')).toMatch(/transfer-encoding: chunked/i);
    stream.write('data: ü\n\n');
    await until('data: ü');
    stream.end();
    await until('0\r\n\r\n');
  });

  test('closes the connection after a stream if the client sent Connection: close', async () => {
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

  test('aborts the signal when the client disconnects, before and during the response', async () => {
    const requests: HttpRequest[] = [];
    const handled = new EventEmitter();
    const streams: ReplyStream[] = [];
    const { port } = await listen(async (request, reply: HttpReply) => {
      requests.push(request);
      handled.emit('request');
      if (request.path === '/stream') streams.push(reply.stream(200, {}));
      else request.signal.addEventListener('abort', () => reply.send(200, {}, 'too late'));
    });
    for (const path of ['/wait', '/stream']) {
      const isHandled = once(handled, 'request');
      const { socket } = open(port);
      socket.write(`GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`);
      await isHandled;
      expect(requests.at(-1)!.signal.aborted).toBe(false);
      socket.destroy();
      if (!requests.at(-1)!.signal.aborted) await once(requests.at(-1)!.signal, 'abort');
    }
    expect(streams[0].write('x')).toBe(true);
    await streams[0].drained();
    streams[0].end();
  });

  test('reports back pressure of a slow reader, and drained when it reads again', async () => {
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
    // The buffers of the kernel take the first megabytes, not all at once.
    const isStuck = async (): Promise<boolean> =>
      Promise.race([
        stream.drained().then(() => false),
        new Promise<boolean>((resolve) => {
          setTimeout(resolve, 20, true);
        }),
      ]);
    let numWritten = 0;
    for (;;) {
      if (!stream.write(piece) && (await isStuck())) break;
      if (++numWritten > 2000) throw new Error('expected back pressure within 128 MB, got none');
    }
    const drained = stream.drained();
    socket.resume();
    await drained;
    stream.end();
    await until('0\r\n\r\n');
  });

  test('rejects with EADDRINUSE for a port in use, by another transport or by this process', async () => {
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

  test('stopListening refuses new connections while responses continue', async () => {
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

  test('answers pipelined requests in order', async () => {
    const { port } = await listen(async (request, reply) => reply.send(200, {}, `[${request.path}]`));
    const { socket, until } = open(port);
    socket.write(['/1', '/2', '/3'].map((path) => `GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`).join(''));
    const text = await until('[/3]');
    expect(text.match(/\[\/\d\]/g)).toEqual(['[/1]', '[/2]', '[/3]']);
  });

  test('a request during a stream never gets its response inside the stream', async () => {
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
    await roundTrip(port);
    expect(received()).not.toContain('SECOND');
    stream.write('end');
    stream.end();
    if (name === 'uws') return closed;
    const text = await until('SECOND');
    expect(text.indexOf('0\r\n\r\n')).toBeLessThan(text.indexOf('SECOND'));
  });

  test('accepts the request form for proxies on node:http only, and never misreads it', async () => {
    const { port } = await listen(echo);
    const { socket, until, received } = open(port);
    socket.write('GET http://h:1/a?b HTTP/1.1\r\nHost: h\r\n\r\n');
    if (name === 'node') expect(await until('"}')).toContain('"path":"/a","query":"b"');
    await roundTrip(port);
    expect(received()).not.toContain('"path":"http');
  });

  test('passes a duplicate header on, even after many other headers', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    // uWebSockets.js accepts at most 48 headers.
    const between = Array.from({ length: name === 'node' ? 2500 : 40 }, () => 'a:\r\n').join('');
    socket.write(`GET / HTTP/1.1\r\nHost: h\r\nAuthorization: one\r\n${between}Authorization: two\r\n\r\n`);
    expect((await until('"body"')).match(/\["authorization","\w+"\]/g)).toHaveLength(2);
  });

  test('announces how long it keeps an idle connection, with a response and with a stream', async () => {
    const { port } = await listen(
      async (request, reply) => {
        if (request.path === '/') return reply.send(200, {}, 'body');
        const stream = reply.stream(200, {});
        stream.write('data');
        stream.end();
      },
      { keepAliveTimeoutMs: 20_000 },
    );
    const { socket, until } = open(port);
    const seconds = name === 'uws' ? 6 : 20;
    for (const path of ['/', '/stream']) {
      socket.write(`GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`);
      const head = (await until(path === '/' ? 'body' : '0\r\n\r\n')).split('\r\n');
      expect(head).toContain(`Keep-Alive: timeout=${seconds}`);
      expect(head).toContain('Connection: keep-alive');
    }
  });

  test('204 has no Content-Length, and the connection stays open', async () => {
    const { port } = await listen(async (request, reply) =>
      request.path === '/' ? reply.send(204, {}, '') : reply.send(200, {}, 'second'),
    );
    const { socket, until } = open(port);
    socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
    expect(await until('\r\n\r\n')).not.toMatch(/content-length|transfer-encoding/i);
    socket.write('GET /2 HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('second');
  });

  test('a header block that is too large or incomplete affects no other request', async () => {
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
    // uWebSockets.js 20.30 closes the connection without a response.
    if (name === 'uws') return;
    for (const { until: untilOf, closed } of [large, many]) {
      const pattern = /^HTTP\/1\.1 431 Request Header Fields Too Large\r\n[^]*"code":"headers_too_large"/;
      expect(await untilOf(pattern)).toMatch(pattern);
      await closed;
    }
  });

  test('drops an unread body of any length', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(401, {}, 'no'));
    const { socket, until, closed } = open(port);
    socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n${'x'.repeat(100_000)}`);
    await until('no');
    await closed;
  });

  test('does not handle a request without Host, and node:http answers malformed_request', async () => {
    const { port } = await listen(echo);
    const { socket, received, closed } = open(port);
    socket.write('GET / HTTP/1.1\r\nConnection: close\r\n\r\n');
    await closed;
    if (name === 'uws') expect(received()).not.toMatch(/^HTTP\/1\.1 200/);
    else expect(received()).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n[^]*"code":"malformed_request"/);
  });

  test('errors of the transport carry a request id', async () => {
    const { port } = await listen(echo);
    const { socket, until } = open(port);
    socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx');
    expect(await until('malformed_request')).toMatch(/\r\nX-Request-Id: [0-9a-f]{32}\r\n/i);
  });

  test('sends bytes unchanged, at once or as a stream, and repeats a header with several values', async () => {
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

  test('a response to HEAD may carry the Content-Length of GET', async () => {
    const { port } = await listen(async (_request, reply) => reply.send(200, { 'Content-Length': '1234' }, null));
    const { socket, until } = open(port);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    const response = await until('\r\n\r\n');
    expect(response.match(/content-length: .*/gi)).toEqual(['Content-Length: 1234']);
    socket.write('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n');
    await until(/(HTTP\/1\.1 200.*){2}\r\n\r\n$/s);
  });

  test.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE'])(
    'passes on the method %s',
    async (method) => {
      const { port } = await listen(echo, { streamsBodies: true });
      const { socket, until } = open(port);
      socket.write(`${method} /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi`);
      expect(await until('"body":"hi"')).toContain(`"method":"${method}"`);
    },
  );

  describe('a streamed body', () => {
    const collect = async (pieces: AsyncIterable<Buffer>): Promise<Buffer> => {
      const all: Buffer[] = [];
      for await (const piece of pieces) all.push(piece);
      return Buffer.concat(all);
    };

    test('arrives in pieces before its end', async () => {
      const seen: string[] = [];
      const firstPiece = deferred<void>();
      const { port } = await listen(
        async (request, reply) => {
          for await (const piece of request.bodyPieces()) {
            seen.push(piece.toString());
            if (seen.join('') === 'abc') firstPiece.resolve();
          }
          reply.send(200, {}, `[${seen.join('')}]`);
        },
        { streamsBodies: true },
      );
      const { socket, until, closed } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n');
      await firstPiece.promise;
      socket.write('2\r\nde\r\n0\r\n\r\n');
      await until('[abcde]');
      await closed;
    });

    test('can be read completely too, and is empty if there is none', async () => {
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

    test('is read from the client only as fast as the handler takes it, without loss', async () => {
      const body = patterned(60_000_000);
      const take = deferred<void>();
      const { port } = await listen(
        async (request, reply) => {
          await take.promise;
          const received = await collect(request.bodyPieces());
          reply.send(200, {}, `[${received.length} ${received.equals(body.subarray(0, received.length))}]`);
        },
        { streamsBodies: true, maxBodyBytes: 100_000_000 },
      );
      const { socket, until } = open(port);
      socket.write(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`);
      socket.write(body);
      // The buffers of the kernel take the first megabytes.
      let numUnsentBytes = -1;
      while (numUnsentBytes !== socket.writableLength) {
        numUnsentBytes = socket.writableLength;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      expect(numUnsentBytes).toBeGreaterThan(30_000_000);
      take.resolve();
      await until('[60000000 true]');
      // The connection can be used again.
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n\0');
      await until('[1 true]');
    });

    test('a response before its end is delivered, and no part of the body is parsed as a request', async () => {
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

    test('a stream in response to a chunked body ends properly, and no request follows', async () => {
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
      await roundTrip(port);
      expect(seen).toEqual(['/first', '/round-trip']);
    });

    test('a long streamed response to a long body is complete', async () => {
      const { port } = await listen(
        async (request, reply) => {
          const stream = reply.stream(200, {});
          for await (const piece of request.bodyPieces()) if (!stream.write(piece)) await stream.drained();
          stream.end();
        },
        { streamsBodies: true, maxBodyBytes: 10_000_000 },
      );
      const body = patterned(8_000_000);
      for (let i = 0; i < 2; i++) {
        const response = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body });
        expect(Buffer.from(await response.arrayBuffer()).equals(body)).toBe(true);
      }
    });

    test('a stream may start and end before the end of the body', async () => {
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
      ['readBody', 'request_timeout', ''],
      ['bodyPieces', 'request_timeout', '/pieces'],
    ])('whose rest does not arrive in time rejects %s with request_timeout', async (_name, code, path) => {
      const { port } = await listen(
        async (request, reply) => {
          const error = (await (request.path === '/pieces' ? collect(request.bodyPieces()) : request.readBody()).catch(
            (caught: ApiError) => caught,
          )) as ApiError;
          reply.send(error.status, {}, error.code);
        },
        { streamsBodies: true, bodyTimeoutMs: 50 },
      );
      const { socket, until, closed } = open(port);
      socket.write(`POST ${path || '/'} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc`);
      await until(code);
      await closed;
    });

    test('over the limit is refused, by its Content-Length or by its size', async () => {
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

    test('ends with an error when the client disconnects', async () => {
      const begun = deferred<void>();
      const failed = deferred<unknown>();
      const { port } = await listen(
        async (request) => {
          begun.resolve();
          await collect(request.bodyPieces()).catch(failed.resolve);
        },
        { streamsBodies: true },
      );
      const { socket } = open(port);
      socket.write('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc');
      await begun.promise;
      socket.destroy();
      expect(await failed.promise).toMatchObject({ code: 'request_timeout' });
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
    ])('serves HTTPS with %s', async (key, passphrase) => {
      const { port } = await listen(echo, {
        tls: {
          keyFile: tlsFile(key),
          certFile: tlsFile('cert.pem'),
          ...(passphrase === undefined ? {} : { passphrase }),
        },
      });
      const { status, text } = await fetchTls(port);
      expect([status, (JSON.parse(text) as { path: string }).path]).toEqual([200, '/a']);
      // A client without TLS affects only its own connection.
      const plain = open(port);
      plain.socket.write('GET / HTTP/1.1\r\nHost: h\r\n\r\n');
      await plain.closed;
      expect(plain.received()).not.toContain('HTTP/1.1 200');
      expect((await fetchTls(port)).status).toBe(200);
    });

    test.each([
      [
        { keyFile: '/no/key.pem', certFile: tlsFile('cert.pem') },
        "--ssl-keyfile: expected a readable file, got '/no/key.pem' (ENOENT)",
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
    ])('refuses bad files and names them: %j', async (tls, message) => {
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

    function get(path: string): Promise<string> {
      return new Promise((resolve, reject) => {
        const socket = connect(path);
        sockets.push(socket);
        socket.on('data', (bytes) => resolve(bytes.toString()));
        socket.on('error', reject);
        socket.write('GET /a HTTP/1.1\r\nHost: h\r\n\r\n');
      });
    }

    test('accepts only its user and group, and leaves no file', async () => {
      const path = join(folder, 's');
      const before = process.umask();
      const transport = await listenUnix(path);
      expect(statSync(path).mode & 0o777).toBe(0o660);
      expect(process.umask()).toBe(before);
      expect(await get(path)).toContain('"path":"/a"');
      transport.stopListening();
      await transport.close();
      expect(existsSync(path)).toBe(false);
    });

    test('replaces the socket of a server that died, and no other file', async () => {
      const path = join(folder, 's');
      await listenUnix(path);
      const second = await createTransport(name, { handler: echo, maxBodyBytes: 1, bodyTimeoutMs: 1 });
      transports.push(second);
      await expect(second.listenUnix(path)).rejects.toMatchObject({ code: 'EADDRINUSE' });
      expect(await get(path)).toContain('"path":"/a"');

      const left = join(folder, 'left');
      const script = `require('net').createServer().listen(${JSON.stringify(left)}, () => process.kill(process.pid, 'SIGKILL'))`;
      spawnSync(process.execPath, ['-e', script]);
      expect(existsSync(left)).toBe(true);
      await second.listenUnix(left);
      expect(await get(left)).toContain('"path":"/a"');

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
  ])('bytes that are not a request affect no other client: %j', async (bytes) => {
    const { port } = await listen(echo);
    open(port).socket.write(bytes);
    const { socket, until } = open(port);
    socket.write('GET /fine HTTP/1.1\r\nHost: h\r\n\r\n');
    await until('"/fine"');
  });
});

describe('auto', () => {
  test.each([
    ['20.30.0-unofficial.0', false],
    ['20.50.9', false],
    ['20.51.0', true],
    ['20.57.0', true],
    ['21.0.0', true],
    ['19.99.0', false],
    ['', false],
  ])('release %j of uWebSockets.js is current: %p', (version, isCurrent) => {
    expect(isCurrentUws(version)).toBe(isCurrent);
  });

  test('is node:http beside the old release that the tests install', async () => {
    const options = { handler: () => Promise.resolve(), maxBodyBytes: 1, bodyTimeoutMs: 1 };
    expect((await createTransport('auto', options)).name).toBe('node');
  });
});
