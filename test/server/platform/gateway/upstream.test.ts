/** Exchanges with replicas that send given bytes, valid and hostile. */
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { gather } from '../../../../server/platform/gateway/relay';
import type { UpstreamRequest } from '../../../../server/platform/gateway/request-head';
import { Upstream, type UpstreamResponse } from '../../../../server/platform/gateway/upstream';
import { until } from './support';

const TIMES = { connectTimeoutMs: 5_000, firstByteTimeoutMs: 20_000, idleTimeoutMs: 20_000 };
const never = (): AbortSignal => new AbortController().signal;
const closers: (() => void)[] = [];
afterEach(() => closers.splice(0).forEach((close) => close()));

interface Raw {
  upstream: Upstream;
  sockets: Socket[];
  /** Bytes received on each connection. */
  seen: string[];
}

/** Starts a replica that passes each received piece to `onData`. */
async function raw(onData: (text: string, socket: Socket, numConnection: number) => void): Promise<Raw> {
  const sockets: Socket[] = [];
  const seen: string[] = [];
  const server: Server = createServer((socket) => {
    const index = sockets.push(socket) - 1;
    seen.push('');
    socket.on('error', () => {});
    socket.on('data', (bytes) => {
      seen[index] += bytes.toString('latin1');
      onData(bytes.toString('latin1'), socket, index);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const upstream = new Upstream(
    { type: 'tcp', host: '127.0.0.1', port: (server.address() as AddressInfo).port },
    TIMES,
  );
  closers.push(() => {
    upstream.close();
    sockets.forEach((socket) => socket.destroy());
    server.close();
  });
  return { upstream, sockets, seen };
}

const get = (target = '/'): UpstreamRequest => ({ method: 'GET', target, headers: ['Host', 'h'], body: undefined });
const textOf = async ({ body }: UpstreamResponse): Promise<string> =>
  (await gather(body, { usage: undefined, idleTimeoutMs: 20_000, onFirstByte: () => {} })).toString('latin1');
const ask = async (upstream: Upstream, request = get()): Promise<string> =>
  textOf(await upstream.send(request, never()));
const counted = (text: string, fields = ''): string =>
  `HTTP/1.1 200 OK\r\n${fields}Content-Length: ${text.length}\r\n\r\n${text}`;

describe('a connection', () => {
  test('serves one request after another', async () => {
    let numRequests = 0;
    const { upstream, sockets } = await raw((_text, socket) => socket.write(counted(`answer ${++numRequests}`)));
    for (let i = 1; i <= 3; i++) expect(await ask(upstream)).toBe(`answer ${i}`);
    expect(sockets).toHaveLength(1);
  });

  test('serves one request at a time', async () => {
    const waiting: Socket[] = [];
    const { upstream } = await raw((_text, socket) => waiting.push(socket));
    const both = [ask(upstream), ask(upstream)];
    await until(() => waiting.length === 2, 'two connections');
    waiting.forEach((socket, i) => socket.write(counted(`answer ${i}`)));
    expect((await Promise.all(both)).sort()).toEqual(['answer 0', 'answer 1']);
  });

  test.each([
    ['the replica announces its closing', 'Connection: close\r\n'],
    ['its keep-alive timeout is too short', 'Keep-Alive: timeout=1\r\n'],
  ])('is not reused when %s', async (_name, field) => {
    const { upstream, sockets } = await raw((_text, socket) => socket.write(counted('x', field)));
    for (let i = 0; i < 2; i++) expect(await ask(upstream)).toBe('x');
    expect(sockets).toHaveLength(2);
  });

  // Bytes that a hostile replica adds after a response must never reach another client.
  test('is not reused after extra bytes behind a response', async () => {
    const { upstream, sockets } = await raw((_text, socket, index) =>
      socket.write(counted(`true ${index}`) + (index === 0 ? counted('smuggled') : '')),
    );
    expect(await ask(upstream)).toBe('true 0');
    expect(await ask(upstream)).toBe('true 1');
    expect(sockets).toHaveLength(2);
  });

  test('is closed when bytes arrive while it is idle', async () => {
    const { upstream, sockets } = await raw((_text, socket, index) => socket.write(counted(`true ${index}`)));
    expect(await ask(upstream)).toBe('true 0');
    let isClosed = false;
    sockets[0].on('close', () => {
      isClosed = true;
    });
    sockets[0].write(counted('smuggled'));
    await until(() => isClosed, 'the close of the connection');
    expect(await ask(upstream)).toBe('true 1');
  });

  test('is not reused when the response precedes the end of the request, and sending stops', async () => {
    const { upstream, sockets } = await raw((text, socket, index) => {
      if (text.startsWith('POST')) socket.write(counted(`early ${index}`));
    });
    let isStopped = false;
    const endless = async function* () {
      try {
        for (;;) {
          yield Buffer.from('more');
          await turn();
        }
      } finally {
        isStopped = true;
      }
    };
    for (let i = 0; i < 2; i++) {
      isStopped = false;
      expect(await ask(upstream, { method: 'POST', target: '/', headers: [], body: endless() })).toBe(`early ${i}`);
      await until(() => isStopped, 'the end of the sending');
    }
    expect(sockets).toHaveLength(2);
  });

  test('is closed when its reader discards the response', async () => {
    const { upstream, sockets } = await raw((_text, socket) =>
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun'),
    );
    const { body } = await upstream.send(get(), never());
    let isClosed = false;
    sockets[0].on('close', () => {
      isClosed = true;
    });
    body.destroy();
    await until(() => isClosed, 'the close of the connection');
    expect(body.isOver).toBe(true);
  });
});

describe('a response', () => {
  test('without a length is complete when its connection ends', async () => {
    const { upstream } = await raw((_text, socket) => socket.end('HTTP/1.0 200 OK\r\n\r\nall of it'));
    expect(await ask(upstream)).toBe('all of it');
  });

  test('to HEAD leaves its connection reusable', async () => {
    const { upstream, sockets } = await raw((text, socket) =>
      socket.write(text.startsWith('HEAD') ? 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n' : counted('next')),
    );
    const { status, body } = await upstream.send({ ...get(), method: 'HEAD' }, never());
    expect([status, body.isOver]).toEqual([200, true]);
    expect(await ask(upstream)).toBe('next');
    expect(sockets).toHaveLength(1);
  });

  test.each([
    'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n',
  ])('that breaks off (%j) rejects', async (text) => {
    const { upstream } = await raw((_text, socket) => socket.end(text));
    const answer = await upstream.send(get(), never());
    await expect(textOf(answer)).rejects.toMatchObject({
      name: 'UpstreamError',
      reason: 'reset',
      wasReached: true,
      wasReused: false,
    });
  });

  test.each(['SSH-2.0-OpenSSH\r\n\r\n', 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n'])(
    'that is not valid HTTP (%j) rejects',
    async (text) => {
      const { upstream } = await raw((_text, socket) => socket.write(text));
      await expect(upstream.send(get(), never())).rejects.toMatchObject({ name: 'UpstreamError', reason: 'reset' });
    },
  );

  test('is not mixed with others that share the read buffer', async () => {
    const { upstream, sockets } = await raw((text, socket) => {
      const [, letter] = /^GET \/(.)/.exec(text) as unknown as string[];
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n');
      const step = (left: number): void => {
        if (left === 0) return void socket.write('0\r\n\r\n');
        socket.write(`a\r\n${letter.repeat(10)}\r\n`, () => setImmediate(step, left - 1));
      };
      step(50);
    });
    const letters = [...'abcdefghijklmnop'];
    expect(await Promise.all(letters.map((letter) => ask(upstream, get(`/${letter}`))))).toEqual(
      letters.map((letter) => letter.repeat(500)),
    );
    expect(sockets).toHaveLength(16);
  });

  test('pauses with its reader, including its end', async () => {
    const { upstream, sockets } = await raw((_text, socket) => socket.write(counted('x'.repeat(200_000))));
    const { body } = await upstream.send(get(), never());
    let numBytes = 0;
    let isEnded = false;
    body.flow({
      piece: (bytes) => {
        numBytes += bytes.length;
        body.pause();
      },
      end: () => {
        isEnded = true;
      },
      fail: (error) => {
        throw error;
      },
    });
    while (numBytes < 200_000) {
      const before = numBytes;
      expect(isEnded).toBe(false);
      body.resume();
      await until(() => numBytes > before, 'more of it');
    }
    for (let i = 0; i < 20; i++) await turn();
    expect(isEnded).toBe(false);
    body.resume();
    expect(isEnded).toBe(true);
    expect(await ask(upstream).then((text) => text.length)).toBe(200_000);
    expect(sockets).toHaveLength(1);
  });
});

describe('a request', () => {
  test('is sent unchanged, with its length', async () => {
    const { upstream, seen } = await raw((_text, socket) => socket.write(counted('')));
    await ask(upstream, {
      method: 'DELETE',
      target: '/x?y=\xe9',
      headers: ['X-One', '\xe9'],
      body: Buffer.from('body'),
    });
    expect(seen[0]).toBe(
      'DELETE /x?y=\xe9 HTTP/1.1\r\nX-One: \xe9\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody',
    );
  });

  test.each([100, 20_000, 1_000_000])('of %i bytes arrives completely', async (length) => {
    let numBytes = 0;
    const { upstream } = await raw((text, socket) => {
      numBytes += text.length - (text.startsWith('PUT') ? text.indexOf('\r\n\r\n') + 4 : 0);
      if (numBytes === length) socket.write(counted('got it'));
    });
    expect(await ask(upstream, { method: 'PUT', target: '/', headers: [], body: Buffer.alloc(length, 'x') })).toBe(
      'got it',
    );
  });

  test.each([
    ['a method', { method: 'GET /evil HTTP/1.1\r\nX:' }],
    ['a path with a space', { target: '/a b' }],
    ['a path with a line break', { target: '/a\r\nX: 1' }],
    ['a path without a slash', { target: 'a' }],
    ['a name', { headers: ['X: 1\r\nY', '1'] }],
    ['a value with a line break', { headers: ['X', '1\r\nContent-Length: 7'] }],
    ['a value with a zero byte', { headers: ['X', 'a\0'] }],
    ['a value outside latin1', { headers: ['X', '\u{1f600}'] }],
  ])('with bytes that HTTP forbids is refused: %s', async (_name, fields) => {
    const { upstream, sockets } = await raw(() => {});
    await expect(upstream.send({ ...get(), ...fields }, never())).rejects.toMatchObject({ code: 'malformed_request' });
    expect(sockets).toHaveLength(0);
  });

  test('is aborted at the replica by its signal, before and after the response starts', async () => {
    const { upstream, sockets } = await raw((text, socket) => {
      if (text.startsWith('GET /begun')) socket.write('HTTP/1.1 200 OK\r\n\r\nbegun');
    });
    for (const [index, target] of ['/wait', '/begun'].entries()) {
      const controller = new AbortController();
      const asking = upstream.send(get(target), controller.signal);
      const reading = target === '/begun' ? textOf(await asking) : asking;
      await until(() => sockets.length === index + 1, 'the request');
      let isClosed = false;
      sockets[index].on('close', () => {
        isClosed = true;
      });
      controller.abort(new Error('left'));
      await expect(reading).rejects.toThrow('left');
      await until(() => isClosed, 'the close of the connection');
    }
  });
});
