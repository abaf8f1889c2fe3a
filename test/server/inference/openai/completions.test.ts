/** POST /v1/completions: response shapes of vLLM, all forms of prompts, scoring and streams. */
import type { Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { fake } from '../../../fakes/fake-addon';
import { errorOf, keysOf, loadEngine, log, makeApp, type MemoryReply, post } from './support';

let engine: Engine;
let app: App;

beforeAll(async () => {
  engine = await loadEngine();
  app = makeApp(engine);
});
beforeEach(() => {
  fake.reset();
  fake.answer = (prompt) => ({ text: prompt === 'b' ? 'BB' : 'xy' });
  jest.clearAllMocks();
});
afterAll(() => engine.close());

const send = (body: object): Promise<MemoryReply> => post(app, '/v1/completions', { prompt: 'hello', ...body });
const chunksOf = ({ events }: MemoryReply): any[] => events.slice(0, -1);

test('a response has the keys of vLLM, except those that are always null', async () => {
  const before = Math.floor(Date.now() / 1000);
  const reply = await send({ model: 'tiny' });
  expect(reply.headers).toMatchObject({
    'Content-Type': 'application/json',
    'X-Request-Id': expect.stringMatching(/^[0-9a-f]{32}$/) as string,
  });
  const { id, created, ...rest } = reply.json;
  expect(id).toBe(`cmpl-${reply.headers['X-Request-Id']}`);
  expect(created).toBeGreaterThanOrEqual(before);
  expect(created).toBeLessThanOrEqual(Date.now() / 1000);
  expect(keysOf(reply.json)).toBe('id object created model choices usage');
  expect(keysOf(reply.json.choices[0])).toBe('index text logprobs finish_reason stop_reason prompt_logprobs');
  expect(rest).toEqual({
    object: 'text_completion',
    model: 'tiny',
    choices: [
      { index: 0, text: 'xy', logprobs: null, finish_reason: 'stop', stop_reason: null, prompt_logprobs: null },
    ],
    usage: { prompt_tokens: 5, total_tokens: 7, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 0 } },
  });
});

test('generates 16 tokens by default', async () => {
  await send({});
  await send({ max_tokens: null });
  await send({ max_tokens: 3 });
  expect(fake.requests.map(({ sampling }) => sampling.maxTokens)).toEqual([16, 16, 3]);
});

describe('prompts', () => {
  test.each<[name: string, prompt: unknown, ids: number[][]]>([
    ['a text', 'ab', [[97, 98]]],
    ['texts', ['ab', 'c'], [[97, 98], [99]]],
    ['token ids', [97, 258], [[97, 258]]],
    ['lists of token ids', [[97], [98, 99]], [[97], [98, 99]]],
  ])('%s', async (_name, prompt, ids) => {
    const { json } = await send({ prompt });
    expect(fake.requests.map(({ promptTokenIds }) => [...promptTokenIds])).toEqual(ids);
    expect(json.choices.map(({ index }: { index: number }) => index)).toEqual(ids.map((_, i) => i));
    expect(json.usage.prompt_tokens).toBe(ids.flat().length);
  });

  test('several prompts with n number all choices', async () => {
    const { json } = await send({ prompt: ['a', 'b'], n: 2 });
    expect(json.choices.map(({ index, text }: { index: number; text: string }) => [index, text])).toEqual([
      [0, 'xy'],
      [1, 'xy'],
      [2, 'BB'],
      [3, 'BB'],
    ]);
    expect(json.usage).toEqual({
      prompt_tokens: 2,
      total_tokens: 10,
      completion_tokens: 8,
      prompt_tokens_details: { cached_tokens: 0 },
    });
  });

  test.each<[name: string, prompt: unknown, code: string]>([
    ['none', undefined, 'missing_required_parameter'],
    ['null', null, 'missing_required_parameter'],
    ['an empty text', '', 'invalid_value'],
    ['an empty list', [], 'invalid_value'],
    ['an empty text of several', ['a', ''], 'invalid_value'],
    ['an empty list of ids', [[]], 'invalid_value'],
    ['a number', 5, 'invalid_type'],
    ['an object', {}, 'invalid_type'],
    ['a mixture', ['a', 5], 'invalid_type'],
    ['ids and lists', [[1], 5], 'invalid_type'],
    ['a fraction', [1.5], 'invalid_type'],
    ['booleans', [true], 'invalid_type'],
    ['a negative id', [-1], 'invalid_value'],
    ['an id of no token', [99999], 'invalid_value'],
    ['deeper lists', [[[1]]], 'invalid_type'],
    ['more than anyone sends', Array(1025).fill('a'), 'invalid_value'],
    ['one that is too long', 'x'.repeat(5000), 'context_length_exceeded'],
  ])('refuses %s', async (_name, prompt, code) => {
    expect(errorOf(await send({ prompt }))).toEqual({
      status: 400,
      type: 'invalid_request_error',
      code,
      param: 'prompt',
    });
    expect(fake.requests).toHaveLength(0);
  });

  test('one invalid prompt ends all', async () => {
    expect((await send({ prompt: [[97], [99999]] })).status).toBe(400);
    await untilIdle();
  });
});

