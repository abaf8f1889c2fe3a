/** Chat completions that the service keeps: replicas get `store: false`, and owners see their own alone. */
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import type { Access } from '../../../../server/access';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { BACKENDS } from '../../access/support';
import { callText } from '../../inference/interfaces/support';
import { closeAll, startReplica } from '../gateway/support';
import {
  type BuiltinReplica,
  builtinTarget,
  type Kept,
  openTenants,
  OWNERS,
  slugOf,
  startBuiltin,
  startKept,
  type Tenant,
} from './support';

let engine: Engine;
let access: Access;
let tenants: Record<'alice' | 'bob' | 'lab', Tenant>;
let replica: BuiltinReplica;
let kept: Kept;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
  ({ access, tenants } = await openTenants(await BACKENDS[0].make()));
  replica = await startBuiltin(engine);
});
beforeEach(async () => {
  fake.reset();
  replica.bodies.length = 0;
  kept = await startKept({ access, tenants, replica });
});
afterEach(async () => {
  await kept.close();
  await closeAll();
});
afterAll(async () => {
  await replica.close();
  await access.close();
  await engine.close();
  await BACKENDS[0].dispose();
});

const PLACES = [
  ['the API of all deployments', '', 'chat'],
  ['the URL of the deployment', `/d/${slugOf('alice', 'chat')}`, 'tiny'],
] as const;
const MESSAGES: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Hi' }];
const TOOLS: OpenAI.ChatCompletionTool[] = [
  { type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: {} } } },
  { type: 'custom', custom: { name: 'write' } },
];
const IS_UNKNOWN = { status: 404, code: 'completion_not_found' };

describe.each(PLACES)('at %s', (_name, path, model) => {
  test('a completion is kept, changed and deleted, and the replica is asked not to keep it', async () => {
    const { completions } = kept.client('alice', path).chat;
    const made = await completions.create({ model, messages: MESSAGES, store: true, metadata: { a: 'b' } });
    expect(replica.bodies).toEqual([{ model: 'tiny', store: false, messages: MESSAGES }]);
    expect(made.id).toMatch(/^chatcmpl-[0-9a-f]{48}$/);
    const found = await completions.retrieve(made.id);
    expect(found).toMatchObject({ ...made, metadata: { a: 'b' } });
    expect((await completions.list({ metadata: { a: 'b' } })).data).toEqual([found]);
    expect((await completions.messages.list(made.id)).data).toMatchObject(MESSAGES);
    expect(await completions.update(made.id, { metadata: { c: 'd' } })).toMatchObject({ metadata: { c: 'd' } });
    expect(await completions.delete(made.id)).toMatchObject({ deleted: true });
    await expect(completions.retrieve(made.id)).rejects.toMatchObject(IS_UNKNOWN);
  });

  test.each([false, true])('a stream is kept as it passes (usage asked for: %s)', async (asksForUsage) => {
    const { completions } = kept.client('alice', path).chat;
    const call = callText('get_weather', { city: 'Bern' });
    fake.answer = () => ({
      text: `Größe 😀.\n${call}\n${callText('write', { input: 'a text' })}`,
      stepMs: 1,
    });
    const body = { model, messages: MESSAGES, tools: TOOLS, logprobs: true, n: 2, store: true } as const;
    const whole = await completions.create(body);
    const stream = await completions.create({
      ...body,
      stream: true,
      ...(asksForUsage ? { stream_options: { include_usage: true } } : {}),
    });
    const ids = new Set<string>();
    let numUsages = 0;
    for await (const chunk of stream) {
      ids.add(chunk.id);
      if (chunk.choices.length === 0) numUsages++;
    }
    const [id] = ids;
    expect(ids.size).toBe(1);
    expect(numUsages).toBe(asksForUsage ? 1 : 0);
    const comparable = (completion: OpenAI.ChatCompletion) => {
      const { choices, usage } = JSON.parse(
        JSON.stringify(completion).replace(/"call_[^"]+"/g, '"call"'),
      ) as OpenAI.ChatCompletion;
      return { choices, usage: usage?.total_tokens };
    };
    const found = await completions.retrieve(id);
    const expected = comparable(await completions.retrieve(whole.id));
    // A stream has no key for reasoning that there is not.
    for (const { message } of expected.choices) delete (message as { reasoning_content?: unknown }).reasoning_content;
    expect(comparable(found)).toEqual(expected);
    expect(found.object).toBe('chat.completion');
  });
});

test('a completion without store passes unchanged, and is not kept', async () => {
  const { completions } = kept.client('alice').chat;
  const body = { model: 'chat', messages: MESSAGES, metadata: { a: 'b' } };
  for (const fields of [{}, { store: false }, { store: null }]) {
    const { id } = await completions.create({ ...body, ...fields });
    expect(id).not.toMatch(/^chatcmpl-[0-9a-f]{48}$/);
    expect(replica.bodies.at(-1)).toEqual({ ...body, ...fields, model: 'tiny' });
  }
  expect((await completions.list()).data).toEqual([]);
});

test("another owner's completion is 404, and stays", async () => {
  const mine = kept.client('alice').chat.completions;
  const { id } = await mine.create({ model: 'chat', messages: MESSAGES, store: true });
  const { completions } = kept.client('bob').chat;
  for (const refused of [
    () => completions.retrieve(id),
    () => completions.update(id, { metadata: {} }),
    () => completions.delete(id),
    () => completions.messages.list(id),
  ])
    await expect(refused()).rejects.toMatchObject(IS_UNKNOWN);
  expect((await completions.list()).data).toEqual([]);
  expect((await mine.list()).data).toMatchObject([{ id }]);
});

