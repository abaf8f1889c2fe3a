/** The gateway in front of the built-in runtime, over sockets: headers between them, and what clients see. */
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { App } from '../../../../server/inference/app';
import { createTransport } from '../../../../server/http/create-transport';
import type { Transport } from '../../../../server/http/transport';
import type { Target } from '../../../../server/platform/gateway/targets';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { tinyModel } from '../../../fakes/tiny-model';
import { closeAll, type Running, startGateway, target, until } from './support';

const SECRET = 'the secret of the replica';
let engine: Engine;
let running: Running;
let transport: Transport;
let replicaPort: number;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
afterAll(() => engine.close());
beforeEach(async () => {
  fake.reset();
  ({ transport, port: replicaPort } = await startReplica(engine));
  running = await startGateway();
  running.targets.set(builtin());
});
afterEach(async () => {
  await closeAll();
  await transport.close();
});

async function startReplica(of: Engine): Promise<{ transport: Transport; port: number }> {
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    replicaSecret: SECRET,
  });
  app.serve(of);
  const made = await createTransport('uws', {
    handler: (request, reply) => app.handle(request, reply),
    maxBodyBytes: 1_000_000,
    bodyTimeoutMs: 20_000,
  });
  return { transport: made, port: await made.listen('127.0.0.1', 0) };
}

function builtin(fields: Partial<Target> = {}): Target {
  return target(
    's',
    [{ id: 'rep_1', address: { type: 'tcp', host: '127.0.0.1', port: replicaPort }, secret: SECRET, isBuiltin: true }],
    fields,
  );
}

const chat = (body: object): Promise<Response> =>
  fetch(`${running.url}/d/s/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], ...body }),
  });

test('the replica refuses requests that bypass the gateway', async () => {
  expect((await fetch(`http://127.0.0.1:${replicaPort}/v1/models`)).status).toBe(401);
  expect((await fetch(`${running.url}/d/s/v1/models`)).status).toBe(200);
});

test.each([false, true])(
  'counts the usage of a call and hides the comment from its client (stream: %s)',
  async (stream) => {
    const response = await chat({ stream });
    const text = await response.text();
    expect(text).not.toContain('capstan');
    expect([...response.headers.keys()].filter((name) => name.startsWith('x-capstan'))).toEqual([]);
    if (stream) expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
    await until(() => running.records.length === 1);
    const { usage, firstByteMs, durationMs } = running.records[0];
    expect(usage).toMatchObject({ promptTokens: expect.any(Number) as number, cachedTokens: 0 });
    expect(usage!.promptTokens).toBeGreaterThan(0);
    expect(usage!.completionTokens).toBeGreaterThan(0);
    expect(firstByteMs).toBeLessThanOrEqual(durationMs);
  },
);

test('separates the caches of two deployments, whatever salt the clients send', async () => {
  running.targets.set({ ...builtin(), slug: 'other', deploymentId: 'dep_other' });
  await chat({ cache_salt: 'mine' });
  await fetch(`${running.url}/d/other/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], cache_salt: 'mine' }),
  });
  const salts = fake.requests.map(({ cacheSalt }) => cacheSalt);
  expect(salts).toEqual([expect.stringMatching(/^[\w-]{43}\/mine$/), expect.stringMatching(/^[\w-]{43}\/mine$/)]);
  expect(salts[0]).not.toBe(salts[1]);
});

test('stops the generation when the client disconnects', async () => {
  fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5 });
  const controller = new AbortController();
  const response = await fetch(`${running.url}/d/s/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], stream: true }),
    signal: controller.signal,
  });
  await response.body!.getReader().read();
  controller.abort();
  await until(() => fake.aborted.length === 1, 'the abort');
  await until(() => running.open.get('rep_1') === 0);
});

test('the OpenAI client chats and streams through the deployment URL', async () => {
  const client = new OpenAI({ baseURL: `${running.url}/d/s/v1`, apiKey: 'none', maxRetries: 0 });
  expect((await client.models.list()).data.map(({ id }) => id)).toEqual(['tiny']);
  const whole = await client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content: 'Hi' }] });
  let text = '';
  for await (const chunk of await client.chat.completions.create({
    model: 'tiny',
    messages: [{ role: 'user', content: 'Hi' }],
    stream: true,
  }))
    text += chunk.choices[0]?.delta.content ?? '';
  expect(text).toBe(whole.choices[0].message.content);
  running.targets.delete('s');
  await expect(client.models.list()).rejects.toMatchObject({ status: 404, code: 'deployment_not_found' });
});

