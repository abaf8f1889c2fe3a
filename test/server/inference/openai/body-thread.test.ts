/** A body that is parsed in the thread becomes the same call as one that is parsed by the caller. */
import { join } from 'node:path';
import { isSharedArrayBuffer } from 'node:util/types';
import { Worker } from 'node:worker_threads';
import { ApiError } from '../../../../server/base/errors';
import { type Calls, compact, parseBody } from '../../../../server/inference/openai/parse-body';
import { openBodyThread } from '../../../../server/inference/openai/read-call';
import { DEFAULT_SETTINGS } from '../../../../server/inference/settings';

const REGISTER = join(__dirname, '../../../oracle/register-ts.cjs');
const THREAD = join(__dirname, '../../../../server/inference/openai/body-thread.ts');
const LIMITS = { settings: DEFAULT_SETTINGS, vocabSize: 272, maxModelLen: 2_048 };
const MESSAGES = [{ role: 'user', content: [{ type: 'text', text: 'ü' }] }];
const TOOL = { type: 'function', function: { name: 'f', parameters: { type: 'object' } } };

const workers: Worker[] = [];
const thread = openBodyThread(() => {
  const worker = new Worker(`require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(THREAD)});`, {
    eval: true,
  });
  workers.push(worker);
  return worker;
})!;

afterAll(() => Promise.all(workers.map((worker) => worker.terminate())));

const inThread = (kind: keyof Calls, body: Buffer) => thread.call(kind, [body, LIMITS]);
const bytes = (body: unknown) => Buffer.from(JSON.stringify(body));

test.each<[keyof Calls, object]>([
  ['chat', { messages: MESSAGES, tools: [TOOL], stop: ['a'], logit_bias: { 7: 1 }, stream: true }],
  ['chat', { messages: MESSAGES, response_format: { type: 'json_schema', json_schema: { name: 'n', schema: {} } } }],
  ['completion', { prompt: ['a', 'b'], n: 2 }],
  ['completion', { prompt: [1, 2, 3] }],
  ['completion', { prompt: [[1], [2, 2 ** 40]] }],
  ['tokenize', { messages: MESSAGES }],
  ['tokenize', { prompt: 'abc', return_token_strs: true }],
  ['detokenize', { tokens: [1, 2] }],
  ['embedding', { input: ['a', 'b'], dimensions: 2, encoding_format: 'base64' }],
  ['embedding', { input: [[1], [2, 2 ** 40]] }],
  ['rerank', { query: 'a', documents: ['b', { text: 'c' }], top_n: 1 }],
  ['score', { text_1: 'a', text_2: ['b', 'c'] }],
])('%s %j', async (kind, body) => {
  const here = compact(kind, await parseBody(kind, bytes(body), LIMITS));
  // A copied value has no undefined functions or classes, so it must equal the original.
  expect(await inThread(kind, bytes(body))).toEqual(here);
});

test('a large seed keeps its digits, messages are JSON text in shared memory and token ids are a typed array', async () => {
  const chat = Buffer.from(`{"messages": ${JSON.stringify(MESSAGES)}, "seed": 9223372036854775807}`);
  const call = (await inThread('chat', chat)) as Calls['chat'];
  expect(call.options.seed).toBe(9223372036854775807n);
  const { json } = call.messages as { json: Uint8Array };
  expect(isSharedArrayBuffer(json.buffer)).toBe(true);
  expect(JSON.parse(Buffer.from(json.buffer).toString())).toEqual([
    { role: 'user', content: [{ type: 'text', text: 'ü' }] },
  ]);
  const { prompts } = (await inThread('completion', bytes({ prompt: [1, 2] }))) as Calls['completion'];
  expect(prompts).toEqual([Int32Array.of(1, 2)]);
});

test.each<[string, Buffer, object]>([
  ['invalid JSON', Buffer.from('{'), { code: 'invalid_json', param: null }],
  ['an invalid field', bytes({ messages: MESSAGES, top_p: 7 }), { code: 'invalid_value', param: 'top_p', status: 400 }],
  [
    'too many values in a schema',
    bytes({
      messages: MESSAGES,
      tools: [{ ...TOOL, function: { name: 'f', parameters: { x: Array(70_000).fill(1) } } }],
    }),
    { code: 'invalid_value', param: 'tools[0].function.parameters' },
  ],
])('refuses %s with the same error', async (_name, body, expected) => {
  const error = await inThread('chat', body).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(ApiError);
  expect(error).toMatchObject(expected);
  expect((error as Error).message).toBe(
    await parseBody('chat', body, LIMITS).then(
      () => '',
      ({ message }: Error) => message,
    ),
  );
});

test('a thread that dies fails its calls, and the next call starts another', async () => {
  const open = inThread('tokenize', bytes({ prompt: 'x'.repeat(2 ** 22) }));
  await workers.at(-1)!.terminate();
  await expect(open).rejects.toMatchObject({ code: 'internal_error' });
  expect(await inThread('detokenize', bytes({ tokens: [3] }))).toEqual({
    model: undefined,
    tokens: Int32Array.of(3),
  });
});
