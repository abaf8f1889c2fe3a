/** The thread that renders and tokenizes gives what the same work gives in the calling thread. */
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { type OpenText, openText } from '../../../ts/text/text-client';
import type { TextServiceOptions } from '../../../ts/text/text-service';
import { tinyModel } from '../../fakes/tiny-model';

const REGISTER = join(__dirname, '../../oracle/register-ts.cjs');
const THREAD = join(__dirname, '../../../ts/text/text-thread.ts');
const MESSAGES = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: [{ type: 'text', text: 'Hi' }] },
] as const;

const workers: Worker[] = [];
let thread: OpenText;
let here: OpenText;

function createThread(options: TextServiceOptions): Worker {
  const source = `require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(THREAD)});`;
  const worker = new Worker(source, { eval: true, workerData: options });
  workers.push(worker);
  return worker;
}

function optionsOf(modelDir: string): TextServiceOptions {
  return { modelPath: modelDir, toolCallFormat: 'auto', reasoningFormat: 'auto' };
}

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  const options = optionsOf(tinyModel());
  [thread, here] = await Promise.all([openText(options, createThread), openText(options)]);
});
afterAll(() => thread.close());

test('loads the same table and traits', () => {
  expect(thread.traits).toEqual(here.traits);
  expect(thread.traits.toolCallFormat).toBe('hermes');
});

test('encodes and renders the same', async () => {
  const conversation = { messages: MESSAGES, templateKwargs: { enable_thinking: false } };
  const options = { addSpecialTokens: false };
  expect(await thread.encode('some text', options)).toEqual(await here.encode('some text', options));
  expect(await thread.encodeTexts(['a', ' b'])).toEqual(await here.encodeTexts(['a', ' b']));
  expect(await thread.render(conversation)).toBe(await here.render(conversation));
  expect(await thread.encodeChat(conversation, options)).toEqual(await here.encodeChat(conversation, options));
});

test('accepts the JSON text of the messages', async () => {
  const json = JSON.stringify(MESSAGES);
  const expected = await here.render({ messages: MESSAGES });
  expect(await thread.render({ messages: { json } })).toBe(expected);
  expect(await thread.render({ messages: { json: new TextEncoder().encode(json) } })).toBe(expected);
});

test.each<[string, Parameters<OpenText['encodeChat']>, object]>([
  [
    'an unknown role',
    [{ messages: [{ role: 'pirate' as never, content: '' }] }, { addSpecialTokens: false }],
    { code: 'invalid_argument', param: 'messages[0].role', received: '"pirate"' },
  ],
  [
    'more messages than tokens in the context, before they are rendered',
    [{ messages: Array.from({ length: 9 }, () => MESSAGES[0]) }, { addSpecialTokens: false, maxModelLen: 8 }],
    { code: 'context_length_exceeded', received: '9' },
  ],
  [
    'more text than the context holds, before it is rendered',
    [{ messages: [{ role: 'user', content: 'x'.repeat(200) }] }, { addSpecialTokens: false, maxModelLen: 8 }],
    { code: 'context_length_exceeded', received: '200 bytes' },
  ],
  [
    'a value that cannot be copied',
    [{ messages: MESSAGES, templateKwargs: { now: () => 1 } }, { addSpecialTokens: false }],
    { code: 'invalid_argument', message: expect.stringContaining('copied to a thread') as string },
  ],
])('refuses %s', async (_name, args, expected) => {
  await expect(thread.encodeChat(...args)).rejects.toMatchObject(expected);
});

test('skips work whose caller has left', async () => {
  const left = new AbortController();
  const render = jest.fn();
  const long = thread.encode('x'.repeat(2 ** 20), { addSpecialTokens: false }).then(render);
  const waiting = thread.encode('y', { addSpecialTokens: false }, left.signal);
  left.abort('gone');
  await expect(waiting).rejects.toMatchObject({ code: 'aborted', cause: 'gone' });
  await expect(thread.encode('z', { addSpecialTokens: false }, left.signal)).rejects.toMatchObject({ code: 'aborted' });
  await long;
});

test('a thread that dies fails its calls, and the next call starts another', async () => {
  const open = thread.encode('x'.repeat(2 ** 20), { addSpecialTokens: false });
  await workers.at(-1)!.terminate();
  await expect(open).rejects.toMatchObject({ code: 'internal_error', message: 'The text thread exited' });
  expect(await thread.encode('a', { addSpecialTokens: false })).toEqual(Int32Array.of(97));
});

test('reports a model that does not load', async () => {
  const broken = optionsOf(tinyModel({ 'tokenizer.json': { model: {} } }));
  await expect(openText(broken, createThread)).rejects.toMatchObject({ code: 'invalid_model' });
});

test('closing ends open calls', async () => {
  const other = await openText(optionsOf(tinyModel()), createThread);
  const open = other.encode('x'.repeat(2 ** 20), { addSpecialTokens: false });
  const closing = other.close();
  await expect(open).rejects.toMatchObject({ code: 'engine_closed' });
  await closing;
  await expect(other.render({ messages: MESSAGES })).rejects.toMatchObject({ code: 'engine_closed' });
});
