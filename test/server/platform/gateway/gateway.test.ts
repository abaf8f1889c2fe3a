/** Requests and responses on their way through the gateway, over both transports. */
import { createHash, randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { callInProcess } from '../../../../server/platform/gateway/in-process-call';
import {
  breakOff,
  closeAll,
  echo,
  type Echo,
  errorOf,
  pause,
  startGateway,
  startReplica,
  target,
  until,
} from './support';

afterEach(closeAll);

const headersOf = ({ headers }: Echo, name: string): string[] =>
  headers.filter(([header]) => header === name).map(([, value]) => value);

describe.each(['uws', 'node'] as const)('over %s', (transport) => {
  test('forwards method, path, query, headers and body, and returns the response', async () => {
    const { url, targets } = await startGateway({ transport });
    targets.set(target('s', [await startReplica(echo)]));
    const response = await fetch(`${url}/d/s/v1/chat%20x?a=1&b`, {
      method: 'PATCH',
      headers: { 'X-One': '1', 'Content-Type': 'text/plain' },
      body: 'grüße',
    });
    expect(response.status).toBe(200);
    expect(response.headers.get('content-type')).toBe('application/json');
    const seen = (await response.json()) as Echo;
    expect([seen.method, seen.url, seen.body]).toEqual(['PATCH', '/v1/chat%20x?a=1&b', 'grüße']);
    expect([headersOf(seen, 'x-one'), headersOf(seen, 'content-type'), headersOf(seen, 'content-length')]).toEqual([
      ['1'],
      ['text/plain'],
      [String(Buffer.byteLength('grüße'))],
    ]);
  });

  test.each(['GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'HEAD'])(
    'forwards %s with and without a body',
    async (method) => {
      const { url, targets } = await startGateway({ transport });
      let seen: string[] = [];
      const replica = await startReplica((request, response) => {
        seen.push(`${request.method}`);
        let body = '';
        request.on('data', (piece) => {
          body += piece;
        });
        request.on('end', () => {
          seen.push(body);
          response.setHeader('Content-Length', 4);
          response.end('fine');
        });
      });
      targets.set(target('s', [replica]));
      for (const body of method === 'GET' || method === 'HEAD' ? [undefined] : [undefined, 'x']) {
        seen = [];
        const response = await fetch(`${url}/d/s/`, { method, body });
        expect([response.status, await response.text()]).toEqual([200, method === 'HEAD' ? '' : 'fine']);
        if (method === 'HEAD') expect(response.headers.get('content-length')).toBe('4');
        expect(seen).toEqual([method, body ?? '']);
      }
    },
  );

  test('passes large bodies unchanged both ways, chunked and with a length', async () => {
    const { url, targets } = await startGateway({ transport });
    targets.set(
      target('s', [
        await startReplica((request, response) => {
          request.pipe(response);
        }),
      ]),
    );
    const bytes = randomBytes(9_000_000);
    const digest = createHash('sha256').update(bytes).digest('hex');
    const counted = await fetch(`${url}/d/s/`, { method: 'POST', body: bytes });
    expect(
      createHash('sha256')
        .update(Buffer.from(await counted.arrayBuffer()))
        .digest('hex'),
    ).toBe(digest);
    const stream = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += 100_000) controller.enqueue(bytes.subarray(at, at + 100_000));
        controller.close();
      },
    });
    const chunked = await fetch(`${url}/d/s/`, { method: 'POST', body: stream, duplex: 'half' } as RequestInit);
    expect(
      createHash('sha256')
        .update(Buffer.from(await chunked.arrayBuffer()))
        .digest('hex'),
    ).toBe(digest);
  });

  test('passes a stream on piece by piece', async () => {
    const { url, targets } = await startGateway({ transport });
    let more!: () => void;
    targets.set(
      target('s', [
        await startReplica((_request, response) => {
          response.writeHead(200, { 'Content-Type': 'text/event-stream' });
          response.write('data: 1\n\n');
          more = () => response.end('data: 2\n\n');
        }),
      ]),
    );
    const response = await fetch(`${url}/d/s/`);
    const reader = response.body!.getReader();
    expect(Buffer.from((await reader.read()).value!).toString()).toBe('data: 1\n\n');
    more();
    expect(Buffer.from((await reader.read()).value!).toString()).toBe('data: 2\n\n');
    expect((await reader.read()).done).toBe(true);
  });

  test('aborts the request at the replica when the client disconnects', async () => {
    const { port, targets, open } = await startGateway({ transport });
    let [hasCome, isGone] = [false, false];
    const replica = await startReplica((request, response) => {
      hasCome = true;
      response.on('close', () => {
        isGone = true;
      });
      if (request.url === '/stream') response.write('begun');
    });
    targets.set(target('s', [replica]));
    for (const path of ['/wait', '/stream']) {
      [hasCome, isGone] = [false, false];
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      if (path === '/stream') socket.once('data', () => socket.destroy());
      socket.write(`GET /d/s${path} HTTP/1.1\r\nHost: h\r\n\r\n`);
      await until(() => hasCome, 'the request');
      if (path === '/wait') socket.destroy();
      await until(() => isGone, 'the end');
      await until(() => open.get(replica.id) === 0, 'the end of the request');
    }
  });

  test('a slow client applies backpressure to the replica', async () => {
    const { port, targets } = await startGateway({ transport });
    let numWritten = 0;
    let isWaiting = false;
    targets.set(
      target('s', [
        await startReplica((_request, response) => {
          const piece = Buffer.alloc(64 * 1024, 'x');
          const write = (): void => {
            while (numWritten < 2_000) {
              numWritten++;
              if (response.write(piece)) continue;
              isWaiting = true;
              return void response.once('drain', () => {
                isWaiting = false;
                write();
              });
            }
            response.end('the end');
          };
          write();
        }),
      ]),
    );
    const socket = connect(port, '127.0.0.1');
    socket.pause();
    socket.write('GET /d/s/ HTTP/1.1\r\nHost: h\r\n\r\n');
    await until(() => isWaiting, 'the first pause');
    let before = -1;
    while (before !== numWritten) {
      before = numWritten;
      await pause(200);
    }
    expect(isWaiting).toBe(true);
    expect(numWritten).toBeLessThan(1_000);
    let tail = '';
    socket.on('data', (bytes) => {
      tail = (tail + bytes.toString('latin1')).slice(-50);
    });
    socket.resume();
    await until(() => tail.includes('the end'), 'the rest');
    socket.destroy();
  });

  test('truncates the response when the replica breaks off, or ends an event stream with an error', async () => {
    const { url, targets, records } = await startGateway({ transport });
    targets.set(
      target('s', [
        await startReplica((request, response) => {
          response.writeHead(200, { 'Content-Type': request.url === '/events' ? 'text/event-stream' : 'text/plain' });
          response.write('data: 1\n\n');
          breakOff(response);
        }),
      ]),
    );
    expect(
      await fetch(`${url}/d/s/text`)
        .then((response) => response.text())
        .catch(() => 'broken off'),
    ).toBe('broken off');
    const events = (await (await fetch(`${url}/d/s/events`)).text()).split('\n\n');
    expect(events[0]).toBe('data: 1');
    expect(errorOf(events[1].slice(6)).code).toBe('upstream_unavailable');
    expect(events[2]).toBe('data: [DONE]');
    expect(records).toHaveLength(2);
  });

  test('answers an upload once and passes an early response on', async () => {
    const { url, targets } = await startGateway({ transport });
    targets.set(
      target('s', [
        await startReplica((request, response) => {
          response.writeHead(413);
          response.end('too much');
          request.resume();
        }),
      ]),
    );
    const response = await fetch(`${url}/d/s/`, { method: 'POST', body: randomBytes(3_000_000) });
    expect([response.status, await response.text()]).toEqual([413, 'too much']);
  });

  test('refuses a body over the limit', async () => {
    const { url, targets } = await startGateway({ transport, maxBodyBytes: 2_000_000 });
    const replica = await startReplica(echo);
    targets.set(target('s', [replica]));
    const response = await fetch(`${url}/d/s/`, { method: 'POST', body: Buffer.alloc(2_000_001) });
    expect([response.status, errorOf(await response.text()).code]).toEqual([413, 'request_too_large']);
  });

  test('sends 304 and 204 without body and length', async () => {
    const { port, targets } = await startGateway({ transport });
    targets.set(
      target('s', [
        await startReplica((request, response) => {
          response.writeHead(Number(request.url!.slice(1)), { ETag: '"1"' });
          response.end();
        }),
      ]),
    );
    for (const status of [304, 204]) {
      const socket = connect(port, '127.0.0.1');
      let text = '';
      socket.on('data', (bytes) => {
        text += bytes.toString();
      });
      // The connection stays usable.
      for (let i = 1; i <= 2; i++) {
        socket.write(`GET /d/s/${status} HTTP/1.1\r\nHost: h\r\n\r\n`);
        await until(
          () => text.split(`HTTP/1.1 ${status}`).length === i + 1 && text.endsWith('\r\n\r\n'),
          String(status),
        );
      }
      expect(text).not.toMatch(/transfer-encoding|content-length/i);
      socket.destroy();
    }
  });
});

