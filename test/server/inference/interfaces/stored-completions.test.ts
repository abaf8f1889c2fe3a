/** Stored chat completions with the official OpenAI client. */
import type OpenAI from 'openai';
import { Completions, readCompletionRequest } from '../../../../server/storage/responses/completions';
import { newCompletionId } from '../../../../server/storage/responses/ids';
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { callText, loadTiny, log, type Served, serveTiny } from './support';

const MESSAGES: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Hi' }];
const HELLO = 'Hello from the fake engine. Größe 😀!';
const IS_UNKNOWN = { status: 404, code: 'completion_not_found' };

let engine: Engine;
let served: Served;
let client: OpenAI;

beforeAll(async () => {
  engine = await loadTiny();
});
beforeEach(async () => {
  fake.reset();
  jest.clearAllMocks();
  served = await serveTiny(engine);
  client = served.openai;
});
afterEach(() => served.close());
afterAll(() => engine.close());

function create(fields: Partial<OpenAI.ChatCompletionCreateParamsNonStreaming> = {}): Promise<OpenAI.ChatCompletion> {
  return client.chat.completions.create({ model: 'tiny', messages: MESSAGES, store: true, ...fields });
}

test('a completion is stored, retrieved, changed and deleted', async () => {
  const made = await create({ metadata: { topic: 'greeting' }, temperature: 0.5, seed: 7 });
  const found = await client.chat.completions.retrieve(made.id);
  expect(found).toMatchObject(made);
  expect(found).toMatchObject({ metadata: { topic: 'greeting' }, temperature: 0.5, seed: 7, tools: null });
  const changed = await client.chat.completions.update(made.id, { metadata: { topic: 'other', more: 'x' } });
  expect(changed).toEqual({ ...found, metadata: { topic: 'other', more: 'x' } });
  expect(await client.chat.completions.retrieve(made.id)).toEqual(changed);
  expect(await client.chat.completions.update(made.id, { metadata: null })).toMatchObject({ metadata: {} });
  expect(await client.chat.completions.delete(made.id)).toEqual({
    id: made.id,
    object: 'chat.completion.deleted',
    deleted: true,
  });
  for (const refused of [
    () => client.chat.completions.retrieve(made.id),
    () => client.chat.completions.update(made.id, { metadata: {} }),
    () => client.chat.completions.delete(made.id),
    () => client.chat.completions.messages.list(made.id),
    () => client.chat.completions.retrieve('../../etc/passwd'),
    () => client.chat.completions.retrieve('resp_1'),
  ])
    await expect(refused()).rejects.toMatchObject(IS_UNKNOWN);
});

test('a completion is stored only if the request says it', async () => {
  const plain = await create({ store: false, metadata: { a: 'b' } });
  await create({ store: null, metadata: { a: { nested: true } } as never });
  await expect(client.chat.completions.retrieve(plain.id)).rejects.toMatchObject(IS_UNKNOWN);
  expect((await client.chat.completions.list()).data).toEqual([]);
});

test('a stream is stored as the completion that is sent without one', async () => {
  const tools: OpenAI.ChatCompletionTool[] = [
    { type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: {} } } },
  ];
  fake.answer = () => ({ text: `<think>\nhm\n</think>\n\nLet me look.\n${callText('get_weather', { city: 'Bern' })}` });
  const whole = await create({ tools });
  const stream = client.chat.completions.stream({ model: 'tiny', messages: MESSAGES, tools, store: true });
  const streamed = await stream.finalChatCompletion();
  const found = await client.chat.completions.retrieve(streamed.id);
  const comparable = (text: unknown) =>
    JSON.parse(JSON.stringify(text).replace(/"call_[^"]+"/g, '"call"')) as OpenAI.ChatCompletion;
  const { choices, usage, object, model } = comparable(whole);
  expect(comparable(found)).toMatchObject({ choices, object, model });
  expect(found.usage?.total_tokens).toBe(usage?.total_tokens);
  expect((await client.chat.completions.list()).data.map(({ id }) => id)).toEqual([whole.id, streamed.id]);
});

