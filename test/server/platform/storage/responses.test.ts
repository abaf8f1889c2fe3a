/** Responses that the service keeps: replicas get whole conversations, and owners see their own alone. */
import { chmodSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type OpenAI from 'openai';
import type { Access } from '../../../../server/access';
import { App } from '../../../../server/inference/app';
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { exchange } from '../../../fakes/memory-exchange';
import { tinyModel } from '../../../fakes/tiny-model';
import { BACKENDS } from '../../access/support';
import { closeAll, echo, startReplica, target } from '../gateway/support';
import {
  type BuiltinReplica,
  builtinTarget,
  type Kept,
  openTenants,
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

/** The two addresses of Alice's deployment. */
const PLACES = [
  ['the API of all deployments', ''],
  ['the URL of the deployment', `/d/${slugOf('alice', 'chat')}`],
] as const;

/** The client's type lacks `store`. */
type Created = OpenAI.Responses.Response & { store?: boolean };
const create = (client: OpenAI, body: object): Promise<Created> =>
  client.responses.create({ model: 'chat', ...body } as OpenAI.Responses.ResponseCreateParamsNonStreaming);
const modelAt = (path: string) => (path === '' ? 'chat' : 'tiny');
const inputTexts = (body: Record<string, unknown>): unknown[] =>
  (body.input as { content?: unknown; type: string }[]).map(({ content }) =>
    typeof content === 'string' ? content : (content as { text: string }[])?.[0].text,
  );

describe.each(PLACES)('at %s', (_name, path) => {
  const body = (fields: object) => ({ model: modelAt(path), ...fields });

  test('a response is kept, and the replica is asked not to', async () => {
    const client = kept.client('alice', path);
    fake.answer = () => ({ text: 'Hello.' });
    const made = await create(client, body({ input: 'Hi', metadata: { a: 'b' } }));
    expect(made).toMatchObject({ store: true, previous_response_id: null, metadata: { a: 'b' } });
    expect(replica.bodies).toMatchObject([{ store: false, input: 'Hi' }]);
    const { output_text: text, ...wire } = made;
    expect(text).toBe('Hello.');
    expect(await client.responses.retrieve(made.id)).toEqual({ ...wire, output_text: text });
    const items = await client.responses.inputItems.list(made.id);
    expect(items.data).toMatchObject([{ role: 'user', content: [{ type: 'input_text', text: 'Hi' }] }]);
    await client.responses.delete(made.id);
    await expect(client.responses.retrieve(made.id)).rejects.toMatchObject({ status: 404, code: 'response_not_found' });
    await expect(client.responses.delete(made.id)).rejects.toMatchObject({ status: 404 });
  });

  test('a conversation continues with what was said, as a whole', async () => {
    const client = kept.client('alice', path);
    fake.answer = (_prompt, _request) => ({ text: `answer ${fake.requests.length}` });
    const first = await create(client, body({ input: 'one', instructions: 'Be short.' }));
    const second = await create(client, body({ input: 'two', previous_response_id: first.id }));
    const third = await create(
      client,
      body({ input: [{ role: 'user', content: 'three' }], previous_response_id: second.id }),
    );
    expect(third.previous_response_id).toBe(second.id);
    const sent = replica.bodies[2];
    expect(sent).toMatchObject({ store: false, previous_response_id: null });
    expect(inputTexts(sent)).toEqual(['one', 'answer 1', 'two', 'answer 2', 'three']);
    expect(JSON.stringify(sent.input)).not.toContain('"id"');
    // Deleting one in the middle ends the conversation.
    await client.responses.delete(first.id);
    await expect(create(client, body({ input: 'x', previous_response_id: third.id }))).rejects.toMatchObject({
      status: 404,
      param: 'previous_response_id',
    });
  });

  test('tokens of a kept conversation are counted, and nothing is kept', async () => {
    const client = kept.client('alice', path);
    const first = await create(client, body({ input: 'one' }));
    const next = body({ input: 'two', previous_response_id: first.id });
    const counted = await client.responses.inputTokens.count(next);
    const { usage } = await create(client, next);
    expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: usage?.input_tokens });
    const plain = await client.responses.inputTokens.count(body({ input: 'two' }));
    expect(plain.input_tokens).toBeLessThan(counted.input_tokens);
    // The conversation is sent as a whole. Other requests pass as they are.
    expect(inputTexts(replica.bodies[1])).toHaveLength(3);
    expect(replica.bodies[3]).toEqual({ model: 'tiny', input: 'two' });
  });

  test('a stream is kept as it passes', async () => {
    const client = kept.client('alice', path);
    fake.answer = () => ({ text: 'one two three four', stepMs: 1 });
    const first = await create(client, body({ input: 'Hi' }));
    const stream = await client.responses.create({
      ...body({ input: 'more' }),
      previous_response_id: first.id,
      stream: true,
    } as OpenAI.Responses.ResponseCreateParamsStreaming);
    const events: OpenAI.Responses.ResponseStreamEvent[] = [];
    for await (const event of stream) events.push(event);
    expect(events.map((_event, i) => i)).toEqual(events.map(({ sequence_number: number }) => number));
    const withResponse = events.filter((event) => 'response' in event);
    expect(withResponse.map(({ type }) => type)).toEqual([
      'response.created',
      'response.in_progress',
      'response.completed',
    ]);
    for (const { response } of withResponse)
      expect(response).toMatchObject({ store: true, previous_response_id: first.id });
    const { response } = withResponse.at(-1)!;
    expect(await client.responses.retrieve(response.id)).toMatchObject(JSON.parse(JSON.stringify(response)) as object);
  });

  test('with store: false nothing is kept, but a kept conversation continues', async () => {
    const client = kept.client('alice', path);
    const first = await create(client, body({ input: 'one' }));
    const second = await create(client, body({ input: 'two', store: false, previous_response_id: first.id }));
    expect(second).toMatchObject({ store: false, previous_response_id: first.id });
    expect(inputTexts(replica.bodies[1])).toHaveLength(3);
    await expect(client.responses.retrieve(second.id)).rejects.toMatchObject({ status: 404 });
    const alone = await create(client, body({ input: 'three', store: false }));
    expect(alone.store).toBe(false);
    expect(
      readdirSync(join(kept.dataDir, 'responses')).flatMap((name) =>
        readdirSync(join(kept.dataDir, 'responses', name)),
      ),
    ).toHaveLength(1);
  });

  test('references to items of kept responses become the items', async () => {
    const client = kept.client('alice', path);
    fake.answer = () => ({ text: 'The answer.' });
    const first = await create(client, body({ input: 'one' }));
    await create(
      client,
      body({
        store: false,
        input: [
          { type: 'item_reference', id: first.output[0].id },
          { role: 'user', content: 'two' },
        ],
      }),
    );
    expect(inputTexts(replica.bodies[1])).toEqual(['The answer.', 'two']);
    const foreign = kept.client('bob', '');
    await expect(
      create(foreign, { model: 'chat', input: [{ type: 'item_reference', id: first.output[0].id }] }),
    ).rejects.toMatchObject({ status: 404, param: 'input[0].id' });
  });
});

