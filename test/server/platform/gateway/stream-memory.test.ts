/** The memory of converted streams: a limit per owner, and what counts towards it. */
import { convertRequest } from 'capstan/internal';
import { HeldBytes } from '../../../../server/platform/gateway/held-bodies';
import { ResponseBody } from '../../../../server/platform/gateway/response-body';
import { receive } from '../../../../server/platform/gateway/upstreams/received';
import { StreamMemory } from '../../../../server/platform/gateway/upstreams/stream-memory';
import type { UsageReader } from '../../../../server/platform/gateway/usage-reader';
import { chunk } from './upstream-support';

const LIMIT = 64 * 1024;
let held: HeldBytes;
beforeEach(() => {
  held = new HeldBytes({ totalBytes: 4 * LIMIT, ownerBytes: LIMIT, what: 'converted streams are held' });
});

/** Opens a stream of a chat upstream for a client of the Responses interface. */
async function open(ownerId = 'usr_1'): Promise<UsageReader> {
  const body = Buffer.from(JSON.stringify({ model: 'm', input: 'Hi', stream: true }));
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
  const nothing = (): void => {};
  const { reader } = await receive(
    {
      status: 200,
      rawHeaders: ['Content-Type', 'text/event-stream'],
      body: new ResponseBody({ pause: nothing, resume: nothing, destroy: nothing }),
      connectMs: 0,
    },
    {
      route: 'responses',
      path: '/v1/responses',
      requestId: 'req',
      secret: '',
      isStream: true,
      converted: response,
      shownModel: 'm',
      stripsUsage: false,
      idleTimeoutMs: 1_000,
      memory: new StreamMemory(held, ownerId),
    },
  );
  if (reader === undefined) throw new Error('expected a reader');
  return reader;
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
