/** Upstreams that refuse, stall, cut, lie or fail. Fallback only before the first byte, and nothing is billed twice. */
import { createServer as createTcpServer, type Server } from 'node:net';
import type { RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Target } from '../../../../server/platform/gateway/targets';
import { UpstreamHealth } from '../../../../server/platform/gateway/upstreams/upstream-health';
import { breakOff, closeAll, errorOf, target, until } from './support';
import {
  chunk,
  DONE,
  type Fields,
  listen,
  post,
  SECRET,
  sendEvents,
  sendJson,
  startUpstream,
  upstream,
  type Upstreams,
  usage,
} from './upstream-support';

const servers: Server[] = [];
afterEach(async () => {
  await closeAll();
  for (const server of servers.splice(0)) server.close();
});

/** Most characters of an event. */
const MAX_EVENT_CHARS = 8 * 1024 * 1024;
const times = { firstByteTimeoutMs: 200, idleTimeoutMs: 200, connectTimeoutMs: 100 };
const good: RequestListener = (_request, response) => sendJson(response, { from: 'second', model: 'm', usage });
const status =
  (code: number, body = '{}', headers: Record<string, string> = {}): RequestListener =>
  (_request, response) => {
    response.writeHead(code, { 'Content-Type': 'application/json', ...headers });
    response.end(body);
  };

interface Chain extends Upstreams {
  seen: string[];
}

/** The deployment `up` with `first` as its upstream. Its fallback `spare` is an upstream, too. */
async function startChain(first: RequestListener, second = good, fields: Fields = {}): Promise<Chain> {
  const seen: string[] = [];
  const running = await startUpstream(
    (request, response) => {
      seen.push('first');
      first(request, response);
    },
    { ...fields, options: { times }, target: { fallbacks: ['dep_spare'] } },
  );
  const base = await listen((request, response) => {
    seen.push('second');
    second(request, response);
  });
  running.targets.set(target('spare', [upstream(base, { secret: 'sk-second' })]));
  return { ...running, seen };
}

const stall: RequestListener = () => {};
const cutBeforeBytes: RequestListener = (_request, response) => {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.flushHeaders();
  setImmediate(() => response.destroy());
};

test.each<[string, RequestListener, string | undefined]>([
  ['resets the connection', (request) => request.socket.destroy(), 'reset'],
  ['stalls', stall, 'timeout'],
  ['cuts before the first byte', cutBeforeBytes, 'cut'],
  ['responds with 429', status(429, JSON.stringify({ usage })), undefined],
  ['responds with 500', status(500), undefined],
  ['responds with 529', status(529), undefined],
  ['refuses its key with 401', status(401, `{"error":{"message":"Incorrect API key ${SECRET}"}}`), undefined],
  ['refuses its account with 403', status(403), undefined],
  ['responds with HTML', status(200, '<html></html>', { 'Content-Type': 'text/html' }), undefined],
  ['redirects', status(302, '', { Location: 'http://169.254.169.254/' }), undefined],
  ['has huge headers', status(200, '{}', { 'X-Huge': 'x'.repeat(40_000) }), 'reset'],
  ['compresses its response', status(200, 'x', { 'Content-Encoding': 'gzip' }), undefined],
])('an upstream that %s: the fallback responds, and counts once', async (_what, first, failure) => {
  const { url, seen, records } = await startChain(first);
  const response = await post(url, { model: 'x', stream: false });
  expect([response.status, await response.json()]).toEqual([200, { from: 'second', model: 'x', usage }]);
  expect(seen).toEqual(['first', 'second']);
  await until(() => records.length === 1);
  expect(records[0]).toMatchObject({
    deploymentId: 'dep_up',
    fallbackId: 'dep_spare',
    status: 200,
    usage: { promptTokens: 7, completionTokens: 3 },
  });
  expect(records[0].failures).toEqual(failure === undefined ? [] : [failure]);
});

test('an upstream that is not there: the fallback responds', async () => {
  const { url, targets, seen } = await startChain(good);
  const found = targets.find('up');
  if (found === undefined) throw new Error('expected the deployment');
  targets.set({ ...found, replicas: [upstream('http://localhost:1/v1')] });
  expect((await post(url, { model: 'x' })).status).toBe(200);
  expect(seen).toEqual(['second']);
});

