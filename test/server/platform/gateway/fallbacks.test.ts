/** Fallbacks to other deployments: only before the first byte, and nothing counts twice. Replicas are hostile. */
import { createServer, type RequestListener, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Target } from '../../../../server/platform/gateway/targets';
import {
  breakOff,
  closeAll,
  echo,
  type Echo,
  errorOf,
  type Replica,
  type Running,
  startGateway,
  startReplica,
  target,
  until,
} from './support';

afterEach(closeAll);

interface Chain extends Running {
  /** Requests for inference that each deployment has seen, by its name. */
  seen: string[];
}

/** The listener of each deployment: the first one is asked, the others are its fallbacks. */
async function start(
  listeners: readonly RequestListener[],
  fields: Partial<Target> = {},
  options: Parameters<typeof startGateway>[0] = {},
): Promise<Chain> {
  const running = await startGateway(options);
  const seen: string[] = [];
  for (const [i, listener] of listeners.entries()) {
    const replica = await startReplica((request, response) => {
      if (request.url === '/v1/models') return sendJson(response, { data: [{ id: `model-${i}` }] });
      seen.push(`d${i}`);
      listener(request, response);
    });
    running.targets.set(
      target(
        `d${i}`,
        [replica],
        i === 0 ? { fallbacks: listeners.slice(1).map((_, n) => `dep_d${n + 1}`), ...fields } : {},
      ),
    );
  }
  return { ...running, seen };
}

function sendJson(response: ServerResponse, value: object, status = 200): void {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(value));
}

