/** The memory of converted responses: a limit per owner, and what counts towards it. */
import { convertRequest } from 'capstan/internal';
import { HeldBytes } from '../../../../server/platform/gateway/held-bodies';
import { ResponseBody } from '../../../../server/platform/gateway/response-body';
import { type Received, receive } from '../../../../server/platform/gateway/upstreams/received';
import { ResponseMemory } from '../../../../server/platform/gateway/upstreams/response-memory';
import type { UsageReader } from '../../../../server/platform/gateway/usage-reader';
import { chunk } from './upstream-support';

const LIMIT = 64 * 1024;
let held: HeldBytes;
beforeEach(() => {
  held = new HeldBytes({ totalBytes: 4 * LIMIT, ownerBytes: LIMIT, what: 'converted responses are held' });
});

/** Receives the response of a chat upstream for a client of the Responses interface. */
async function received(stream: boolean, source: ResponseBody, ownerId: string): Promise<Received> {
  const body = Buffer.from(JSON.stringify({ model: 'm', input: 'Hi', stream }));
  const request = {
    method: 'POST',
    path: '/v1/responses',
    headers: [['content-type', 'application/json']],
    readBody: () => Promise.resolve(body),
  };
  const { response } = await convertRequest(request as never, {
    from: 'responses',
    to: 'chat',
    model: 'm',
    shownModel: 'm',
    isModern: false,
    requestId: 'req',
    signal: new AbortController().signal,
    log: { info: () => {} },
  });
  return receive(
    {
      status: 200,
      rawHeaders: ['Content-Type', stream ? 'text/event-stream' : 'application/json'],
      body: source,
      connectMs: 0,
    },
    {
      route: 'responses',
      path: '/v1/responses',
      requestId: 'req',
      secret: '',
      isStream: stream,
      converted: response,
      shownModel: 'm',
      stripsUsage: false,
      idleTimeoutMs: 1_000,
      memory: new ResponseMemory(held, ownerId),
    },
  );
}

function emptyBody(): ResponseBody {
  const nothing = (): void => {};
  return new ResponseBody({ pause: nothing, resume: nothing, destroy: nothing });
}

async function open(ownerId = 'usr_1'): Promise<UsageReader> {
  const { reader } = await received(true, emptyBody(), ownerId);
  if (reader === undefined) throw new Error('expected a reader');
  return reader;
}

/** Receives a whole response with a text of this length. */
function whole(length: number, ownerId = 'usr_1'): Promise<Received> {
  const body = emptyBody();
  const message = { role: 'assistant', content: 'a'.repeat(length) };
  body.push(Buffer.from(JSON.stringify({ choices: [{ message, finish_reason: 'stop' }] })));
  body.end();
  return received(false, body, ownerId);
}

const event = (delta: object): Buffer => Buffer.from(`data: ${JSON.stringify(chunk(delta))}\n\n`);
const text = (length: number): Buffer => event({ content: 'a'.repeat(length) });

test('the streams of an owner share a limit, and one that ends returns its share', async () => {
  const first = await open();
  expect(first.take(text(20_000)).toString()).toContain('response.output_text.delta');
  const second = await open();
  const refused = second.take(text(20_000)).toString();
  expect(refused).toContain('event: response.failed');
  expect(refused).toContain('"code":"queue_full"');
  expect(second.hasFailed).toBe(true);
  second.close?.();
  const other = await open('usr_2');
  other.take(text(20_000));
  expect(other.hasFailed).toBe(false);
  first.close?.();
  const third = await open();
  third.take(text(20_000));
  expect(third.hasFailed).toBe(false);
});

test.each<[string, Buffer]>([
  ['an event that does not end', Buffer.from(`data: ${'a'.repeat(40_000)}`)],
  ['many short items', Buffer.concat(Array.from({ length: 40 }, () => event({ content: 'a', reasoning: 'b' })))],
  ['many short events', Buffer.concat(Array.from({ length: 1_000 }, () => event({ content: 'a' })))],
])('%s counts', async (_what, piece) => {
  const stream = await open();
  expect(stream.take(piece).toString()).toContain('"code":"queue_full"');
  stream.close?.();
  expect(() => held.hold('usr_1', LIMIT)).not.toThrow();
});

test('whole responses share the limit of their owner until their clients have them', async () => {
  const first = await whole(20_000);
  const refused = { code: 'queue_full', spent: { numBytes: expect.any(Number) as number } };
  await expect(whole(50_000)).rejects.toMatchObject(refused);
  await expect(open().then((stream) => stream.take(text(30_000)).toString())).resolves.toContain('"queue_full"');
  const other = await whole(50_000, 'usr_2');
  other.reader?.close?.();
  first.reader?.close?.();
  expect((await whole(50_000)).reader).toBeDefined();
});

test('a whole response that cannot be converted holds nothing', async () => {
  const body = emptyBody();
  body.push(Buffer.from(`{"choices": [], "padding": "${'a'.repeat(50_000)}"}`));
  body.end();
  await expect(received(false, body, 'usr_1')).rejects.toMatchObject({ code: 'upstream_unavailable' });
  expect(() => held.hold('usr_1', LIMIT)).not.toThrow();
});
