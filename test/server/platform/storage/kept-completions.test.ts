/** What is stored of the chat completions of a replica, and what of them its client gets. */
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import { CompletionKeeper } from '../../../../server/platform/storage/completion-keeper';
import { CompletionParts } from '../../../../server/platform/storage/completion-parts';
import { MemoryReply } from '../../../fakes/memory-exchange';

const EVENTS = { 'Content-Type': 'text/event-stream' };
const JSON_TYPE = { 'Content-Type': 'application/json' };
const END = { index: 0, delta: {}, finish_reason: 'stop' };
const DONE = 'data: [DONE]\n\n';
const TOO_DEEP = `${'['.repeat(20_000)}${']'.repeat(20_000)}`;

const event = (data: object): string => `data: ${JSON.stringify(data)}\n\n`;
const chunk = (...choices: object[]): object => ({ id: 'x', object: 'chat.completion.chunk', choices });

async function keeping(fields: object = {}) {
  const store = new MemoryResponseStore({ maxBytes: 1 << 26, ttlMs: 60_000 });
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const reply = new MemoryReply();
  const body = { model: 'a', messages: [], store: true, stream: true, ...fields };
  const kept = await new CompletionKeeper(store, log as never).prepare(
    { ownerId: 'own_1', requestId: 'req_1', deploymentId: 'dep_1', reach: null, kind: 'completion' },
    Buffer.from(JSON.stringify(body)),
    reply,
  );
  if (kept === undefined) throw new Error('expected a request that is kept');
  const stored = async (): Promise<any[]> => {
    const texts = await Promise.all((await store.ids('own_1')).map((id) => store.peek('own_1', id)));
    return texts.map((text) => (JSON.parse(text!) as { completion: unknown }).completion);
  };
  return { kept, reply, log, stored };
}

/** Returns what is stored of a stream. */
async function storedOf(...events: string[]) {
  const { kept, stored, reply, log } = await keeping();
  const stream = kept.reply.stream(200, EVENTS);
  for (const one of events) stream.write(one);
  stream.end();
  await kept.settled();
  return { completions: await stored(), text: reply.text, warnings: log.warn.mock.calls.length };
}

test.each([
  ['before its end', (deep: string) => [deep, event(chunk(END)), DONE], 0],
  ['while it is stored', (deep: string) => [event(chunk(END)), DONE, deep], 1],
])('a deeply nested event %s passes unchanged', async (_name, eventsOf, numStored) => {
  const deep = `data: {"choices": [{"index": 0, "delta": {"content": ${TOO_DEEP}}}]}\n\n`;
  const { completions, text } = await storedOf(...eventsOf(deep));
  expect(text).toContain(deep);
  expect(completions).toHaveLength(numStored);
});

test('a deeply nested response passes unchanged', async () => {
  const { kept, reply } = await keeping();
  const body = `{"object": "chat.completion", "choices": [${TOO_DEEP}]}`;
  kept.reply.send(200, JSON_TYPE, body);
  await kept.settled();
  expect(reply.text.toString()).toBe(body);
});

test.each<[string, () => string]>([
  ['that is too long', () => event(chunk({ index: 0, delta: { content: 'x'.repeat(17 << 20) } }))],
  ['that is no JSON', () => 'data: {"choices": [\n\n'],
  ['that is no object', () => 'data: 5\n\n'],
  ['of too many fields', () => event({ ...chunk(), list: Array.from({ length: 250_001 }, () => ({ a: 1 })) })],
])('a stream with an event %s is not stored', async (_name, lost) => {
  const { completions, warnings } = await storedOf(
    event(chunk({ index: 0, delta: { content: 'A' } })),
    lost(),
    event(chunk(END)),
    DONE,
  );
  expect([completions, warnings]).toEqual([[], 1]);
});

test('an event that is too long and arrives in pieces breaks a stream', async () => {
  const { kept, stored } = await keeping();
  const stream = kept.reply.stream(200, EVENTS);
  stream.write(event(chunk({ index: 0, delta: { content: 'A' } })));
  stream.write('data: ');
  for (let i = 0; i < 17; i++) stream.write('x'.repeat(1 << 20));
  for (const one of ['\n\n', event(chunk(END)), DONE]) stream.write(one);
  stream.end();
  await kept.settled();
  expect(await stored()).toEqual([]);
});

test('comments are no part of a completion, and the first end of a stream counts', async () => {
  const { completions, text } = await storedOf(': ping\n\n', event(chunk(END)), DONE, event(chunk(END)), DONE);
  expect(completions).toHaveLength(1);
  expect(text.match(/\[DONE\]/g)).toHaveLength(2);
});

test('a whole completion that is sent as an event is stored with its message', async () => {
  const message = { role: 'assistant', content: 'Hello', tool_calls: [{ id: 'call_1', type: 'function' }] };
  const whole = { object: 'chat.completion', choices: [{ index: 0, message, finish_reason: 'stop' }] };
  const { completions } = await storedOf(': ping\n\n', event(whole), DONE);
  expect(completions).toMatchObject([{ object: 'chat.completion', choices: [{ message }] }]);
});

