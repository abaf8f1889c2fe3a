/** A generation as a stream of text, as bytes and as a web response. */
import { Engine, type StreamFormat } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;
const user = [{ role: 'user' as const, content: 'Hi' }];

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

async function readAll(stream: ReadableStream<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

test('text() and textStream have the text of the first choice', async () => {
  fake.answer = (_prompt, _request, index) => ({ text: index === 0 ? 'Größe 😀' : 'other' });
  await expect(engine.generate('Say it').text()).resolves.toBe('Größe 😀');
  let text = '';
  for await (const piece of engine.generate('Say it', { n: 2 }).textStream) text += piece;
  expect(text).toBe('Größe 😀');
});

test('a second iteration is refused, because it would yield nothing', async () => {
  fake.answer = () => ({ text: 'once' });
  const generation = engine.generate('Say it');
  for await (const _ of generation.textStream);
  const again = async () => {
    for await (const _ of generation);
  };
  await expect(again()).rejects.toMatchObject({
    code: 'invalid_argument',
    message: expect.stringContaining('Use result() or text() for the whole answer'),
  });
  await expect(generation.text()).resolves.toBe('once');
});

test('leaving textStream aborts the call', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const generation = engine.generate('Say it');
  for await (const _ of generation.textStream) break;
  expect(generation.hasEnded).toBe(true);
  await expect(generation.result()).rejects.toMatchObject({ code: 'aborted' });
});

test.each<[StreamFormat, (text: string) => unknown[]]>([
  [
    'jsonl',
    (text) =>
      text
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
  ],
  [
    'sse',
    (text) => {
      expect(text).toMatch(/data: \[DONE\]\n\n$/);
      return text
        .split('\n\n')
        .slice(0, -2)
        .map((part) => JSON.parse(part.replace(/^data: /, '')));
    },
  ],
])('%s has the events', async (format, parse) => {
  fake.answer = () => ({ text: 'Hello' });
  const events = parse(await readAll(engine.chat(user).toReadableStream(format)));
  expect(events.at(-1)).toMatchObject({ type: 'finish', finishReason: 'stop' });
  expect(events[0]).toMatchObject({ type: 'delta', index: 0 });
});

test('text is the default format, in UTF-8', async () => {
  fake.answer = () => ({ text: 'Größe 😀' });
  await expect(readAll(engine.chat(user).toReadableStream())).resolves.toBe('Größe 😀');
});

test('an unknown format is refused', () => {
  expect(() => engine.chat(user).toReadableStream('xml' as never)).toThrow(
    /format: expected 'text', 'sse' or 'jsonl', got "xml"/,
  );
});

test('cancelling the stream aborts the call, also before its first event', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const generation = engine.chat(user);
  await generation.toReadableStream().cancel();
  await expect(generation.result()).rejects.toMatchObject({ code: 'aborted' });
});

test('a call that fails while it runs ends records with an error, and fails the text', async () => {
  fake.answer = () => ({ text: 'so far', reason: 'error', errorCode: 'numeric_error' });
  const records = await readAll(engine.chat(user).toReadableStream('jsonl'));
  const last: unknown = JSON.parse(records.trim().split('\n').at(-1)!);
  expect(last).toEqual({ type: 'error', code: 'internal_error', message: 'The call failed' });
  await expect(readAll(engine.chat(user).toReadableStream())).rejects.toMatchObject({ code: 'numeric_error' });
});

test('toResponse streams with the type of its format', async () => {
  fake.answer = () => ({ text: 'Hello' });
  const response = await engine.chat(user).toResponse({ headers: { 'x-model': 'tiny' } });
  expect(response.status).toBe(200);
  expect(Object.fromEntries(response.headers)).toEqual({
    'content-type': 'text/plain; charset=utf-8',
    'cache-control': 'no-cache',
    'x-model': 'tiny',
  });
  await expect(response.text()).resolves.toBe('Hello');
  const events = await engine.chat(user).toResponse({ format: 'sse' });
  expect(events.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
});

test('toResponse of a call that fails before it starts has a status and the error', async () => {
  const response = await engine.chat([]).toResponse();
  expect(response.status).toBe(400);
  await expect(response.json()).resolves.toEqual({
    error: {
      code: 'invalid_argument',
      message: expect.stringContaining('messages: expected an array of at least one message'),
    },
  });
});

test('signal, cacheSalt and requestId may be options; the third argument takes precedence', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const abort = new AbortController();
  const generation = engine.chat(
    user,
    { signal: abort.signal, cacheSalt: 'a', requestId: 'first' },
    { requestId: 'b' },
  );
  expect(generation.id).toBe('b');
  await generation.submitted;
  abort.abort();
  await expect(generation.result()).rejects.toMatchObject({ code: 'aborted' });
  expect(engine.generate('Say it', { requestId: 'c', maxTokens: 1 }).id).toBe('c');
});

test('an engine closes at the end of a block', async () => {
  const other = await Engine.load(tinyModel());
  await other[Symbol.asyncDispose]();
  expect(() => other.checkCapacity()).toThrow(expect.objectContaining({ code: 'engine_closed' }));
});