const post = (
  url: string,
  body: object = { model: 'x', messages: [] },
  path = '/v1/chat/completions',
): Promise<Response> =>
  fetch(`${url}/d/d0${path}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });

const usage = { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 };
const good: RequestListener = (_request, response) => sendJson(response, { from: 'good', usage });
const stall: RequestListener = () => {};
const headOnly: RequestListener = (_request, response) => {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.flushHeaders();
};
const headThenCut: RequestListener = (_request, response) => {
  headOnly(_request, response);
  setImmediate(() => response.destroy());
};
const reset: RequestListener = (request) => request.socket.destroy();
const status =
  (code: number): RequestListener =>
  (_request, response) =>
    sendJson(response, { error: { code }, usage }, code);
const cutAfterThree: RequestListener = (_request, response) => {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  for (let i = 0; i < 3; i++) response.write(`data: {"i":${i}}\n\n`);
  setImmediate(() => response.destroy());
};

test.each<[string, RequestListener]>([
  ['resets the connection', reset],
  ['answers 429', status(429)],
  ['answers 500', status(500)],
  ['answers 503', status(503)],
  ['answers 529', status(529)],
  ['sends nothing', stall],
  ['sends only a head', headOnly],
  ['sends a head and cuts', headThenCut],
])('the next deployment responds if the first one %s', async (_what, listener) => {
  const { url, seen, records } = await start([listener, good], { fallbackAfterMs: 300 });
  const response = await post(url);
  expect([response.status, await response.json()]).toEqual([200, { from: 'good', usage }]);
  await until(() => records.length === 1);
  // A reset is repeated once by the connection, on a new one.
  expect(seen.filter((name) => name === 'd1')).toEqual(['d1']);
  expect(records[0]).toMatchObject({
    deploymentId: 'dep_d0',
    status: 200,
    usage: { promptTokens: 7, completionTokens: 3 },
  });
});

test.each<[string, RequestListener, number]>([
  ['a response that is fine', good, 200],
  ['a mistake of the client', status(400), 400],
  ['an unknown model', status(404), 404],
])('%s is final', async (_what, listener, code) => {
  const { url, seen } = await start([listener, good]);
  expect((await post(url)).status).toBe(code);
  expect(seen).toEqual(['d0']);
});

test('a response that breaks after three chunks is not repeated, and counts nothing', async () => {
  const { url, seen, records } = await start([cutAfterThree, good], { fallbackAfterMs: 5_000 });
  const text = await (await post(url, { model: 'x', stream: true })).text();
  expect(text).toMatch(
    /^data: \{"i":0\}\n\ndata: \{"i":1\}\n\ndata: \{"i":2\}\n\ndata: \{"error":.*upstream_unavailable/,
  );
  await until(() => records.length === 1);
  expect(seen).toEqual(['d0']);
  expect(records[0]).toMatchObject({ status: 200, usage: undefined, failures: ['cut'] });
});

test('a JSON response that breaks after its first byte is not repeated', async () => {
  const { url, seen } = await start([
    (_request, response) => {
      response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': '1000' });
      response.write('{"choices":[');
      breakOff(response);
    },
    good,
  ]);
  const response = await post(url);
  expect([response.status, errorOf(await response.text()).code]).toEqual([502, 'upstream_unavailable']);
  expect(seen).toEqual(['d0']);
});

test('the chain is followed in order, and its last response is the answer, whatever it is', async () => {
  const { url, seen, records } = await start([status(429), reset, status(503), status(429)]);
  const response = await post(url);
  expect([response.status, await response.json()]).toEqual([429, { error: { code: 429 }, usage }]);
  expect(response.headers.get('x-capstan-passed-over')).toBe('d0 (status 429), d1 (reset), d2 (status 503)');
  expect(seen.filter((name, i) => seen.indexOf(name) === i)).toEqual(['d0', 'd1', 'd2', 'd3']);
  await until(() => records.length === 1);
  expect(records[0].numRetries).toBeGreaterThanOrEqual(3);
});

test('the error of the last deployment names what became of those before it', async () => {
  const { url, targets } = await start([status(429), reset, good]);
  targets.set({ ...(targets.find('d2') as Target), state: 'paused', replicas: [] });
  const response = await post(url);
  expect(response.headers.get('x-capstan-passed-over')).toBe('d0 (status 429), d1 (reset)');
  const { code, message } = ((await response.json()) as { error: { code: string; message: string } }).error;
  expect([code, message]).toEqual([
    'deployment_paused',
    expect.stringMatching(/\. Before it: d0 \(status 429\), d1 \(reset\)$/),
  ]);
  const alone = await start([good]);
  alone.targets.set({ ...(alone.targets.find('d0') as Target), state: 'paused', replicas: [] });
  expect((await post(alone.url)).headers.has('x-capstan-passed-over')).toBe(false);
});

test('a deployment that is stopped, failed, starting or gone is passed over', async () => {
  const { url, targets, seen } = await start([good, good, good]);
  const set = (slug: string, fields: Partial<Target>) => targets.set({ ...(targets.find(slug) as Target), ...fields });
  for (const state of ['paused', 'stopping', 'failed', 'pending'] as const) {
    set('d0', { state, replicas: [] });
    expect((await post(url)).status).toBe(200);
  }
  expect(seen.splice(0)).toEqual(['d1', 'd1', 'd1', 'd1']);
  set('d1', { state: 'deleting' });
  expect((await post(url)).status).toBe(200);
  targets.delete('d1');
  expect((await post(url)).status).toBe(200);
  expect(seen.splice(0)).toEqual(['d2', 'd2']);
  set('d2', { state: 'paused' });
  expect(errorOf(await (await post(url)).text()).code).toBe('deployment_paused');
  // A deployment that is being deleted is not found, with or without fallbacks.
  set('d0', { state: 'deleting' });
  expect((await post(url)).status).toBe(404);
});

test('a fallback gets its model name and the cache scope of its deployment, and has no further fallback', async () => {
  const { url, targets } = await start([status(503), echo, good]);
  targets.set({ ...(targets.find('d1') as Target), fallbacks: ['dep_d0'] });
  const own = (await (
    await fetch(`${url}/d/d1/v1/completions`, { method: 'POST', body: '{"model":"x"}' })
  ).json()) as Echo;
  const seen = (await (await post(url, { n: 1, model: 'mine' }, '/v1/completions?a=1')).json()) as Echo;
  expect([seen.url, seen.body]).toEqual(['/v1/completions?a=1', '{"n":1,"model":"model-1"}']);
  const saltOf = ({ headers }: Echo) => headers.find(([name]) => name === 'x-capstan-salt')?.[1];
  expect(saltOf(seen)).toBe(saltOf(own));
  // Without fallbacks, a request to the URL of a deployment passes unchanged.
  expect(own.body).toBe('{"model":"x"}');
});

test('only inference requests with a body that is kept go to a fallback', async () => {
  const { url, seen } = await start([status(503), good]);
  expect((await fetch(`${url}/d/d0/v1/models/x`)).status).toBe(503);
  for (const path of ['/admin/reload', '/v1/load_lora_adapter', '/v1/batches']) {
    expect((await post(url, {}, path)).status).toBe(503);
    expect(seen.pop()).toBe('d0');
  }
  expect((await post(url, { model: 'x', text: 'x'.repeat(1_100_000) })).status).toBe(503);
  expect(seen).toEqual(['d0', 'd0']);
});

test('only inference requests count for a canary, from the moment they are sent to the replica', async () => {
  const { url, targets, records } = await start([good]);
  const canary = { versionId: 'ver_2', percent: 0, header: null, keyIds: [], replicas: [await startReplica(good)] };
  targets.set({ ...(targets.find('d0') as Target), canary });
  for (const path of ['/v1/models', '/health']) await (await fetch(`${url}/d/d0${path}`)).text();
  await (await post(url, {}, '/v1/load_lora_adapter')).text();
  await (await post(url)).text();
  await until(() => records.length === 4);
  expect(records.map(({ served }) => served?.variant)).toEqual([undefined, undefined, undefined, 'stable']);
  const [, , , { replicaMs = Infinity, firstByteMs = 0 }] = records;
  expect(replicaMs).toBeLessThan(firstByteMs);
});

test('an unreachable replica, and one that refuses, fall back; a fallback that is asleep wakes', async () => {
  const woken: Replica = await startReplica(good);
  const running = await startGateway({
    onWake: () => setImmediate(() => running.targets.set(target('d1', [woken]))),
  });
  const closed = createServer();
  await new Promise<void>((resolve) => closed.listen(0, '127.0.0.1', resolve));
  const { port } = closed.address() as AddressInfo;
  await new Promise((resolve) => closed.close(resolve));
  const dead = { ...woken, id: 'rep_dead', address: { type: 'tcp' as const, host: '127.0.0.1', port } };
  running.targets.set(target('d0', [dead], { fallbacks: ['dep_d1'] }));
  running.targets.set(target('d1', [], { state: 'scaled_to_zero' }));
  expect((await post(running.url)).status).toBe(200);
  expect(running.woken).toEqual(['dep_d1']);
});

test('the client of a stream that waited through a failed start gets the response of the fallback in it', async () => {
  const { url, targets } = await start(
    [
      good,
      (_request, response) => {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.end('data: {"from":"fallback"}\n\ndata: [DONE]\n\n');
      },
    ],
    { state: 'scaled_to_zero', replicas: [], coldStartWaitMs: 200 },
    { times: { silentMs: 10, pingIntervalMs: 20 } },
  );
  const text = await (await post(url, { model: 'x', stream: true })).text();
  expect(text).toMatch(/^(: the deployment is starting\n\n)+data: \{"from":"fallback"\}\n\ndata: \[DONE\]\n\n$/);
  targets.delete('d1');
  const failed = await (await post(url, { model: 'x', stream: true })).text();
  expect(failed).toMatch(/^(: the deployment is starting\n\n)+data: \{"error":.*deployment_not_ready/);
});

test('a client that leaves ends the chain', async () => {
  const { url, seen, records } = await start([stall, good], { fallbackAfterMs: 10_000 });
  const leaving = new AbortController();
  const asked = fetch(`${url}/d/d0/v1/completions`, { method: 'POST', body: '{"model":"x"}', signal: leaving.signal });
  await until(() => seen.length === 1);
  leaving.abort();
  await expect(asked).rejects.toThrow();
  await until(() => records.length === 1);
  expect([seen, records[0].status]).toEqual([['d0'], 499]);
});