test('a stream is stored in the form of a response without a stream', async () => {
  const call = { index: 0, id: 'call_1', function: { name: 'f', arguments: '{' } };
  const { completions } = await storedOf(
    event(chunk({ index: 1, delta: { content: 'second' } })),
    event(chunk({ index: 0, delta: { tool_calls: [call] } })),
    event(chunk({ index: 0, delta: { tool_calls: [{ index: 0, function: { arguments: '}' } }] } })),
    event(chunk({ ...END, index: 1 }, END)),
    DONE,
  );
  const called = { id: 'call_1', function: { name: 'f', arguments: '{}' } };
  expect(completions).toMatchObject([
    {
      object: 'chat.completion',
      prompt_logprobs: null,
      choices: [
        { index: 0, logprobs: null, message: { role: 'assistant', content: null, tool_calls: [called] } },
        { index: 1, logprobs: null, message: { role: 'assistant', content: 'second' } },
      ],
    },
  ]);
  expect(completions[0].choices[0].message.tool_calls).toEqual([called]);
});

describe('the parts of a completion', () => {
  const take = (parts: CompletionParts, value: Record<string, unknown>) => parts.take(value, 1);
  const range = (length: number, itemOf: (i: number) => unknown) => Array.from({ length }, (_, i) => itemOf(i));

  test('are fields that completions have', () => {
    const parts = new CompletionParts();
    take(parts, { id: 'x', model: 'a', extra: 1, choices: [END] });
    expect(parts.completion()).toMatchObject({ id: 'x', model: 'a' });
    expect(parts.completion()).not.toHaveProperty('extra');
  });

  test.each<[string, Record<string, unknown>]>([
    ['choices', { choices: range(129, (index) => ({ ...END, index })) }],
    ['calls', { choices: [{ ...END, delta: { tool_calls: range(1025, (index) => ({ index, id: String(index) })) } }] }],
    ['values', { choices: [{ ...END, delta: { list: range(500_001, () => 1) } }] }],
    ['values of the prompt', { choices: [END], prompt_token_ids: range(500_001, () => 1) }],
  ])('are not stored with too many %s', (_name, value) => {
    const parts = new CompletionParts();
    take(parts, value);
    take(parts, { choices: [END] });
    expect(parts.completion()).toBeUndefined();
  });

  test('are stored up to the limits', () => {
    const parts = new CompletionParts();
    take(parts, { choices: range(128, (index) => ({ ...END, index })) });
    take(parts, { choices: [{ ...END, delta: { tool_calls: range(1024, (index) => ({ index, id: 'a' })) } }] });
    expect(parts.completion()?.choices).toHaveLength(128);
  });
});

test('a client that does not ask for the usage gets none', async () => {
  const usage = { total_tokens: 1 };
  const { text } = await storedOf(event({ ...chunk(END), usage: null }), event({ ...chunk(), usage }), DONE);
  expect(text).not.toContain('usage');
});

test('a client that asks for the usage gets it', async () => {
  const { kept, reply } = await keeping({ stream_options: { include_usage: true } });
  const stream = kept.reply.stream(200, EVENTS);
  stream.write(event({ ...chunk(END), usage: null }));
  stream.write(event({ ...chunk(), usage: { total_tokens: 1 } }));
  stream.end();
  await kept.settled();
  expect(reply.events.map((one: { usage: unknown }) => one.usage)).toEqual([null, { total_tokens: 1 }]);
});

test('a response without the name of its type is stored', async () => {
  const { kept, stored } = await keeping({ stream: false });
  const choices = [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }];
  kept.reply.send(200, JSON_TYPE, JSON.stringify({ id: 'x', choices }));
  await kept.settled();
  expect(await stored()).toMatchObject([{ object: 'chat.completion', choices }]);
});

test.each<[string, boolean]>([
  ['{"store": true, "messages": []}', true],
  ['{"messages": [], "store" :\n true}', true],
  ['{"store": false, "messages": [], "store": true}', true],
  ['{"store": true, "messages": [], "store": false}', false],
  ['{"store": "true", "messages": []}', false],
  ['{"messages": [], "inner": {"store": true}}', false],
  ['{"messages": [{"content": "\\"store\\": true"}]}', false],
  ['{"store": true, "messages": [', false],
  ['{"\\x": 1, "store": true}', false],
])('whether a completion is kept: %s', async (body, isKept) => {
  const store = new MemoryResponseStore({ maxBytes: 1 << 26, ttlMs: 60_000 });
  const kept = await new CompletionKeeper(store, {} as never).prepare(
    { ownerId: 'own_1', requestId: 'req_1', deploymentId: 'dep_1', reach: null, kind: 'completion' },
    Buffer.from(body),
    new MemoryReply(),
  );
  expect(kept !== undefined).toBe(isKept);
});