test('the list has pages, both orders, and filters by model and metadata', async () => {
  const ids: string[] = [];
  for (let i = 0; i < 5; i++) {
    const { id } = await create({ metadata: { parity: i % 2 === 0 ? 'even' : 'odd', number: String(i) } });
    ids.push(id);
  }
  await client.responses.create({ model: 'tiny', input: 'Not a chat completion' });
  const idsOf = async (query?: OpenAI.ChatCompletionListParams) => {
    const found: string[] = [];
    for await (const { id } of client.chat.completions.list(query)) found.push(id);
    return found;
  };
  expect(await idsOf()).toEqual(ids);
  for (const limit of [1, 2, 5]) expect(await idsOf({ limit })).toEqual(ids);
  expect(await idsOf({ order: 'desc', limit: 2 })).toEqual([...ids].reverse());
  expect(await idsOf({ metadata: { parity: 'odd' }, limit: 1 })).toEqual([ids[1], ids[3]]);
  expect(await idsOf({ metadata: { parity: 'odd', number: '3' } })).toEqual([ids[3]]);
  expect(await idsOf({ metadata: { parity: 'number' } })).toEqual([]);
  expect(await idsOf({ metadata: { toString: 'x' } as never })).toEqual([]);
  expect(await idsOf({ model: 'tiny' })).toEqual(ids);
  expect(await idsOf({ model: 'Hi' })).toEqual([]);
  const page = await client.chat.completions.list({ limit: 2, after: ids[0] });
  expect([page.data.map(({ id }) => id), page.has_more]).toEqual([ids.slice(1, 3), true]);
  // A page continues although its cursor was deleted.
  await client.chat.completions.delete(ids[2]);
  expect(await idsOf({ after: ids[2] })).toEqual(ids.slice(3));
  for (const query of [{ limit: 0 }, { limit: 101 }, { order: 'up' as never }, { after: 'x' }])
    await expect(client.chat.completions.list(query)).rejects.toMatchObject({ status: 400, code: 'invalid_value' });
});

test('the messages of a request have ids and pages', async () => {
  const { id } = await create({
    messages: [
      { role: 'system', content: 'Be short.' },
      { role: 'user', content: [{ type: 'text', text: 'Hi' }] },
      {
        role: 'assistant',
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } }],
      },
      { role: 'tool', content: '1', tool_call_id: 'call_1' },
    ],
  });
  const page = await client.chat.completions.messages.list(id);
  expect(page.data).toEqual([
    { id: `${id}-0`, role: 'system', content: 'Be short.', content_parts: null, name: null },
    { id: `${id}-1`, role: 'user', content: null, content_parts: [{ type: 'text', text: 'Hi' }], name: null },
    {
      id: `${id}-2`,
      role: 'assistant',
      content: null,
      content_parts: null,
      name: null,
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } }],
    },
    { id: `${id}-3`, role: 'tool', content: '1', content_parts: null, name: null, tool_call_id: 'call_1' },
  ]);
  const found: string[] = [];
  for await (const message of client.chat.completions.messages.list(id, { limit: 3, order: 'desc' }))
    found.push(message.id);
  expect(found).toEqual([3, 2, 1, 0].map((i) => `${id}-${i}`));
  await expect(client.chat.completions.messages.list(id, { after: 'x' })).rejects.toMatchObject({ status: 400 });
});

