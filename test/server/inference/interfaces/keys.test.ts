/** Access keys on /v1/messages and /v1/responses, over sockets and with a real key database. */
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { Access } from '../../../../server/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { ACCESS_DIR, ALICE, BOB, makeFolder, REGISTER, removeFolders } from '../../access/support';
import { loadTiny, type Served, serveTiny } from './support';

const createThread = (location: DatabaseLocation) =>
  new Worker(
    `require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(path.join(ACCESS_DIR, 'store', 'store-thread.ts'))});`,
    { eval: true, workerData: location },
  );
const MESSAGE = { model: 'tiny', max_tokens: 100, messages: [{ role: 'user', content: 'Hi' }] } as const;

let access: Access;
let engine: Engine;
let served: Served;
let alice: string;
let other: string;
let bob: string;
let limited: string;

beforeAll(async () => {
  engine = await loadTiny();
  access = await Access.open({
    location: { kind: 'file', file: path.join(makeFolder(), 'keys.db') },
    owner: ALICE,
    deployment: 'chat',
    createThread,
  });
  const create = async (name: string, owner: typeof ALICE, further: object = {}) =>
    (await access.createKey({ name, type: 'user-level', owner, ...further })).secret;
  alice = await create('alice', ALICE);
  other = await create('other', ALICE);
  bob = await create('bob', BOB);
  limited = await create('limited', ALICE, { limits: { rpm: 1 } });
  served = await serveTiny(engine, { access });
});
beforeEach(() => fake.reset());
afterAll(async () => {
  await served.close();
  await access.close();
  await engine.close();
  removeFolders();
});

async function send(pathname: string, headers: Record<string, string> | [string, string][]): Promise<[number, any]> {
  const response = await fetch(served.url + pathname, {
    method: 'POST',
    headers: [
      ...Object.entries(Array.isArray(headers) ? Object.fromEntries(headers) : headers),
      ['Content-Type', 'application/json'],
    ],
    body: JSON.stringify(MESSAGE),
  });
  return [response.status, await response.json()];
}

test.each<[string, () => Record<string, string>, number]>([
  ['x-api-key', () => ({ 'x-api-key': alice }), 200],
  ['Bearer', () => ({ Authorization: `Bearer ${alice}` }), 200],
  ['the same key twice', () => ({ 'x-api-key': alice, Authorization: `Bearer ${alice}` }), 200],
  ['blanks around the key', () => ({ 'x-api-key': `  ${alice}  ` }), 200],
  ['two keys', () => ({ 'x-api-key': alice, Authorization: `Bearer ${other}` }), 401],
  ['a key and another scheme', () => ({ 'x-api-key': alice, Authorization: 'Basic abc' }), 401],
  ['a scheme in x-api-key', () => ({ 'x-api-key': `Bearer ${alice}` }), 401],
  ['no key', () => ({}), 401],
  ['an empty key', () => ({ 'x-api-key': '' }), 401],
  ["a stranger's key", () => ({ 'x-api-key': bob }), 403],
])('/v1/messages with %s', async (_name, headers, status) => {
  for (const pathname of ['/v1/messages', '/v1/messages/count_tokens']) {
    const [received, body] = await send(pathname, headers());
    expect(received).toBe(status);
    if (status !== 200)
      expect(body).toEqual({
        type: 'error',
        error: {
          type: status === 401 ? 'authentication_error' : 'permission_error',
          message: expect.any(String) as string,
        },
        request_id: expect.any(String) as string,
      });
  }
});

test.each(['/v1/responses', '/v1/chat/completions', '/v1/messages/batches', '/v1/models'])(
  'x-api-key means nothing on %s',
  async (pathname) => {
    const [status, body] = await send(pathname, { 'x-api-key': alice });
    expect([status, body.error.code]).toEqual([401, 'invalid_api_key']);
  },
);

test.each(['/v1/models', '/v1/models/tiny'])(
  'x-api-key counts on %s with anthropic-version alone, and errors have its form',
  async (pathname) => {
    const get = async (headers: Record<string, string>): Promise<[number, any]> => {
      const response = await fetch(served.url + pathname, { headers });
      return [response.status, await response.json()];
    };
    const version = { 'anthropic-version': '2023-06-01' };
    const statuses = [
      await get({ 'x-api-key': alice }),
      await get({ ...version, 'x-api-key': alice }),
      await get({ ...version, Authorization: `Bearer ${alice}` }),
      await get({ Authorization: `Bearer ${alice}` }),
    ].map(([status, body]) => [status, body.error?.code ?? body.object ?? 'anthropic']);
    expect(statuses).toEqual([
      [401, 'invalid_api_key'],
      [200, 'anthropic'],
      [200, 'anthropic'],
      [200, pathname.endsWith('tiny') ? 'model' : 'list'],
    ]);
    for (const [key, status, type] of [
      ['sk-wrong', 401, 'authentication_error'],
      [bob, 403, 'permission_error'],
    ] as const)
      expect(await get({ ...version, 'x-api-key': key })).toMatchObject([status, { type: 'error', error: { type } }]);
  },
);