test('nothing but the conversation changes in the body', async () => {
  const { id } = await create(kept.client('alice'), { input: 'one' });
  const response = await fetch(`${kept.url}/v1/responses`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${tenants.alice.key}`, 'Content-Type': 'application/json' },
    body: `{"seed":9007199254740993, "store" : true,"input":"two","previous_response_id":"${id}","model":"chat","store":null}`,
  });
  expect(await response.json()).toMatchObject({ store: true, previous_response_id: id });
  expect(fake.requests.at(-1)!.sampling.seed).toBe(9007199254740993n);
});

test('both addresses have the same responses', async () => {
  const made = await create(kept.client('alice'), { input: 'Hi' });
  const own = kept.client('alice', PLACES[1][1]);
  expect((await own.responses.retrieve(made.id)).id).toBe(made.id);
  const next = await create(own, { model: 'tiny', input: 'x', previous_response_id: made.id });
  await kept.client('alice').responses.delete(next.id);
});

test('the prompt is that of capstan serve for the same conversation', async () => {
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: kept.log as never,
    responses: new MemoryResponseStore({ maxBytes: 1 << 20, ttlMs: 1_000_000 }),
  });
  app.serve(engine);
  const tools = [{ type: 'function', name: 'get_weather', parameters: { type: 'object', properties: {} } }];
  const turns = (output: (first: any) => object) =>
    [
      () => ({ model: 'tiny', input: 'How is the weather?', tools, instructions: 'Look first.' }),
      (first: any) => ({ model: 'tiny', tools, input: [output(first)], previous_response_id: first.id }),
      (second: any) => ({ model: 'tiny', tools, input: 'Thanks', previous_response_id: second.id }),
    ] as ((earlier?: any) => object)[];
  const result = (first: any) => ({
    type: 'function_call_output',
    call_id: first.output.find(({ type }: { type: string }) => type === 'function_call').call_id,
    output: '21',
  });
  const promptsOf = async (send: (body: object) => Promise<unknown>): Promise<unknown[]> => {
    fake.reset();
    let earlier: unknown;
    for (const turn of turns(result)) earlier = await send(turn(earlier));
    return fake.requests.map(({ promptTokenIds }) => [...promptTokenIds]);
  };
  const own = await promptsOf(async (body) => {
    const reply = await exchange(app, '/v1/responses', body);
    return JSON.parse(reply.text) as unknown;
  });
  const client = kept.client('alice', PLACES[1][1]);
  expect(await promptsOf((body) => create(client, body))).toEqual(own);
  expect(own).toHaveLength(3);
});

test("another owner's response is 404, and stays", async () => {
  const { id } = await create(kept.client('alice'), { input: 'secret' });
  for (const who of ['bob', 'lab'] as const) {
    for (const path of ['', `/d/${slugOf(who, 'chat')}`]) {
      const client = kept.client(who, path);
      const body = { model: modelAt(path), input: 'x', previous_response_id: id };
      for (const refused of [
        () => client.responses.retrieve(id),
        () => client.responses.delete(id),
        () => client.responses.inputItems.list(id),
        () => create(client, body),
        () => create(client, { ...body, store: false }),
      ])
        await expect(refused()).rejects.toMatchObject({ status: 404, code: 'response_not_found' });
    }
    // A key of another owner does not reach the URL of the deployment at all.
    await expect(kept.client(who, PLACES[1][1]).responses.retrieve(id)).rejects.toMatchObject({ status: 403 });
  }
  expect((await fetch(`${kept.url}/v1/responses/${id}`)).status).toBe(401);
  expect((await kept.client('alice').responses.retrieve(id)).id).toBe(id);
  expect(fake.requests).toHaveLength(1);
});

test('a public deployment keeps nothing at its own URL, because its clients have no owner', async () => {
  const client = kept.client('alice', `/d/${slugOf('alice', 'open')}`);
  const made = await create(client, { model: 'tiny', input: 'Hi' });
  expect(made.store).toBe(false);
  await expect(create(client, { model: 'tiny', input: 'x', previous_response_id: made.id })).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining('stores no responses') as string,
  });
  await expect(client.files.list()).rejects.toMatchObject({ status: 501 });
  const withKey = await create(kept.client('alice'), { model: 'open', input: 'Hi' });
  expect(await kept.client('alice').responses.retrieve(withKey.id)).toMatchObject({ store: true });
});

test('a start script gets all requests to its URL', async () => {
  const script = await startReplica(echo);
  const { id, ownerId } = tenants.alice.chat;
  const slug = slugOf('alice', 'chat');
  kept.targets.set(target(slug, [script], { deploymentId: id, ownerId, accessControl: true, name: 'chat' }));
  for (const path of ['/v1/responses/x', '/v1/files', '/v1/batches']) {
    const response = await fetch(`${kept.url}/d/${slug}${path}`, {
      headers: { Authorization: `Bearer ${tenants.alice.key}` },
    });
    expect(await response.json()).toMatchObject({ url: path });
  }
  const response = await fetch(`${kept.url}/d/${slug}/v1/responses`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${tenants.alice.key}`, 'Content-Type': 'application/json' },
    body: '{"input": "x",  "store": true}',
  });
  expect(await response.json()).toMatchObject({ body: '{"input": "x",  "store": true}' });
});