describe('log-probabilities', () => {
  test('of the completion have the keys of vLLM and text offsets', async () => {
    fake.answer = () => ({ text: 'é!a' });
    const { json } = await send({ logprobs: 2 });
    expect(keysOf(json.choices[0].logprobs)).toBe('text_offset token_logprobs tokens top_logprobs');
    expect(json.choices[0].logprobs).toEqual({
      text_offset: [0, 0, 1, 2],
      token_logprobs: [-0.5, -0.5, -0.5, -0.5],
      tokens: ['\ufffd', '\ufffd', '!', 'a'],
      top_logprobs: [
        { '\ufffd': -0.5, '\u0001': -1.5 },
        { '\ufffd': -0.5, '\u0001': -1.5 },
        { '!': -0.5, '\u0001': -1.5 },
        { a: -0.5, '\u0001': -1.5 },
      ],
    });
  });

  test('0 returns only the tokens themselves', async () => {
    expect((await send({ logprobs: 0 })).json.choices[0].logprobs.top_logprobs).toEqual([{ x: -0.5 }, { y: -0.5 }]);
  });

  test('echo includes the prompt, with null for its first token', async () => {
    const { json } = await send({ echo: true, logprobs: 1, max_tokens: 1 });
    expect(json.choices[0]).toEqual({
      index: 0,
      text: 'hellox',
      logprobs: {
        text_offset: [0, 1, 2, 3, 4, 5],
        token_logprobs: [null, -0.5, -0.5, -0.5, -0.5, -0.5],
        tokens: [...'hellox'],
        top_logprobs: [null, { e: -0.5 }, { l: -0.5 }, { l: -0.5 }, { o: -0.5 }, { x: -0.5 }],
      },
      finish_reason: 'length',
      stop_reason: null,
      prompt_logprobs: [
        null,
        ...[...'ello'].map((char) => ({ [char.charCodeAt(0)]: { logprob: -0.5, rank: 1, decoded_token: char } })),
      ],
    });
  });

  test('max_tokens 0 scores the prompt', async () => {
    const { json } = await send({ echo: true, logprobs: 1, max_tokens: 0 });
    expect(json.choices[0]).toMatchObject({
      text: 'hello',
      finish_reason: 'length',
      logprobs: { tokens: [...'hello'], token_logprobs: [null, -0.5, -0.5, -0.5, -0.5] },
    });
    expect(json.usage).toMatchObject({ prompt_tokens: 5, completion_tokens: 0, total_tokens: 5 });
    expect((await send({ max_tokens: 0, prompt_logprobs: 0 })).json.choices[0].prompt_logprobs).toHaveLength(5);
    expect(errorOf(await send({ max_tokens: 0 }))).toMatchObject({ code: 'invalid_value', param: 'max_tokens' });
  });

  test('echo returns the text of token ids', async () => {
    expect((await send({ prompt: [104, 105, 258], echo: true })).json.choices[0].text).toBe('hi<|im_end|>xy');
  });

  test('can spell tokens as ids and return token ids', async () => {
    const { json } = await send({ logprobs: 1, return_tokens_as_token_ids: true, return_token_ids: true });
    expect(json.choices[0]).toMatchObject({
      logprobs: { tokens: ['token_id:120', 'token_id:121'] },
      token_ids: [120, 121],
      prompt_token_ids: [104, 101, 108, 108, 111],
    });
  });

  test('prompt_logprobs without echo', async () => {
    const { json } = await send({ prompt_logprobs: 1 });
    expect([json.choices[0].text, json.choices[0].prompt_logprobs.length]).toEqual(['xy', 5]);
  });
});