test('a key for some deployments does not see the completions of others', async () => {
  const mine = kept.client('alice').chat.completions;
  const { id } = await mine.create({ model: 'chat', messages: MESSAGES, store: true });
  const openKey = await access.createKey({
    owner: OWNERS.alice,
    name: 'open only',
    type: 'deployment-level',
    deployments: [tenants.alice.open.id],
  });
  const { completions } = new OpenAI({ baseURL: `${kept.url}/v1`, apiKey: openKey.secret, maxRetries: 0 }).chat;
  for (const refused of [
    () => completions.retrieve(id),
    () => completions.update(id, { metadata: {} }),
    () => completions.delete(id),
    () => completions.messages.list(id),
  ])
    await expect(refused()).rejects.toMatchObject(IS_UNKNOWN);
  expect((await completions.list()).data).toEqual([]);
  const own = await completions.create({ model: 'open', messages: MESSAGES, store: true });
  expect((await completions.list()).data).toMatchObject([{ id: own.id }]);
  expect((await mine.list()).data.map((one) => one.id)).toEqual([id, own.id]);
  expect(await mine.retrieve(id)).not.toHaveProperty('deployment_id');
});

test.each([
  ['DELETE', '/v1/chat/completions', 405, 'GET, POST'],
  ['PUT', '/v1/chat/completions', 405, 'GET, POST'],
  ['GET', '/v1/chat/completions/render', 405, 'POST, OPTIONS'],
  ['GET', '/v1/responses/input_tokens', 405, 'POST, OPTIONS'],
  ['GET', '/v1/responses/compact', 405, 'POST, OPTIONS'],
])('%s %s has status %d', async (method, path, status, allowed) => {
  const response = await fetch(kept.url + path, { method, headers: { Authorization: `Bearer ${tenants.alice.key}` } });
  expect([response.status, response.headers.get('allow')]).toEqual([status, allowed]);
});

test('the replica says whether it can compact', async () => {
  const { responses } = kept.client('alice');
  await expect(responses.compact({ model: 'chat' as never, input: 'Hi' })).rejects.toMatchObject({
    status: 501,
    code: 'not_implemented',
  });
});

test('invalid metadata are refused before the replica is called', async () => {
  const { completions } = kept.client('alice').chat;
  await expect(
    completions.create({ model: 'chat', messages: MESSAGES, store: true, metadata: { a: 1 } as never }),
  ).rejects.toMatchObject({ status: 400, param: 'metadata' });
  expect(replica.bodies).toEqual([]);
});

test.each([false, true])('an invalid request is judged by the replica (stream: %s)', async (stream) => {
  const { completions } = kept.client('alice').chat;
  const body = { model: 'chat', messages: MESSAGES, store: true, stream } as const;
  for (const [fields, param] of [
    [{ messages: 5 }, 'messages'],
    [{ temperature: 7 }, 'temperature'],
    [{ store: 'yes' }, 'store'],
    ...(stream ? [[{ stream_options: 5 }, 'stream_options']] : []),
  ])
    await expect(completions.create({ ...body, ...(fields as object) })).rejects.toMatchObject({ status: 400, param });
  expect((await completions.list()).data).toEqual([]);
});

const chunk = (fields: object) =>
  `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', ...fields })}\n\n`;
const END = { index: 0, delta: {}, finish_reason: 'stop' };

test.each<[string, string[], boolean]>([
  ['a whole stream', [chunk({ choices: [END] }), 'data: [DONE]\n\n'], true],
  ['a stream that is cut', [chunk({ choices: [END] })], false],
  ['a stream with an error', [chunk({ choices: [END] }), 'data: {"error": {}}\n\n', 'data: [DONE]\n\n'], false],
  ['a choice without an end', [chunk({ choices: [END, { index: 1, delta: {} }] }), 'data: [DONE]\n\n'], false],
  ['a stream without choices', ['data: [DONE]\n\n'], false],
  [
    'a stream that names prototypes',
    [
      'data: {"choices": [{"index": 0, "delta": {"__proto__": {"polluted": "a"}}, "__proto__": {"polluted": "a"}}]}\n\n',
      chunk({ choices: [END] }),
      'data: [DONE]\n\n',
    ],
    true,
  ],
])('%s of another server is kept if it is complete', async (_name, events, isKept) => {
  const other = await startReplica((_request, response) => {
    response.setHeader('Content-Type', 'text/event-stream');
    response.end(events.join(''));
  });
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica }, { replicas: [other] }));
  const response = await fetch(`${kept.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${tenants.alice.key}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ model: 'chat', messages: MESSAGES, store: true, stream: true }),
  });
  await response.text();
  expect((await kept.client('alice').chat.completions.list()).data).toHaveLength(isKept ? 1 : 0);
  expect(({} as { polluted?: string }).polluted).toBeUndefined();
});

test('a completion that cannot be stored is sent', async () => {
  const folder = join(kept.dataDir, 'responses');
  rmSync(folder, { recursive: true });
  writeFileSync(folder, 'no folder');
  const { completions } = kept.client('alice').chat;
  const made = await completions.create({ model: 'chat', messages: MESSAGES, store: true });
  expect(made.choices).toHaveLength(1);
  expect(kept.log.error).toHaveBeenCalledWith(expect.anything(), 'cannot store a chat completion');
  rmSync(folder);
});

test('no completions are kept with a limit of 0 bytes', async () => {
  const none = await startKept({ access, tenants, replica, options: { storedResponses: { maxBytes: 0, ttlMs: 1 } } });
  const { completions } = none.client('alice').chat;
  const { id } = await completions.create({ model: 'chat', messages: MESSAGES, store: true });
  await expect(completions.retrieve(id)).rejects.toMatchObject(IS_UNKNOWN);
  await none.close();
});