test('other servers have ids of other forms: the service gives its own', async () => {
  const other = await startReplica((_request, response) => {
    response.setHeader('Content-Type', 'application/json');
    response.end(
      JSON.stringify({ id: 'resp_1', object: 'response', status: 'completed', output: [], usage: { input_tokens: 1 } }),
    );
  });
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica }, { replicas: [other] }));
  const client = kept.client('alice');
  const made = await create(client, { input: 'Hi' });
  expect(made.id).toMatch(/^resp_[0-9a-f]{48}$/);
  expect((await client.responses.retrieve(made.id)).id).toBe(made.id);
});

test('a server that repeats an id replaces no response, and no conversation continues itself', async () => {
  const id = `resp_${'a'.repeat(48)}`;
  let numAnswers = 0;
  const other = await startReplica((_request, response) => {
    response.setHeader('Content-Type', 'application/json');
    const output = [{ type: 'message', role: 'assistant', content: `answer ${++numAnswers}` }];
    response.end(JSON.stringify({ id, object: 'response', status: 'completed', output, usage: { input_tokens: 1 } }));
  });
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica }, { replicas: [other] }));
  const client = kept.client('alice');
  const first = await create(client, { input: 'Hi' });
  expect(first).toMatchObject({ id, store: true });
  expect(await create(client, { input: 'And?', previous_response_id: id })).toMatchObject({ store: false });
  expect(await client.responses.retrieve(id)).toMatchObject({
    previous_response_id: null,
    output: first.output,
  });
});

