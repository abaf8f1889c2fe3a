/** `capstan/server`: the OpenAI interface as a function, with the fake engine. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import OpenAI from 'openai';
import { Engine } from '../../../ts';
import { createHandler, createServer, type Handler } from '../../../server';
import { fake } from '../../fakes/fake-addon';
import { tinyModel } from '../../fakes/tiny-model';

const BODY = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }] });
const STREAM_BODY = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], stream: true });

let handler: Handler;
const post = (body: string, init: RequestInit = {}, path = '/v1/chat/completions') =>
  new Request(`http://app.example${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
    ...init,
  });
const eventually = async (isTrue: () => boolean) => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 5));
};

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  handler = await createHandler({ model: tinyModel(), servedModelNames: ['tiny'] });
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello there.' });
});
afterAll(() => handler.close());

test('options in place of an engine get an error that says where they belong', async () => {
  await expect(createHandler({ model: tinyModel(), engine: { threads: 1 } as never })).rejects.toThrow(
    'engine: expected an Engine; options of the engine belong in engineOptions',
  );
});

describe('a Request', () => {
  test('gets a Response', async () => {
    const response = await handler(post(BODY));
    expect([response.status, response.headers.get('content-type')]).toEqual([200, 'application/json']);
    expect(((await response.json()) as any).choices[0].message.content).toBe('Hello there.');
  });

  test('gets a stream of events', async () => {
    const response = await handler(post(STREAM_BODY));
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const text = await response.text();
    expect(text).toContain('"content":"H"');
    expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
  });

  test('gets errors in the envelope of OpenAI', async () => {
    const missing = await handler(new Request('http://app.example/v1/nothing'));
    expect([missing.status, ((await missing.json()) as any).error.type]).toEqual([404, 'invalid_request_error']);
    const invalid = await handler(post('{'));
    expect([invalid.status, ((await invalid.json()) as any).error.type]).toEqual([400, 'invalid_request_error']);
  });

  test('to HEAD and OPTIONS gets no body', async () => {
    expect(await (await handler(new Request('http://app.example/health', { method: 'HEAD' }))).text()).toBe('');
    const preflight = await handler(
      new Request('http://app.example/v1/models', {
        method: 'OPTIONS',
        headers: { origin: 'http://a.example', 'access-control-request-method': 'POST' },
      }),
    );
    expect([preflight.status, preflight.headers.get('access-control-allow-origin')]).toEqual([204, '*']);
  });

  test('that is aborted ends its generation', async () => {
    fake.answer = () => ({ text: 'a'.repeat(1000), stepMs: 20 });
    const controller = new AbortController();
    const pending = handler(post(BODY, { signal: controller.signal }));
    await eventually(() => fake.requests.length === 1);
    controller.abort();
    expect((await pending).status).toBe(499);
    await eventually(() => fake.aborted.length === 1);
  });

  test('whose stream is cancelled ends its generation', async () => {
    fake.answer = () => ({ text: 'a'.repeat(1000), stepMs: 20 });
    const response = await handler(post(STREAM_BODY));
    const reader = response.body!.getReader();
    await reader.read();
    await reader.cancel();
    await eventually(() => fake.aborted.length === 1);
  });

  test('whose body was read before gets an error that says so', async () => {
    const request = post(BODY);
    await request.text();
    const response = await handler(request);
    expect([response.status, ((await response.json()) as any).error.message]).toEqual([
      500,
      expect.stringContaining('The body was read before this handler'),
    ]);
  });

  test('with a body above the limit is refused', async () => {
    const small = await createHandler({ engine: handler.engine, maxRequestBytes: 100 });
    const response = await small(post(JSON.stringify({ messages: [{ role: 'user', content: 'x'.repeat(200) }] })));
    expect(response.status).toBe(413);
    await small.close();
    // The engine belongs to the caller.
    expect((await handler(post(BODY))).status).toBe(200);
  });
});

test('a request of node:http gets the same response, also under a path', async () => {
  const mounted = await createHandler({ engine: handler.engine, servedModelNames: ['tiny'], rootPath: '/ai' });
  const server = http.createServer(mounted.node);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const client = new OpenAI({
    baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}/ai/v1`,
    apiKey: 'unused',
  });
  const messages = [{ role: 'user' as const, content: 'Hi' }];
  const { choices } = await client.chat.completions.create({ model: 'tiny', messages });
  expect(choices[0].message.content).toBe('Hello there.');
  let text = '';
  for await (const chunk of await client.chat.completions.create({ model: 'tiny', messages, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? '';
  }
  expect(text).toBe('Hello there.');
  await mounted.close();
  server.closeAllConnections();
  server.close();
});

describe('a body that was read before', () => {
  let url: string;
  let server: http.Server;
  let keep: (text: string) => unknown;
  beforeAll(async () => {
    server = http.createServer((request, response) => {
      let text = '';
      request.on('data', (chunk) => (text += String(chunk)));
      request.on('end', () => handler.node(Object.assign(request, { body: keep(text) }), response));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/chat/completions`;
  });
  afterAll(() => server.close());
  const send = () => fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body: BODY });

  test.each([
    ['a JSON value', (text: string): unknown => JSON.parse(text)],
    ['a text', (text: string): unknown => text],
    ['bytes', (text: string): unknown => Buffer.from(text)],
  ])('is taken from `body` as %s', async (_form, keepAs) => {
    keep = keepAs;
    expect(((await (await send()).json()) as any).choices[0].message.content).toBe('Hello there.');
  });

  test('and not kept gets an error that says so', async () => {
    keep = () => undefined;
    const response = await send();
    expect([response.status, ((await response.json()) as any).error.message]).toEqual([
      500,
      expect.stringContaining('The body was read before this handler'),
    ]);
  });
});

test('with keys, a request without one is refused', async () => {
  const guarded = await createHandler({ engine: handler.engine, apiKeys: ['secret-key'] });
  expect((await guarded(post(BODY))).status).toBe(401);
  const headers = { 'content-type': 'application/json', authorization: 'Bearer secret-key' };
  expect((await guarded(post(BODY, { headers }))).status).toBe(200);
  await guarded.close();
});

test('a server listens, answers, and closes', async () => {
  const server = await createServer({ model: tinyModel(), port: 0 });
  expect((await fetch(`${server.url}/health`)).status).toBe(200);
  await server.close();
  await expect(fetch(`${server.url}/health`)).rejects.toThrow();
  await expect(server.engine.generate('x').result()).rejects.toMatchObject({ code: 'engine_closed' });
});

test('a server that cannot listen closes its engine', async () => {
  const first = await createServer({ model: tinyModel(), port: 0 });
  const close = jest.spyOn(Engine.prototype, 'close');
  await expect(createServer({ model: tinyModel(), port: Number(new URL(first.url).port) })).rejects.toMatchObject({
    code: 'EADDRINUSE',
  });
  expect(close).toHaveBeenCalledTimes(1);
  close.mockRestore();
  await first.close();
});

test('after close, requests are refused', async () => {
  const closed = await createHandler({ model: tinyModel() });
  await Promise.all([closed.close(), closed.close()]);
  expect((await closed(post(BODY))).status).toBe(503);
});