describe('a stream', () => {
  test('ends with the last text, then the usage, then the terminator', async () => {
    const reply = await send({ stream: true, stream_options: { include_usage: true } });
    expect(reply.headers['Content-Type']).toBe('text/event-stream; charset=utf-8');
    const { id, created } = reply.events[0];
    const head = { id, object: 'text_completion', created, model: 'tiny' };
    expect(reply.events).toEqual([
      { ...head, choices: [{ index: 0, text: 'x', logprobs: null, finish_reason: null, stop_reason: null }] },
      { ...head, choices: [{ index: 0, text: 'y', logprobs: null, finish_reason: 'stop', stop_reason: null }] },
      {
        ...head,
        choices: [],
        usage: { prompt_tokens: 5, total_tokens: 7, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 0 } },
      },
      '[DONE]',
    ]);
    expect(keysOf(reply.events[0].choices[0])).toBe('index text logprobs finish_reason stop_reason');
  });

  test('interleaves several prompts with separate indices', async () => {
    const chunks = chunksOf(await send({ prompt: ['a', 'b'], n: 2, stream: true }));
    for (const [index, text] of [
      [0, 'xy'],
      [1, 'xy'],
      [2, 'BB'],
      [3, 'BB'],
    ]) {
      const own = chunks.map(({ choices }) => choices[0]).filter((choice) => choice.index === index);
      expect(own.map((choice) => choice.text).join('')).toBe(text);
      expect(own.map((choice) => choice.finish_reason).filter((reason) => reason !== null)).toEqual(['stop']);
    }
  });

  test('with echo and log-probabilities equals the response without streaming', async () => {
    fake.answer = () => ({ text: 'é!' });
    const body = { echo: true, logprobs: 1, return_token_ids: true };
    const whole = (await send(body)).json.choices[0];
    const parts = chunksOf(await send({ ...body, stream: true })).map(({ choices }) => choices[0]);
    expect(parts.map(({ text }) => text).join('')).toBe(whole.text);
    for (const key of Object.keys(whole.logprobs))
      expect(parts.flatMap(({ logprobs }) => logprobs?.[key] ?? [])).toEqual(whole.logprobs[key]);
    expect(parts.flatMap(({ token_ids: ids }) => ids)).toEqual(whole.token_ids);
    expect(parts[0].prompt_token_ids).toEqual(whole.prompt_token_ids);
  });

  test('sends usage in every chunk if requested', async () => {
    const chunks = chunksOf(
      await send({
        prompt: ['a', 'b'],
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
      }),
    );
    expect(chunks.every(({ usage }) => usage.prompt_tokens === 2)).toBe(true);
    expect(chunks.at(-1).usage.completion_tokens).toBe(4);
  });

  test('ends with one error if a prompt fails', async () => {
    fake.answer = (prompt) =>
      prompt === 'b'
        ? { text: 'so far', reason: 'error', errorCode: 'numeric_error' }
        : { text: 'and on '.repeat(1000), stepMs: 1 };
    const { events, state } = await send({ prompt: ['a', 'b'], stream: true, max_tokens: 4000 });
    expect(events.at(-2)).toEqual({
      error: {
        message: 'The server could not finish this request',
        type: 'server_error',
        param: null,
        code: 'internal_error',
      },
    });
    expect(events.filter((event) => event === '[DONE]' || event.error !== undefined)).toHaveLength(2);
    expect(state).toBe('ended');
    expect(log.error).toHaveBeenCalledTimes(1);
    await untilIdle();
  });

  test('aborts all prompts when the client disconnects', async () => {
    fake.answer = () => ({ text: 'a'.repeat(4000), stepMs: 1 });
    const controller = new AbortController();
    const sending = post(
      app,
      '/v1/completions',
      { prompt: ['a', 'b'], stream: true, max_tokens: 4000 },
      { signal: controller.signal },
    );
    while (fake.requests.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
    controller.abort();
    expect((await sending).text).not.toContain('error');
    expect(fake.aborted).toHaveLength(2);
  });
});