test.each<[string, string]>([
  ['levels', `{"input": "x", "metadata": ${'['.repeat(1_000)}${']'.repeat(1_000)}}`],
  ['lists', `{"input": "x", "metadata": [${'[],'.repeat(100_000)}[]]}`],
  ['fields', `{"input": "x", "metadata": {${'"a":1,'.repeat(100_000)}"a":1}}`],
])('a body with too many %s is refused before it is parsed', async (_name, body) => {
  const headers = { Authorization: `Bearer ${tenants.alice.key}`, 'Content-Type': 'application/json' };
  for (const [path, sent] of [
    ['responses', body],
    ['chat/completions', body.replace('{', '{"store": true, "messages": [], ')],
  ]) {
    const url = `${kept.url}/d/${slugOf('alice', 'chat')}/v1/${path}`;
    const response = await fetch(url, { method: 'POST', headers, body: sent });
    expect([response.status, await response.json()]).toMatchObject([400, { error: { code: 'invalid_json' } }]);
  }
  expect(replica.bodies).toEqual([]);
});

test('bodies above 1 MiB are forwarded while they arrive, and not kept', async () => {
  const client = kept.client('alice', PLACES[1][1]);
  const made = await create(client, { model: 'tiny', input: 'Hi', metadata: { a: 'b' }, x: 'y'.repeat(1_100_000) });
  expect(made.store).toBe(false);
  await expect(client.responses.retrieve(made.id)).rejects.toMatchObject({ status: 404 });
});

test.each([false, true])('an invalid request is judged by the replica (stream: %s)', async (stream) => {
  const client = kept.client('alice');
  for (const fields of [{ input: 5 }, { input: [5] }, { input: 'x', previous_response_id: 5 }, { input: [] }])
    await expect(create(client, { ...fields, stream })).rejects.toMatchObject({ status: 400 });
  await expect(create(client, { input: 'x', temperature: 7, stream })).rejects.toMatchObject({
    status: 400,
    param: 'temperature',
  });
  expect(readdirSync(join(kept.dataDir, 'responses'))).toEqual([]);
});

test('a response that cannot be stored is sent with store: false', async () => {
  const folder = join(kept.dataDir, 'responses');
  rmSync(folder, { recursive: true });
  writeFileSync(folder, 'no folder');
  const client = kept.client('alice');
  const made = await create(client, { input: 'Hi' });
  expect(made).toMatchObject({ store: false, status: 'completed' });
  expect(kept.log.error).toHaveBeenCalledWith(expect.anything(), 'cannot store a response');
  rmSync(folder);
  mkdirSync(folder);
  chmodSync(folder, 0o700);
});

test('no responses are kept with a limit of 0 bytes', async () => {
  const none = await startKept({ access, tenants, replica, options: { storedResponses: { maxBytes: 0, ttlMs: 1 } } });
  const made = await create(none.client('alice'), { input: 'Hi' });
  expect(made.store).toBe(false);
  await expect(none.client('alice').responses.retrieve(made.id)).rejects.toMatchObject({ status: 404 });
  await none.close();
});

test('the responses of a deleted owner are deleted, and no others', async () => {
  const { id } = await create(kept.client('alice'), { input: 'Hi' });
  await create(kept.client('bob'), { input: 'Hi' });
  await kept.close();
  const [alice] = [tenants.alice.ownerId];
  const { bob, lab } = tenants;
  kept = await startKept({
    access,
    tenants,
    replica,
    dataDir: kept.dataDir,
    options: { readOwners: () => Promise.resolve([alice, lab.ownerId]) },
  });
  expect(bob.ownerId).not.toBe(alice);
  const folder = join(kept.dataDir, 'responses');
  while (readdirSync(folder).length > 1) await new Promise(setImmediate);
  expect((await kept.client('alice').responses.retrieve(id)).id).toBe(id);
});