test.each<[object]>([
  [{ metadata: { a: 1 } }],
  [{ metadata: 'a' }],
  [{ metadata: { ['k'.repeat(65)]: 'v' } }],
  [{ metadata: { a: 'v'.repeat(513) } }],
  [{ metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v'])) }],
])('invalid metadata are refused %#', async (body) => {
  const { id } = await create();
  const isInvalid = { status: 400, param: 'metadata' };
  await expect(create(body)).rejects.toMatchObject(isInvalid);
  await expect(client.chat.completions.update(id, body as never)).rejects.toMatchObject(isInvalid);
  await expect(client.chat.completions.update(id, {} as never)).rejects.toMatchObject(isInvalid);
});

test.each<[string, () => Promise<boolean>]>([
  ['cannot store', () => Promise.reject(new Error('ENOSPC: no space left on device'))],
  ['finds too large', () => Promise.resolve(false)],
])('a completion that the store %s is sent', async (_name, put) => {
  const responses = Object.assign(new MemoryResponseStore({ maxBytes: 1, ttlMs: 1 }), { put });
  const other = await serveTiny(engine, { responses });
  const made = await other.openai.chat.completions.create({ model: 'tiny', messages: MESSAGES, store: true });
  expect(made.choices[0].message.content).toBe(HELLO);
  await expect(other.openai.chat.completions.retrieve(made.id)).rejects.toMatchObject(IS_UNKNOWN);
  expect(log.warn.mock.calls.length + log.error.mock.calls.length).toBe(1);
  await other.close();
});

test('messages that are too large to be stored are not held', async () => {
  const read = (numChars: number) =>
    readCompletionRequest({ store: true, messages: [{ role: 'user', content: 'x'.repeat(numChars) }] });
  expect((await read(1000))?.messages).toHaveLength(1);
  expect(await read(4 * 2 ** 20)).toMatchObject({ messages: undefined, fields: { metadata: {} } });
  const store = new MemoryResponseStore({ maxBytes: 64 * 2 ** 20, ttlMs: 60_000 });
  const request = (await read(4 * 2 ** 20))!;
  await new Completions(store, { ownerId: 'ada' }).keep({ id: newCompletionId() }, request, {
    requestId: 'req_1',
    log,
  });
  expect(await store.ids('ada')).toEqual([]);
  expect(log.warn).toHaveBeenCalledTimes(1);
});

test('a server without a store says so', async () => {
  const other = await serveTiny(engine, { responses: undefined });
  await other.openai.chat.completions.create({ model: 'tiny', messages: MESSAGES, store: true });
  await expect(other.openai.chat.completions.list()).rejects.toMatchObject({
    ...IS_UNKNOWN,
    message: expect.stringContaining('stores no chat completions') as string,
  });
  await other.close();
});

test('reading a list does not renew the time to live', async () => {
  let nowMs = Date.now();
  const other = await serveTiny(engine, {
    responses: new MemoryResponseStore({ maxBytes: 1_000_000, ttlMs: 1000 }, () => nowMs),
  });
  const { completions } = other.openai.chat;
  const { id } = await completions.create({ model: 'tiny', messages: MESSAGES, store: true });
  nowMs += 900;
  expect((await completions.list()).data).toHaveLength(1);
  await completions.retrieve(id);
  nowMs += 900;
  expect((await completions.list()).data).toHaveLength(1);
  nowMs += 200;
  expect((await completions.list()).data).toEqual([]);
  await other.close();
});

test('a page ends before its texts become too large', async () => {
  const responses = new MemoryResponseStore({ maxBytes: 64 * 2 ** 20, ttlMs: 60_000 });
  const other = await serveTiny(engine, { responses });
  const text = 'x'.repeat(3 * 2 ** 20);
  for (let i = 0; i < 6; i++) {
    const id = newCompletionId();
    await responses.put('anyone', id, JSON.stringify({ completion: { id, text, metadata: {} }, messages: [] }));
  }
  const { completions } = other.openai.chat;
  const page = await completions.list();
  expect([page.data.length, page.has_more]).toEqual([5, true]);
  let numFound = 0;
  for await (const _ of completions.list()) numFound++;
  expect(numFound).toBe(6);
  await other.close();
});

test.each<[string, Record<string, string>]>([
  ['17 entries', Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v']))],
  ['a long key', { ['k'.repeat(65)]: 'v' }],
  ['a long value', { a: 'v'.repeat(513) }],
])('a filter with %s is refused', async (_name, metadata) => {
  await expect(client.chat.completions.list({ metadata })).rejects.toMatchObject({ status: 400, param: 'metadata' });
});

test('with keys, web pages reach the stored completions of their key', async () => {
  const access = {
    check: () => ({ ok: true, keyId: 'key_1', ownerId: 'own_1', done: () => {} }) as const,
  };
  const other = await serveTiny(engine, { access });
  const response = await fetch(`${other.url}/v1/chat/completions`, { headers: { Origin: 'https://example.com' } });
  expect(response.status).toBe(200);
  await other.close();
});

/** A store whose reads wait for each other. */
function slowStore() {
  const store = new MemoryResponseStore({ maxBytes: 1_000_000, ttlMs: 60_000 });
  const peek = store.peek.bind(store);
  const peeked: string[] = [];
  let begin = (): void => {};
  let finish = (): void => {};
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const finished = new Promise<void>((resolve) => (finish = resolve));
  store.peek = async (owner, id) => {
    peeked.push(id);
    begin();
    await finished;
    return peek(owner, id);
  };
  return { store, peeked, begun, finish };
}

test('an owner has one list in progress', async () => {
  const { store, begun, finish } = slowStore();
  const { completions } = (served = await replaced(store)).openai.chat;
  await completions.create({ model: 'tiny', messages: MESSAGES, store: true });
  const first = completions.list().then(({ data }) => data.length);
  await begun;
  await expect(completions.list({}, { maxRetries: 0 })).rejects.toMatchObject({ code: 'queue_full' });
  finish();
  expect(await first).toBe(1);
  expect((await completions.list()).data).toHaveLength(1);
});

test('a list ends when its client leaves', async () => {
  const { store, peeked, begun, finish } = slowStore();
  const completions = new Completions(store, { ownerId: 'ada' });
  for (let i = 0; i < 3; i++) await store.put('ada', newCompletionId(), '{}');
  const leaving = new AbortController();
  const listed = completions.list(
    { limit: 20, after: null, isAscending: true },
    { model: 'a', metadata: {} },
    leaving.signal,
  );
  await begun;
  leaving.abort(new Error('gone'));
  finish();
  await expect(listed).rejects.toThrow('gone');
  expect(peeked).toHaveLength(1);
});

async function replaced(responses: MemoryResponseStore): Promise<Served> {
  await served.close();
  return serveTiny(engine, { responses });
}