test('reuses connections to a replica, over TCP and over a Unix socket', async () => {
  const { url, targets } = await startGateway();
  for (const isUnix of [false, true]) {
    const replica = await startReplica(echo, { isUnix });
    targets.set(target(isUnix ? 'unix' : 'tcp', [replica]));
    for (let i = 0; i < 5; i++)
      expect((await fetch(`${url}/d/${isUnix ? 'unix' : 'tcp'}/`, { method: 'POST', body: 'x' })).status).toBe(200);
    expect(replica.numConnections()).toBe(1);
  }
});

describe('addresses', () => {
  test('finds a deployment by its path and by its host name', async () => {
    const { url, port, targets } = await startGateway({ domain: 'serve.example' });
    targets.set(target('one', [await startReplica(echo)]));
    expect(((await (await fetch(`${url}/d/one`)).json()) as Echo).url).toBe('/');
    expect(((await (await fetch(`${url}/d/one/x/`)).json()) as Echo).url).toBe('/x/');
    for (const host of ['one.serve.example', 'ONE.serve.example:8091']) {
      const socket = connect(port, '127.0.0.1');
      let text = '';
      socket.on('data', (bytes) => {
        text += bytes.toString();
      });
      socket.write(`GET /d/one/y HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
      await until(() => text.includes('"body"'));
      expect(text).toContain('"url":"/d/one/y"');
      expect(text).not.toContain('x-forwarded-prefix');
      socket.destroy();
    }
  });

  test.each(['/', '/d', '/d/', '/d/none/v1/models', '/d/ONE/', '/d/one%2f/', '/x/d/one/', '/healthz'])(
    '%s yields 404',
    async (path) => {
      const { url, targets, records } = await startGateway();
      targets.set(target('one', [await startReplica(echo)]));
      const response = await fetch(`${url}${path}`);
      expect(response.status).toBe(404);
      expect(errorOf(await response.text())).toEqual({ code: 'deployment_not_found', type: 'invalid_request_error' });
      expect(response.headers.get('access-control-allow-origin')).toBeNull();
      expect(records).toEqual([]);
    },
  );

  test('refuses protocol upgrades with 501', async () => {
    const { port, targets } = await startGateway();
    targets.set(target('s', [await startReplica(echo)]));
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.on('data', (bytes) => {
      text += bytes.toString();
    });
    socket.write(
      'GET /d/s/ HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
    );
    await until(() => text.includes('not_implemented'));
    expect(text).toMatch(/^HTTP\/1\.1 501 /);
    socket.destroy();
  });
});

describe('request headers', () => {
  async function ask(headers: [string, string][], options: Parameters<typeof startGateway>[0] = {}): Promise<Echo> {
    const { port, targets } = await startGateway(options);
    targets.set(target('s', [await startReplica(echo)]));
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.on('data', (bytes) => {
      text += bytes.toString();
    });
    socket.write(
      `GET /d/s/ HTTP/1.1\r\nHost: console.example:8091\r\n${headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`,
    );
    await until(() => text.includes('"body"'));
    socket.destroy();
    return JSON.parse(text.slice(text.indexOf('{'))) as Echo;
  }

  test('drops hop-by-hop headers, internal headers and the key', async () => {
    const seen = await ask([
      ['Connection', 'keep-alive, X-Named'],
      ['X-Named', '1'],
      ['Keep-Alive', 'timeout=5'],
      ['TE', 'trailers'],
      ['Proxy-Authorization', 'Basic eA=='],
      ['Authorization', 'Bearer sk-1'],
      ['X-Capstan-Salt', 'mine'],
      ['X-Capstan-Replica-Secret', 'mine'],
      ['Expect', 'weird'],
      ['Accept', 'a/b'],
    ]);
    for (const name of ['x-named', 'keep-alive', 'te', 'proxy-authorization', 'authorization', 'expect'])
      expect([name, headersOf(seen, name)]).toEqual([name, []]);
    expect(headersOf(seen, 'x-capstan-salt')).toEqual([expect.stringMatching(/^[\w-]{43}$/)]);
    expect(headersOf(seen, 'x-capstan-replica-secret')).toEqual([expect.stringMatching(/^secret-of-\d+$/)]);
    expect([headersOf(seen, 'accept'), headersOf(seen, 'host')]).toEqual([['a/b'], ['console.example:8091']]);
    expect(headersOf(seen, 'x-request-id')).toEqual([expect.stringMatching(/^[0-9a-f]{32}$/)]);
  });

  test("drops the console's cookie and forwards others", async () => {
    const seen = await ask([['Cookie', '__Host-capstan=secret; theirs=1; capstan_session=secret; capstan_other=2']]);
    expect(headersOf(seen, 'cookie')).toEqual(['theirs=1; capstan_other=2']);
    expect(headersOf(await ask([['Cookie', 'capstan_session=secret']]), 'cookie')).toEqual([]);
  });

  test('ignores forwarding headers from a client', async () => {
    const seen = await ask([
      ['X-Forwarded-For', '1.2.3.4'],
      ['X-Forwarded-Proto', 'https'],
      ['X-Forwarded-Host', 'evil'],
      ['Forwarded', 'for=1.2.3.4'],
      ['X-Real-IP', '1.2.3.4'],
      ['X-Forwarded-Prefix', '/evil'],
    ]);
    expect(
      ['x-forwarded-for', 'x-real-ip', 'x-forwarded-proto', 'x-forwarded-host', 'x-forwarded-prefix', 'forwarded'].map(
        (name) => headersOf(seen, name),
      ),
    ).toEqual([['127.0.0.1'], ['127.0.0.1'], ['http'], ['console.example:8091'], ['/d/s'], []]);
  });

  test('uses forwarding headers from a trusted proxy', async () => {
    const seen = await ask(
      [
        ['X-Forwarded-For', '1.2.3.4'],
        ['X-Forwarded-Proto', 'https'],
        ['X-Forwarded-Host', 'a.example'],
      ],
      { trustedProxies: ['127.0.0.0/8'] },
    );
    expect(
      ['x-forwarded-for', 'x-real-ip', 'x-forwarded-proto', 'x-forwarded-host'].map((name) => headersOf(seen, name)),
    ).toEqual([['1.2.3.4, 127.0.0.1'], ['1.2.3.4'], ['https'], ['a.example']]);
  });
});

test('does not repeat headers that the transport sets', async () => {
  const { port, targets } = await startGateway();
  targets.set(
    target('s', [
      await startReplica((_request, response) => {
        response.setHeader('uWebSockets', '20');
        response.end('x');
      }),
    ]),
  );
  const socket = connect(port, '127.0.0.1');
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes.toString();
  });
  socket.write('GET /d/s/ HTTP/1.1\r\nHost: h\r\n\r\n');
  await until(() => text.endsWith('\r\n\r\nx'));
  for (const name of ['date', 'uwebsockets', 'content-length'])
    expect([name, text.match(new RegExp(`^${name}:`, 'gim'))?.length]).toEqual([name, 1]);
  socket.destroy();
});

test('returns headers whose names every object has', async () => {
  const { url, targets } = await startGateway();
  const names = ['constructor', 'tostring', '__proto__', 'hasownproperty'];
  const replica = await startReplica((request, response) => {
    const sent = request.rawHeaders.filter((_, i) => i % 2 === 0 && names.includes(request.rawHeaders[i]));
    response.writeHead(200, [...names.flatMap((name) => [name, 'returned']), 'X-Sent', sent.join()]);
    response.end('x');
  });
  targets.set(target('s', [replica]));
  const { status, headers } = await fetch(`${url}/d/s/`, { headers: names.map((name) => [name, 'sent']) });
  expect(status).toBe(200);
  expect(names.map((name) => headers.get(name))).toEqual(names.map(() => 'returned'));
  // fetch itself drops the request header __proto__.
  expect(headers.get('x-sent')?.split(',')).toEqual(names.filter((name) => name !== '__proto__'));
});

test('limits the effect of response headers to the deployment', async () => {
  const { url, targets } = await startGateway();
  targets.set(
    target('s', [
      await startReplica((_request, response) => {
        response.writeHead(
          302,
          [
            ['Set-Cookie', 'a=1; Path=/; Domain=example.com; HttpOnly'],
            ['Set-Cookie', 'b=2; Path=/x'],
            ['Set-Cookie', '__Host-capstan=evil; Path=/'],
            ['Set-Cookie', 'capstan_session=evil'],
            ['Location', '/login'],
            ['Connection', 'X-Named'],
            ['X-Named', '1'],
            ['X-Capstan-Load', 'open=1;queued=0;free=1;blocks=1'],
            ['Clear-Site-Data', '"*"'],
            ['Strict-Transport-Security', 'max-age=1'],
            ['Service-Worker-Allowed', '/'],
            ['X-Theirs', 'a'],
            ['X-Theirs', 'b'],
            ['X-Request-Id', 'theirs'],
          ].flat(),
        );
        response.end('x');
      }),
    ]),
  );
  const { headers } = await fetch(`${url}/d/s/`, { redirect: 'manual', headers: { 'X-Request-Id': 'mine' } });
  expect(headers.getSetCookie()).toEqual(['a=1; HttpOnly; Path=/d/s', 'b=2; Path=/d/s/x']);
  expect(headers.get('location')).toBe('/d/s/login');
  expect(headers.get('x-theirs')).toBe('a, b');
  expect(headers.get('x-request-id')).toBe('mine');
  for (const name of [
    'x-named',
    'x-capstan-load',
    'clear-site-data',
    'strict-transport-security',
    'service-worker-allowed',
  ])
    expect([name, headers.get(name)]).toEqual([name, null]);
});

test.each([
  ['/d/s/\u{1f600}', 'a'],
  ['/d/s/a b', 'a'],
  ['/d/s/', 'a\u0001b'],
  ['/d/s/', 'a\r\nb: c'],
])('refuses bytes that HTTP forbids in a path or header: %j, %j', async (path, value) => {
  const { gateway, targets } = await startGateway();
  let numSeen = 0;
  targets.set(
    target('s', [
      await startReplica((_request, response) => {
        numSeen++;
        response.end();
      }),
    ]),
  );
  let status = 0;
  const sink = {
    head: (seen: number) => {
      status = seen;
    },
    piece: () => true,
    drained: () => Promise.resolve(),
  };
  await callInProcess(
    gateway,
    {
      method: 'GET',
      url: 'http://h',
      target: path,
      headers: [['x-a', value]],
      body: undefined,
      remoteAddress: '127.0.0.1',
      signal: new AbortController().signal,
    },
    sink,
  );
  expect([status, numSeen]).toEqual([400, 0]);
});

test('logs no secret and no query', async () => {
  const { url, targets, log } = await startGateway({ logsRequests: true });
  const replica = await startReplica(echo);
  targets.set(target('s', [replica]));
  const key = 'sk-cap1_0123456789AB_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1GlQkh';
  await fetch(`${url}/d/s/${key}?key=${key}`, {
    headers: { Authorization: `Bearer ${key}`, Cookie: 'capstan_session=secret-cookie' },
  });
  await until(() => log.info.mock.calls.length === 1);
  const line = JSON.stringify(log.info.mock.calls);
  for (const secret of [key, 'aaaaaaaaaaaa', replica.secret, 'secret-cookie']) expect(line).not.toContain(secret);
  expect(log.info.mock.calls[0][0]).toMatchObject({
    method: 'GET',
    status: 200,
    deployment: 'dep_s',
    replica: replica.id,
  });
});

describe('a draining gateway', () => {
  test('finishes open requests and refuses new ones', async () => {
    const { url, targets, gateway } = await startGateway();
    let finish!: () => void;
    targets.set(
      target('s', [
        await startReplica((_request, response) => {
          finish = () => response.end('done');
        }),
      ]),
    );
    const open = fetch(`${url}/d/s/`);
    await until(() => gateway.numOpenRequests === 1 && (finish as unknown) !== undefined);
    let isDrained = false;
    const drained = gateway.drain().then(() => {
      isDrained = true;
    });
    const refused = await fetch(`${url}/d/s/`);
    expect([refused.status, errorOf(await refused.text()).code]).toEqual([503, 'shutting_down']);
    expect(isDrained).toBe(false);
    finish();
    expect(await (await open).text()).toBe('done');
    await drained;
  });
});