test('passes all sampling fields to the engine', async () => {
  await send({
    seed: 7,
    stop: 'x',
    top_k: 5,
    min_p: 0.1,
    ignore_eos: true,
    min_tokens: 1,
    bad_words: ['q'],
    structured_outputs: { choice: ['a'] },
    cache_salt: 's',
    request_id: 'r',
    temperature: 0.5,
    logit_bias: { 5: 1 },
    truncate_prompt_tokens: 3,
  });
  expect(fake.requests[0]).toMatchObject({
    cacheSalt: 's',
    promptTokenIds: new Int32Array([108, 108, 111]),
    sampling: {
      seed: 7n,
      stop: ['x'],
      topK: 5,
      ignoreEos: true,
      minTokens: 1,
      temperature: 0.5,
      logitBiasIds: new Int32Array([5]),
    },
    grammar: {},
  });
});

test('add_special_tokens false adds no special tokens', async () => {
  const generate = jest.spyOn(engine, 'generate');
  const tokenize = jest.spyOn(engine, 'tokenize');
  await send({ add_special_tokens: false });
  expect(generate).toHaveBeenCalledWith(
    'hello',
    expect.objectContaining({ addSpecialTokens: false }),
    expect.anything(),
  );
  // The engine's own tokenizing waits in its queue.
  expect(tokenize).not.toHaveBeenCalled();
  generate.mockRestore();
  tokenize.mockRestore();
});

test.each<[body: object, code: string, param: string]>([
  [{ suffix: 'x' }, 'unsupported_value', 'suffix'],
  [{ best_of: 2 }, 'unsupported_value', 'best_of'],
  [{ n: 2, best_of: 3 }, 'unsupported_value', 'best_of'],
  [{ prompt_embeds: 'x' }, 'unsupported_value', 'prompt_embeds'],
  [{ use_beam_search: true }, 'unsupported_value', 'use_beam_search'],
  [{ logprobs: 21 }, 'invalid_value', 'logprobs'],
  [{ logprobs: true }, 'invalid_type', 'logprobs'],
  [{ logprobs: -2 }, 'invalid_value', 'logprobs'],
  [{ max_tokens: -1 }, 'invalid_value', 'max_tokens'],
  [{ max_tokens: 5000 }, 'context_length_exceeded', 'max_tokens'],
  [{ echo: 1 }, 'invalid_type', 'echo'],
  [{ temperature: 3 }, 'invalid_value', 'temperature'],
  [{ n: 2, temperature: 0 }, 'invalid_value', 'n'],
  [{ stream_options: {} }, 'invalid_value', 'stream_options'],
  [{ stream: true, prompt_logprobs: 1 }, 'invalid_value', 'prompt_logprobs'],
  [{ response_format: { type: 'json_schema' } }, 'missing_required_parameter', 'response_format'],
  [{ guided_regex: '(' }, 'invalid_value', 'guided_regex'],
])('refuses %j', async (body, code, param) => {
  expect(errorOf(await send(body))).toEqual({ status: 400, type: 'invalid_request_error', code, param });
  expect(fake.requests).toHaveLength(0);
});

test.each([
  [{ suffix: 'x' }, 'suffix: expected "" or no value, got "x", which this version of the server does not support'],
  [
    { use_beam_search: true },
    'use_beam_search: expected false or no value, got true, which this version of the server does not support',
  ],
  [
    { stop_regex: ['a'] },
    'stop_regex: expected [] or no value, got ["a"], which this version of the server does not support',
  ],
  [
    { n: 2, best_of: 3 },
    'best_of: expected 1 or 2, the value of n, got 3. This server returns all choices that it generates.',
  ],
])('says what is supported in place of %j', async (body, message) => {
  expect((await send(body)).json).toMatchObject({ error: { message } });
});

test.each([
  { suffix: '' },
  { suffix: null },
  { best_of: 1 },
  { n: 2, best_of: 2 },
  { n: 2, best_of: 1 },
  { user: 5 },
  { model: '' },
])('%j passes', async (body) => {
  expect((await send(body)).status).toBe(200);
});

test('answers 404 for an unknown model', async () => {
  expect(errorOf(await send({ model: 'x' }))).toMatchObject({ status: 404, code: 'model_not_found', param: 'model' });
});

test('reports the tokens of all prompts to the key check', async () => {
  const done = jest.fn();
  await post(
    makeApp(engine, { access: { check: () => ({ ok: true, keyId: 'k', ownerId: 'o', done }) } }),
    '/v1/completions',
    { prompt: ['a', 'b'], stream: true },
  );
  expect(done.mock.calls[0]).toEqual([2 + 4]);
});

async function untilIdle(): Promise<void> {
  while (engine.stats().numRunning > 0) await new Promise((resolve) => setTimeout(resolve, 5));
}