test('an upstream that cuts after three chunks: no fallback, an error in the stream, and what it reported', async () => {
  const { url, seen, records } = await startChain((_request, response) => {
    for (const content of ['a', 'b', 'c']) sendEvents(response, chunk({ content }));
    breakOff(response);
  });
  const text = await (await post(url, { model: 'x', stream: true })).text();
  expect(text).toContain('"c"');
  expect(text).toContain('upstream_unavailable');
  expect(text.endsWith(DONE)).toBe(true);
  expect(seen).toEqual(['first']);
  await until(() => records.length === 1);
  expect(records[0].fallbackId).toBeUndefined();
  expect(records[0].failures).toEqual(['cut']);
  expect(records[0].usage).toBeUndefined();
});

test('an upstream that stalls after a chunk: the stream ends with an error', async () => {
  const { url, seen } = await startChain((_request, response) => sendEvents(response, chunk({ content: 'a' })));
  const text = await (await post(url, { model: 'x', stream: true })).text();
  expect(text).toContain('upstream_unavailable');
  expect(seen).toEqual(['first']);
});

/** Returns the base URL of a server that writes `pieces` to each connection, and closes it. */
async function listenRaw(...pieces: readonly (string | Buffer)[]): Promise<string> {
  const server = createTcpServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => {
      for (const piece of pieces) socket.write(piece);
      socket.end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  servers.push(server);
  return `http://localhost:${(server.address() as AddressInfo).port}/v1`;
}

test('an upstream that responds twice is read once', async () => {
  const one = `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}`;
  const { url, targets } = await startChain(good);
  targets.set(target('up', [upstream(await listenRaw(one + one))]));
  for (let i = 0; i < 2; i++) expect(await (await post(url, { model: 'x' })).text()).toBe('{}');
});

test.each([
  ['until the connection ends', 'Connection: close\r\n\r\n', ''],
  ['with a length', `Content-Length: ${MAX_EVENT_CHARS + 1}\r\n\r\n`, ''],
  ['in one chunk', `Transfer-Encoding: chunked\r\n\r\n${(MAX_EVENT_CHARS + 1).toString(16)}\r\n`, '\r\n0\r\n\r\n'],
])('an event that is one character too long at the end of a stream %s is cut', async (_what, framing, end) => {
  const { url, targets, records } = await startUpstream(good);
  const head = `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n${framing}`;
  // The last character is incomplete, so it counts when the stream ends.
  const base = await listenRaw(head, 'x'.repeat(MAX_EVENT_CHARS), Buffer.from([0xe2]), end);
  targets.set(target('up', [upstream(base)]));
  const response = await post(url, { model: 'x', stream: true });
  expect(await response.text()).toContain('upstream_unavailable');
  await until(() => records.length === 1);
  expect(records[0].failures).toEqual(['cut']);
});

test('an upstream that fails five times in a row is passed over, until it has had time', async () => {
  const { url, seen, targets } = await startChain(status(500));
  for (let i = 0; i < 7; i++) expect((await post(url, { model: 'x' })).status).toBe(200);
  expect(seen.filter((name) => name === 'first')).toHaveLength(5);
  const found = targets.find('up');
  if (found === undefined) throw new Error('expected the deployment');
  // Without a fallback it is asked.
  targets.set({ ...found, fallbacks: [] });
  expect((await post(url, { model: 'x' })).status).toBe(500);

  let nowMs = 0;
  const health = new UpstreamHealth(() => nowMs);
  const spare = targets.find('spare') as Target;
  const chain = [found, spare];
  for (let i = 0; i < 4; i++) health.report(found, false);
  expect(health.usable(chain)).toEqual(chain);
  health.report(found, false);
  expect([health.usable(chain), health.usable([found])]).toEqual([[spare], [found]]);
  nowMs = 10_000;
  // One request tries it, and the others do not.
  expect([health.usable(chain), health.usable(chain)]).toEqual([chain, [spare]]);
  health.report(found, true);
  expect(health.usable(chain)).toEqual(chain);
});

test('a connection that the upstream has closed while idle is replaced, also for a long body', async () => {
  const sockets = new Map<object, number>();
  const { url, records } = await startUpstream((request, response) => {
    const numRequests = (sockets.get(request.socket) ?? 0) + 1;
    sockets.set(request.socket, numRequests);
    if (numRequests > 1) return void request.socket.destroy();
    request.resume().once('end', () => sendJson(response, { model: 'm', usage }));
  });
  const prompt = 'x'.repeat(2_000_000);
  for (let i = 0; i < 3; i++) {
    const response = await post(url, { model: 'x', prompt }, '/v1/completions');
    expect([response.status, await response.json()]).toEqual([200, { model: 'x', usage }]);
  }
  await until(() => records.length === 3);
  expect(records.flatMap(({ failures }) => failures)).toEqual([]);
});

describe('without a fallback', () => {
  const start = (first: RequestListener, fields: Fields = {}) =>
    startUpstream(first, { ...fields, options: { times } });

  test.each([
    [401, 502, 'upstream_unavailable'],
    [403, 502, 'upstream_unavailable'],
    [302, 502, 'upstream_unavailable'],
  ])('the status %i becomes %i', async (code, shown, error) => {
    const { url } = await startUpstream(status(code, `{"error":{"message":"key ${SECRET}"}}`, { Location: '/x' }));
    const response = await post(url, { model: 'x' });
    const text = await response.text();
    expect([response.status, errorOf(text).code]).toEqual([shown, error]);
    expect(text).not.toContain(SECRET);
    expect(response.headers.get('location')).toBeNull();
  });

  test.each([400, 404, 413, 422, 429, 500, 503, 529])('the status %i is passed on, without the key', async (code) => {
    const error = { message: `bad ${SECRET}`, type: 't', param: null, code: 'c' };
    const { url, records } = await start(status(code, JSON.stringify({ error, usage }), { 'Retry-After': '3' }));
    const response = await post(url, { model: 'x' });
    const text = await response.text();
    expect([response.status, response.headers.get('retry-after')]).toEqual([code, '3']);
    expect(JSON.parse(text)).toMatchObject({ error: { ...error, message: 'bad ***' } });
    await until(() => records.length === 1);
    // Failed requests cost nothing.
    expect(records[0].usage).toBeUndefined();
  });

  test.each(['sk-a\\/b\\/c', 'sk-a\\u002fb/c'])('an error has no key with escaped characters: %s', async (escaped) => {
    const { url } = await start(status(400, `{"error":{"message":"bad ${escaped}"}}`), { secret: 'sk-a/b/c' });
    const response = await post(url, { model: 'x' });
    expect(await response.json()).toEqual({ error: { message: 'bad ***' } });
  });

  test("an error that is no JSON is described in the client's form", async () => {
    const { url } = await start(status(503, '<html>busy</html>', { 'Content-Type': 'text/html' }));
    const response = await post(url, { model: 'x' });
    expect([response.status, errorOf(await response.text()).code]).toEqual([503, 'deployment_not_ready']);
  });

  test('an endless error is cut', async () => {
    const { url } = await start((_request, response) => {
      response.writeHead(500, { 'Content-Type': 'application/json' });
      response.on('error', () => {});
      const more = (): void =>
        void (response.destroyed || response.write('x'.repeat(65_536), () => setImmediate(more)));
      more();
    });
    const response = await post(url, { model: 'x' });
    expect([response.status, errorOf(await response.text()).code]).toEqual([502, 'upstream_unavailable']);
  });

  test('neither the log nor the record of a request has the key', async () => {
    const { url, log, records } = await start(status(500, `{"error":{"message":"${SECRET}"}}`));
    await post(url, { model: 'x' });
    await until(() => records.length === 1);
    const logged = JSON.stringify([
      log.debug.mock.calls,
      log.info.mock.calls,
      log.warn.mock.calls,
      log.error.mock.calls,
    ]);
    expect(logged + JSON.stringify(records)).not.toContain(SECRET);
  });
});