test('embeddings, rankings and scores pass, and their prompt tokens are counted', async () => {
  const embedder = await loadPoolingEngine('embed');
  const replica = await startReplica(embedder);
  replicaPort = replica.port;
  running.targets.set(builtin());
  const client = new OpenAI({ baseURL: `${running.url}/d/s/v1`, apiKey: 'none', maxRetries: 0 });
  const { data, usage } = await client.embeddings.create({ model: 'tiny', input: ['ab', 'c'] });
  expect([data[0].embedding.length, usage.prompt_tokens]).toEqual([8, 3]);
  for (const [path, body] of [
    ['/rerank', { query: 'a', documents: ['b', 'c'] }],
    ['/v2/rerank', { query: 'a', documents: ['b', 'c'] }],
    ['/v1/score', { queries: 'a', documents: ['b', 'c'] }],
  ] as const) {
    const response = await fetch(`${running.url}/d/s${path}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    });
    expect(response.status).toBe(200);
    expect([...response.headers.keys()].filter((name) => name.startsWith('x-capstan'))).toEqual([]);
    await response.text();
  }
  await until(() => running.records.length === 4);
  expect(running.records.map((record) => record.usage)).toEqual(
    [3, 4, 4, 4].map((promptTokens) => ({ promptTokens, completionTokens: 0, cachedTokens: 0 })),
  );
  await replica.transport.close();
  await embedder.close();
});

describe("the interfaces of agents, with the deployment's access control on", () => {
  const KEY = 'sk-of-the-owner';
  const MESSAGE = { model: 'tiny', max_tokens: 100, messages: [{ role: 'user' as const, content: 'Hi' }] };
  let checked: (readonly [string, string])[][];
  let url: string;

  beforeEach(async () => {
    checked = [];
    running = await startGateway({
      access: {
        check: ({ headers }) => {
          checked.push([...headers]);
          return headers.some(([name, value]) => name === 'authorization' && value === `Bearer ${KEY}`)
            ? { ok: true, keyId: 'key_1', ownerId: 'own_1', done: () => {} }
            : { ok: false, status: 401, code: 'invalid_api_key', message: 'no', headers: {} };
        },
        identify: () => {
          throw new Error('no request to the API of all deployments is expected');
        },
      },
    });
    running.targets.set(builtin({ accessControl: true }));
    url = `${running.url}/d/s`;
  });

  const openai = (apiKey = KEY) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
  const anthropic = (apiKey = KEY) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });

  test.each([false, true])('the official clients work, and their usage is counted (stream: %s)', async (isStream) => {
    if (isStream) {
      const response = await openai().responses.stream({ model: 'tiny', input: 'Hi' }).finalResponse();
      expect(response.output).toHaveLength(1);
      expect((await anthropic().messages.stream(MESSAGE).finalMessage()).content).toHaveLength(1);
    } else {
      expect((await openai().responses.create({ model: 'tiny', input: 'Hi' })).output_text).toContain('Hello');
      expect((await anthropic().messages.create(MESSAGE)).content).toHaveLength(1);
    }
    expect((await anthropic().messages.countTokens({ model: 'tiny', messages: MESSAGE.messages })).input_tokens).toBe(
      fake.requests[1].promptTokenIds.length,
    );
    await until(() => running.records.length === 3);
    const [responses, messages, count] = running.records.map(({ usage }) => usage);
    expect([responses!.promptTokens, messages!.promptTokens]).toEqual(
      fake.requests.map(({ promptTokenIds }) => promptTokenIds.length),
    );
    expect(messages!.completionTokens).toBe(responses!.completionTokens);
    expect(count).toBeUndefined();
  });

  test('a wrong key is refused in the envelope of the interface, and x-api-key is one of /v1/messages alone', async () => {
    await expect(anthropic('wrong').messages.create(MESSAGE)).rejects.toMatchObject({
      constructor: Anthropic.AuthenticationError,
      type: 'authentication_error',
    });
    await expect(openai('wrong').responses.create({ model: 'tiny', input: 'Hi' })).rejects.toMatchObject({
      constructor: OpenAI.AuthenticationError,
      code: 'invalid_api_key',
    });
    const response = await fetch(`${url}/v1/responses`, { method: 'POST', headers: { 'x-api-key': KEY } });
    expect([response.status, Object.keys((await response.json()) as object)]).toEqual([401, ['error']]);
  });

  test("Anthropic's client lists the models of a deployment", async () => {
    expect((await anthropic().models.list()).data.map(({ id, type }) => [id, type])).toEqual([['tiny', 'model']]);
    expect((await anthropic().models.retrieve('tiny')).id).toBe('tiny');
    await expect(anthropic('wrong').models.list()).rejects.toMatchObject({ type: 'authentication_error' });
  });

  test('errors of the gateway have the form of the interface', async () => {
    const unknown = new Anthropic({ baseURL: `${running.url}/d/none`, apiKey: KEY, maxRetries: 0 });
    await expect(unknown.messages.create(MESSAGE)).rejects.toMatchObject({ status: 404, type: 'not_found_error' });
    await transport.close();
    await expect(anthropic().messages.create(MESSAGE)).rejects.toMatchObject({ status: 502, type: 'api_error' });
    await expect(openai().responses.create({ model: 'tiny', input: 'Hi' })).rejects.toMatchObject({
      status: 502,
      code: 'upstream_unavailable',
    });
  });

  test('a replica that breaks off ends the streams with an error that the clients raise', async () => {
    fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5 });
    const stream = await openai().responses.create({ model: 'tiny', input: 'Hi', stream: true });
    const message = await anthropic().messages.create({ ...MESSAGE, stream: true });
    const drain = async (events: AsyncIterable<unknown>) => {
      for await (const _ of events);
    };
    const ends = Promise.allSettled([drain(stream), drain(message)]);
    await until(() => fake.requests.length === 2);
    await transport.close();
    for (const end of await ends)
      expect(end).toMatchObject({ status: 'rejected', reason: { message: expect.stringContaining('too early') } });
  });

  test('no response is stored: the request says so, and earlier ones cannot be named', async () => {
    const response = await openai().responses.create({ model: 'tiny', input: 'Hi' });
    expect(response).toMatchObject({ store: false });
    await expect(openai().responses.retrieve(response.id)).rejects.toMatchObject({
      status: 404,
      code: 'response_not_found',
    });
    await expect(
      openai().responses.create({ model: 'tiny', input: 'Hi', previous_response_id: response.id }),
    ).rejects.toMatchObject({ status: 400, code: 'unsupported_value', param: 'previous_response_id' });
  });
});
