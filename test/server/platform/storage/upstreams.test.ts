/** Responses and batches that the service keeps, where servers elsewhere answer. */
import type { RequestListener } from 'node:http';
import type { Access } from '../../../../server/access';
import { BACKENDS } from '../../access/support';
import { chatLine, readResults, startBatch, until, upload } from '../../inference/batches/support';
import { closeAll } from '../gateway/support';
import { chunk, DONE, listen, sendEvents, sendJson, upstream, withBody } from '../gateway/upstream-support';
import { builtinTarget, type Kept, openTenants, slugOf, startKept, type Tenant } from './support';

type Body = Record<string, unknown>;
type Interfaces = readonly ('chat' | 'responses')[];

let access: Access;
let tenants: Record<'alice' | 'bob' | 'lab', Tenant>;
let kept: Kept | undefined;
const bodies: Body[] = [];
const NO_REPLICA = { port: 1, bodies: [], close: () => Promise.resolve() };

beforeAll(async () => {
  ({ access, tenants } = await openTenants(await BACKENDS[0].make()));
});
beforeEach(() => void bodies.splice(0));
afterEach(async () => {
  await kept?.close();
  await closeAll();
});
afterAll(async () => {
  await access.close();
  await BACKENDS[0].dispose();
});

async function start(listener: RequestListener, interfaces: Interfaces): Promise<Kept> {
  kept = await startKept({ access, tenants, replica: NO_REPLICA, gateway: { allowsPrivateUpstreams: true } });
  const replicas = [upstream(await listen(listener), { model: 'large', interfaces })];
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica: NO_REPLICA }, { replicas, aliases: ['also'] }));
  return kept;
}

const usage = { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 };

/** Numbers its answers. */
const chatServer = withBody((body, response) => {
  bodies.push(body);
  const content = `answer ${bodies.length}`;
  if (body.stream !== true)
    return sendJson(response, {
      id: 'chatcmpl-1',
      object: 'chat.completion',
      model: 'large-2026',
      choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
      usage,
    });
  sendEvents(response, chunk({ content }), chunk({}, { finish_reason: 'stop' }));
  sendEvents(response, { id: 'chatcmpl-1', model: 'large-2026', choices: [], usage }, DONE);
  response.end();
});

const responsesServer = withBody((body, response) => {
  bodies.push(body);
  const message = {
    type: 'message',
    id: `msg_${bodies.length}`,
    role: 'assistant',
    status: 'completed',
    content: [{ type: 'output_text', text: `answer ${bodies.length}`, annotations: [] }],
  };
  const made = {
    id: `resp_${bodies.length}`,
    object: 'response',
    created_at: 1,
    model: 'large-2026',
    status: 'completed',
    store: false,
    output: [message],
    usage: { input_tokens: 7, output_tokens: 3, total_tokens: 10 },
  };
  if (body.stream !== true) return sendJson(response, made);
  for (const type of ['response.created', 'response.completed'])
    sendEvents(response, `event: ${type}\ndata: ${JSON.stringify({ type, response: made })}\n\n`);
  response.end();
});