test("Anthropic's client lists the models", async () => {
  const { models } = new Anthropic({ baseURL: served.url, apiKey: alice, maxRetries: 0 });
  const listed = [];
  for await (const model of models.list()) listed.push(model);
  const { max_input_tokens: maxInputTokens } = await models.retrieve('tiny');
  expect(listed).toMatchObject([{ type: 'model', id: 'tiny', display_name: 'tiny' }]);
  expect([maxInputTokens, Date.parse(listed[0].created_at) > 0]).toEqual([engine.info.maxModelLen, true]);
  await expect(models.retrieve('other')).rejects.toMatchObject({ status: 404, type: 'not_found_error' });
  await expect(models.list({ limit: 0 })).rejects.toMatchObject({ status: 400, type: 'invalid_request_error' });
});

test('two x-api-key headers are refused', async () => {
  const { request } = await import('node:http');
  const status = await new Promise((resolve, reject) => {
    const sent = request(`${served.url}/v1/messages`, { method: 'POST' }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    sent.on('error', reject);
    sent.setHeader('x-api-key', [alice, alice]);
    sent.end('{}');
  });
  expect(status).toBe(401);
});

test("the official clients send their keys in their interface's way", async () => {
  const anthropic = new Anthropic({ baseURL: served.url, apiKey: alice, maxRetries: 0 });
  expect((await anthropic.messages.create(MESSAGE as never)).type).toBe('message');
  const byToken = new Anthropic({ baseURL: served.url, apiKey: null, authToken: alice, maxRetries: 0 });
  expect((await byToken.messages.create(MESSAGE as never)).type).toBe('message');
  const stranger = new Anthropic({ baseURL: served.url, apiKey: bob, maxRetries: 0 });
  await expect(stranger.messages.create(MESSAGE as never)).rejects.toMatchObject({
    constructor: Anthropic.PermissionDeniedError,
    type: 'permission_error',
  });
  const slow = new Anthropic({ baseURL: served.url, apiKey: limited, maxRetries: 0 });
  await slow.messages.create(MESSAGE as never);
  await expect(slow.messages.create(MESSAGE as never)).rejects.toMatchObject({
    constructor: Anthropic.RateLimitError,
    type: 'rate_limit_error',
  });
});

test("responses belong to the owner of the key: another owner's id is 404", async () => {
  const clientOf = (apiKey: string, url = served.url) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
  const { id, output } = await clientOf(alice).responses.create({ model: 'tiny', input: 'Hi' });
  // Every key of the owner may read it.
  expect((await clientOf(other).responses.retrieve(id)).id).toBe(id);

  // A server that both owners may use.
  const shared = await serveTiny(engine, {
    access: {
      check: ({ headers }) => ({
        ok: true,
        keyId: 'key_1',
        ownerId: headers.find(([name]) => name === 'authorization')![1],
        done: () => {},
      }),
    },
  });
  const mine = await clientOf('ada', shared.url).responses.create({ model: 'tiny', input: 'Hi' });
  const theirs = clientOf('eve', shared.url).responses;
  const isUnknown = { status: 404, code: 'response_not_found' };
  await expect(theirs.retrieve(mine.id)).rejects.toMatchObject(isUnknown);
  await expect(theirs.delete(mine.id)).rejects.toMatchObject(isUnknown);
  await expect(theirs.inputItems.list(mine.id)).rejects.toMatchObject(isUnknown);
  await expect(theirs.create({ model: 'tiny', input: 'Hi', previous_response_id: mine.id })).rejects.toMatchObject(
    isUnknown,
  );
  await expect(
    theirs.create({ model: 'tiny', input: [{ type: 'item_reference', id: mine.output[0].id! }] }),
  ).rejects.toMatchObject(isUnknown);
  expect((await clientOf('ada', shared.url).responses.retrieve(mine.id)).id).toBe(mine.id);
  expect(output).toHaveLength(1);
  for (const junk of ['resp_x', '..%2f..%2fx', 'resp_'.padEnd(53, '0'), '%00'])
    expect(
      (await fetch(`${served.url}/v1/responses/${junk}`, { headers: { Authorization: `Bearer ${alice}` } })).status,
    ).toBe(404);
  await shared.close();
});