describe.each([
  ['chat completions', chatServer, ['chat']],
  ['responses', responsesServer, ['chat', 'responses']],
] as [string, RequestListener, Interfaces][])('an upstream with %s', (_name, server, interfaces) => {
  test('its responses are kept, and conversations continue with them', async () => {
    const client = (await start(server, interfaces)).client('alice');
    const first = await client.responses.create({ model: 'chat', input: 'one' });
    expect(first).toMatchObject({ store: true, model: 'chat', output_text: 'answer 1' });
    expect(await client.responses.retrieve(first.id)).toMatchObject({ id: first.id, output_text: 'answer 1' });
    const stream = client.responses.stream({ model: 'also', input: 'two', previous_response_id: first.id });
    const second = await stream.finalResponse();
    expect(second).toMatchObject({ store: true, model: 'also', previous_response_id: first.id });
    const third = await client.responses.create({ model: 'chat', input: 'three', previous_response_id: second.id });
    expect(third.output_text).toBe('answer 3');
    const said = (bodies[2].messages ?? bodies[2].input) as {
      role: string;
      content: string | { text: string }[];
    }[];
    expect(said.map(({ role, content }) => [role, typeof content === 'string' ? content : content[0].text])).toEqual([
      ['user', 'one'],
      ['assistant', 'answer 1'],
      ['user', 'two'],
      ['assistant', 'answer 2'],
      ['user', 'three'],
    ]);
    expect(JSON.stringify(bodies)).not.toMatch(/resp_|msg_/);
    expect(bodies.map(({ model }) => model)).toEqual(['large', 'large', 'large']);
    await client.responses.delete(second.id);
    await expect(client.responses.retrieve(second.id)).rejects.toMatchObject({ status: 404 });
  });

  test('lines of batches reach it, and their responses are kept', async () => {
    const client = (await start(server, interfaces)).client('alice');
    const { id } = await upload(client, [
      { custom_id: 'a', method: 'POST', url: '/v1/responses', body: { model: 'chat', input: 'Hi' } },
      { custom_id: 'b', method: 'POST', url: '/v1/responses', body: { model: 'chat', input: 'Hi', background: true } },
    ]);
    const order = { input_file_id: id, endpoint: '/v1/responses', completion_window: '24h' } as const;
    const batch = await until(client, await client.batches.create(order), 'completed');
    const [{ response }] = await readResults(client, batch.output_file_id);
    expect(await client.responses.retrieve(response.body.id)).toMatchObject({ store: true, model: 'chat' });
    expect(await readResults(client, batch.error_file_id)).toMatchObject([
      { custom_id: 'b', response: { status_code: 400 } },
    ]);
  });
});

test('at its own URL, its responses and batches are kept too', async () => {
  const running = await start(chatServer, ['chat']);
  const client = running.client('alice', `/d/${slugOf('alice', 'chat')}`);
  const first = await client.responses.create({ model: 'any', input: 'one' });
  const second = await client.responses.create({ model: 'any', input: 'two', previous_response_id: first.id });
  expect(second).toMatchObject({ store: true, output_text: 'answer 2' });
  expect(bodies[1].messages).toMatchObject([
    { content: 'one' },
    { content: [{ text: 'answer 1' }] },
    { content: 'two' },
  ]);
  const batch = await until(client, await startBatch(client, [chatLine('a', 'Hi', { model: 'any' })]), 'completed');
  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
});

test('items with the ids of the service can be named, and those with the ids of another server cannot', async () => {
  const item = async (server: RequestListener, interfaces: Interfaces) => {
    const client = (await start(server, interfaces)).client('alice');
    const { output } = await client.responses.create({ model: 'chat', input: 'one' });
    const input = [{ type: 'item_reference' as const, id: output[0].id! }];
    const next = await client.responses.create({ model: 'chat', input }).catch((error: unknown) => error);
    await kept?.close();
    kept = undefined;
    return next;
  };
  expect(await item(chatServer, ['chat'])).toMatchObject({ output_text: 'answer 2' });
  expect(await item(responsesServer, ['chat', 'responses'])).toMatchObject({ status: 404, code: 'response_not_found' });
});

test('lines of a batch of chat completions reach an upstream, and its errors are results', async () => {
  const running = await start(
    withBody((body, response) => {
      bodies.push(body);
      if (JSON.stringify(body).includes('boom'))
        return sendJson(response, { error: { message: 'Bad.', code: 'content_policy' } }, 400);
      const message = { role: 'assistant', content: 'Hello' };
      sendJson(response, { object: 'chat.completion', model: 'x', choices: [{ index: 0, message }], usage });
    }),
    ['chat'],
  );
  const client = running.client('alice');
  const lines = [chatLine('a', 'Hi', { model: 'chat' }), chatLine('b', 'boom', { model: 'also' })];
  const batch = await until(client, await startBatch(client, lines), 'completed');
  expect(batch.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
  expect(await readResults(client, batch.output_file_id)).toMatchObject([
    {
      custom_id: 'a',
      response: { status_code: 200, body: { model: 'chat', choices: [{ message: { content: 'Hello' } }] } },
    },
  ]);
  expect(await readResults(client, batch.error_file_id)).toMatchObject([
    { custom_id: 'b', response: { status_code: 400, body: { error: { message: 'Bad.' } } } },
  ]);
  expect(running.records.filter(({ status }) => status === 200)).toMatchObject([
    { deploymentId: tenants.alice.chat.id, usage: { promptTokens: 7, completionTokens: 3 } },
  ]);
});
