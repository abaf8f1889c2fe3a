/** POST /v1/embeddings: forms of input, encodings, limits, errors, and what all routes share. */
import { CapstanError, type Engine } from '../../../../ts';
import { ApiError } from '../../../../server/base/errors';
import type { App } from '../../../../server/inference/app';
import { MAX_FLOAT_VALUES } from '../../../../server/inference/openai/embedding-response';
import { MAX_INPUTS } from '../../../../server/inference/openai/pooling-schema';
import { EMBEDDING_SIZE, loadPoolingEngine, pooling } from '../../../fakes/pooling-engine';
import { errorOf, keysOf, loadEngine, log, makeApp, type MemoryReply, post } from './support';

const PATH = '/v1/embeddings';

let engine: Engine;
let app: App;

beforeAll(async () => {
  engine = await loadPoolingEngine('embed', { maxModelLen: 512 });
  app = makeApp(engine);
});
beforeEach(() => {
  pooling.reset();
  jest.clearAllMocks();
});
afterAll(() => engine.close());

const send = (body: object): Promise<MemoryReply> => post(app, PATH, { input: 'hello', ...body });
const vectorsOf = ({ json }: MemoryReply): number[][] => json.data.map((item: any) => item.embedding);

test('a response has the keys of vLLM', async () => {
  const reply = await send({ model: 'alias', user: 'ada' });
  expect(reply.headers).toMatchObject({ 'Content-Type': 'application/json' });
  const { id, created, data, ...rest } = reply.json;
  expect(keysOf(reply.json)).toBe('id object created model data usage');
  expect(id).toBe(`embd-${reply.headers['X-Request-Id']}`);
  expect(Math.abs(created - Date.now() / 1000)).toBeLessThan(5);
  expect(data).toEqual([{ object: 'embedding', index: 0, embedding: expect.any(Array) }]);
  expect(data[0].embedding).toHaveLength(EMBEDDING_SIZE);
  expect(rest).toEqual({
    object: 'list',
    model: 'alias',
    usage: { prompt_tokens: 5, total_tokens: 5, completion_tokens: 0, prompt_tokens_details: null },
  });
});

describe('inputs', () => {
  test.each<[name: string, input: unknown, received: unknown, tokens: number]>([
    ['a text', 'ab', ['ab'], 2],
    ['texts', ['ab', 'c'], ['ab', 'c'], 3],
    ['token ids', [97, 258], [[97, 258]], 2],
    ['lists of token ids', [[97], [98, 99]], [[97], [98, 99]], 3],
    ['as many as OpenAI takes', Array(MAX_INPUTS).fill('a'), Array(MAX_INPUTS).fill('a'), MAX_INPUTS],
  ])('%s', async (_name, input, received, tokens) => {
    const reply = await send({ input });
    expect(reply.status).toBe(200);
    expect(pooling.requests.map(({ method, inputs }) => [method, inputs])).toEqual([['embed', received]]);
    expect(reply.json.data.map(({ index }: { index: number }) => index)).toEqual(
      (received as unknown[]).map((_, i) => i),
    );
    expect(reply.json.usage.prompt_tokens).toBe(tokens);
  });

  test.each<[name: string, input: unknown, code: string]>([
    ['none', undefined, 'missing_required_parameter'],
    ['null', null, 'missing_required_parameter'],
    ['an empty text', '', 'invalid_value'],
    ['an empty list', [], 'invalid_value'],
    ['an empty text of several', ['a', ''], 'invalid_value'],
    ['an empty list of ids', [[]], 'invalid_value'],
    ['a number', 5, 'invalid_type'],
    ['an object', { text: 'a' }, 'invalid_type'],
    ['a mixture', ['a', 5], 'invalid_type'],
    ['ids and lists', [[1], 5], 'invalid_type'],
    ['a fraction', [1.5], 'invalid_type'],
    ['a negative id', [-1], 'invalid_value'],
    ['an id of no token', [99999], 'invalid_value'],
    ['a wrong item after many', [...Array(2000).fill('a'), 7], 'invalid_type'],
    ['deeper lists', [[[1]]], 'invalid_type'],
    ['too many', Array(MAX_INPUTS + 1).fill('a'), 'invalid_value'],
    ['too many token ids together', Array(3).fill(Array(400_000).fill(1)), 'invalid_value'],
    ['too much text together', Array(9).fill('x'.repeat(2 ** 20)), 'invalid_value'],
    ['one that is too long', 'x'.repeat(600), 'context_length_exceeded'],
    ['token ids that are too many for the model', Array(600).fill(1), 'context_length_exceeded'],
  ])('refuses %s', async (_name, input, code) => {
    expect(errorOf(await send({ input }))).toEqual({
      status: 400,
      type: 'invalid_request_error',
      code,
      param: 'input',
    });
  });
});

describe('encodings', () => {
  test('base64 holds the little-endian bytes of the same numbers', async () => {
    const input = ['hello', 'Größe 😀'];
    const floats = vectorsOf(await send({ input, encoding_format: 'float' }));
    const { data } = (await send({ input, encoding_format: 'base64' })).json;
    for (const [i, { embedding }] of data.entries()) {
      const bytes = Buffer.from(embedding, 'base64');
      expect(bytes).toHaveLength(4 * EMBEDDING_SIZE);
      expect(floats[i].map((_, k) => bytes.readFloatLE(4 * k))).toEqual(floats[i]);
    }
  });

  test('numbers keep all bits', async () => {
    const [vector] = vectorsOf(await send({ normalize: false }));
    expect(vector.reduce((sum, value) => sum + value, 0)).toBe(5);
    const [unit] = vectorsOf(await send({}));
    expect(unit).toEqual(vector.map((value) => Math.fround(value / Math.hypot(...vector))));
  });

  test('numbers of one response are limited, bytes are not', async () => {
    pooling.size = 4096;
    const input = Array(MAX_FLOAT_VALUES / 4096 + 1).fill('a');
    const refused = await send({ input });
    expect(errorOf(refused)).toMatchObject({ status: 400, code: 'invalid_value', param: 'input' });
    expect(refused.json.error.message).toContain('Send fewer inputs, or encoding_format base64.');
    expect(pooling.requests).toEqual([]);
    expect((await send({ input, dimensions: 4 })).status).toBe(200);
    expect((await send({ input, encoding_format: 'base64' })).status).toBe(200);
  });

  test('a long response does not hold the event loop', async () => {
    pooling.size = 1024;
    let numTurns = 0;
    const count = setInterval(() => numTurns++, 0);
    const reply = await send({ input: Array(512).fill('hello') });
    clearInterval(count);
    expect(reply.json.data).toHaveLength(512);
    expect(numTurns).toBeGreaterThan(5);
  });
});

describe('options', () => {
  test.each<[fields: object, options: object]>([
    [{}, {}],
    [{ dimensions: 3 }, { dimensions: 3 }],
    [{ normalize: false }, { normalize: false }],
    [{ use_activation: false }, { normalize: false }],
    [
      { use_activation: true, normalize: true, truncation_side: 'right', add_special_tokens: true },
      { normalize: true },
    ],
    [{ prompt_name: 'query' }, { promptName: 'query' }],
    [{ truncate_prompt_tokens: -1 }, { truncatePromptTokens: -1 }],
    [{ truncate_prompt_tokens: 3, dimensions: null, prompt_name: null }, { truncatePromptTokens: 3 }],
    [{ embed_dtype: 'float32', endianness: 'little', priority: 0, padding: 'do_not_pad', unknown: 1 }, {}],
  ])('%j', async (fields, options) => {
    expect((await send(fields)).status).toBe(200);
    const {
      signal: _signal,
      requestId: _id,
      cacheSalt: _salt,
      priority: _priority,
      onTokens: _tokens,
      ...received
    } = pooling.requests[0].options;
    expect(received).toEqual(options);
  });

  test('change the result', async () => {
    expect(vectorsOf(await send({ dimensions: 3 }))[0]).toHaveLength(3);
    expect((await send({ prompt_name: 'query' })).json.usage.prompt_tokens).toBe('query: hello'.length);
    expect((await send({ input: 'x'.repeat(600), truncate_prompt_tokens: -1 })).json.usage.prompt_tokens).toBe(512);
    expect((await send({ truncate_prompt_tokens: 2 })).json.usage.prompt_tokens).toBe(2);
  });

  test.each<[fields: object, code: string, param: string]>([
    [{ dimensions: 0 }, 'invalid_value', 'dimensions'],
    [{ dimensions: 9 }, 'invalid_value', 'dimensions'],
    [{ dimensions: '3' }, 'invalid_type', 'dimensions'],
    [{ encoding_format: 'bytes' }, 'invalid_value', 'encoding_format'],
    [{ normalize: 1 }, 'invalid_type', 'normalize'],
    [{ normalize: true, use_activation: false }, 'invalid_value', 'normalize'],
    [{ prompt_name: 'passage' }, 'invalid_value', 'prompt_name'],
    [{ prompt_name: '' }, 'invalid_value', 'prompt_name'],
    [{ truncate_prompt_tokens: -2 }, 'invalid_value', 'truncate_prompt_tokens'],
    [{ truncation_side: 'left' }, 'unsupported_value', 'truncation_side'],
    [{ add_special_tokens: false }, 'unsupported_value', 'add_special_tokens'],
    [{ embed_dtype: 'float16' }, 'unsupported_value', 'embed_dtype'],
    [{ endianness: 'big' }, 'unsupported_value', 'endianness'],
    [{ priority: 1 }, 'unsupported_value', 'priority'],
    [{ input_type: 'search_query' }, 'unsupported_value', 'input_type'],
    [{ cache_salt: 'a/b' }, 'invalid_value', 'cache_salt'],
    [{ request_id: 'ü' }, 'invalid_value', 'request_id'],
    [{ model: 5 }, 'invalid_type', 'model'],
  ])('refuses %j', async (fields, code, param) => {
    expect(errorOf(await send(fields))).toEqual({ status: 400, type: 'invalid_request_error', code, param });
  });

  test('token ids need no special tokens', async () => {
    expect((await send({ input: [1, 2], add_special_tokens: false })).status).toBe(200);
  });
});

describe('a conversation', () => {
  const messages = [{ role: 'user', content: 'Hi' }];
  const render = (fields: object) => post(app, '/tokenize', { messages, ...fields });

  test.each<[name: string, fields: object]>([
    ['is one input', {}],
    ['with the start of an answer', { add_generation_prompt: true }],
    ['with special tokens', { add_special_tokens: true }],
  ])('%s', async (_name, fields) => {
    const { tokens } = (await render({ add_generation_prompt: false, ...fields })).json;
    const reply = await post(app, PATH, { messages, ...fields });
    expect(reply.status).toBe(200);
    expect(pooling.requests.map(({ inputs }) => inputs)).toEqual([[tokens]]);
    expect(reply.json.data).toHaveLength(1);
    expect(reply.json.usage.prompt_tokens).toBe(tokens.length);
  });

  test.each<[fields: object, code: string, param: string]>([
    [{ messages: [] }, 'invalid_value', 'messages'],
    [{ messages, input: 'a' }, 'invalid_value', 'input'],
    [{ messages, prompt_name: 'query' }, 'invalid_value', 'prompt_name'],
    [{ messages, chat_template: 'x' }, 'unsupported_value', 'chat_template'],
    [{ messages: [{ role: 'user', content: 'x'.repeat(600) }] }, 'context_length_exceeded', 'messages'],
    [{ messages: [{ role: 'user' }] }, 'missing_required_parameter', 'messages[0].content'],
  ])('refuses %j', async (fields, code, param) => {
    expect(errorOf(await post(app, PATH, fields))).toMatchObject({ status: 400, code, param });
  });
});

describe('what all routes share', () => {
  test('request ids', async () => {
    expect((await send({ request_id: 'mine' })).json.id).toBe('embd-mine');
    const reply = await post(
      app,
      PATH,
      { input: 'a', request_id: 'mine' },
      {
        headers: [
          ['content-type', 'application/json'],
          ['x-request-id', 'header'],
        ],
      },
    );
    expect([reply.json.id, reply.headers['X-Request-Id']]).toEqual(['embd-header', 'header']);
    expect(pooling.requests.map(({ options }) => options.requestId)).toEqual(['embd-mine', 'embd-header']);
  });

  test('an unknown model, and model by an empty name', async () => {
    expect(errorOf(await send({ model: 'gpt' }))).toMatchObject({ status: 404, code: 'model_not_found' });
    expect((await send({ model: '' })).json.model).toBe('tiny');
  });

  test('tokens for limits and the log, the salt of the owner, and usage for the gateway', async () => {
    const done = jest.fn();
    const records: { tokens: number; route: string | undefined }[] = [];
    const guarded = makeApp(engine, {
      access: { check: () => ({ ok: true, keyId: 'key_1', ownerId: 'own_1', done }) as never },
      onEnd: ({ tokens, route }) => records.push({ tokens, route }),
    });
    await post(guarded, PATH, { input: ['ab', 'c'], cache_salt: 'mine' });
    expect(pooling.requests[0].options.cacheSalt).toBe('own_1/mine');
    expect(done.mock.calls[0]).toEqual([3]);
    expect(records).toEqual([{ tokens: 3, route: PATH }]);

    const replica = makeApp(engine, { replicaSecret: 'secret' });
    const reply = await post(replica, PATH, { input: 'abc' }, { headers: [['x-capstan-replica-secret', 'secret']] });
    expect(reply.headers['X-Capstan-Usage']).toBe('prompt=3;completion=0;cached=0');
    expect((await send({})).headers['X-Capstan-Usage']).toBeUndefined();
  });

  test('a client that leaves aborts the call', async () => {
    const client = new AbortController();
    pooling.gate = new Promise(() => {});
    const pending = post(app, PATH, { input: 'a' }, { signal: client.signal });
    while (pooling.requests.length === 0) await new Promise((resolve) => setImmediate(resolve));
    client.abort();
    expect((await pending).hasStarted).toBe(false);
    expect(pooling.requests[0].options.signal!.aborted).toBe(true);
  });

  test('a call that fails or whose client leaves counts the tokens that it computed', async () => {
    const done = jest.fn();
    const guarded = makeApp(engine, {
      access: { check: () => ({ ok: true, keyId: 'k', ownerId: 'o', done }) as never },
    });
    pooling.numTokensBefore = 7;
    pooling.failure = new CapstanError('numeric_error', 'the model computed NaN');
    await post(guarded, PATH, { input: 'a' });
    expect(done.mock.calls[0]).toEqual([7]);
    done.mockClear();
    const client = new AbortController();
    pooling.gate = new Promise(() => {});
    const pending = post(guarded, PATH, { input: 'a' }, { signal: client.signal });
    while (pooling.requests.length < 2) await new Promise((resolve) => setImmediate(resolve));
    client.abort();
    await pending;
    expect(done.mock.calls[0]).toEqual([7]);
  });

  test('a long input gets the advice in the names of the request', async () => {
    const message =
      'inputs[1]: expected at most 4 tokens. With truncatePromptTokens: -1 the end of a longer text is cut off';
    pooling.failure = new CapstanError('context_length_exceeded', message, { param: 'inputs[1]' });
    const { error } = (await send({})).json;
    expect([error.param, error.message]).toEqual([
      'input',
      'input[1]: expected at most 4 tokens. With truncate_prompt_tokens: -1 the end of a longer text is cut off',
    ]);
  });

  test('a revoked key ends the call with its error', async () => {
    const revoked = new AbortController();
    const guarded = makeApp(engine, {
      access: {
        check: () => ({ ok: true, keyId: 'k', ownerId: 'o', signal: revoked.signal, done: () => {} }) as never,
      },
    });
    pooling.gate = new Promise(() => {});
    const pending = post(guarded, PATH, { input: 'a' });
    while (pooling.requests.length === 0) await new Promise((resolve) => setImmediate(resolve));
    revoked.abort(new ApiError('invalid_api_key', 'This key was revoked'));
    expect(errorOf(await pending)).toMatchObject({ status: 401, code: 'invalid_api_key' });
  });

  test('faults of the engine', async () => {
    pooling.failure = new CapstanError('numeric_error', 'inputs[0]: the model computed NaN');
    expect(errorOf(await send({}))).toMatchObject({ status: 500, code: 'internal_error', param: null });
    expect(log.error).toHaveBeenCalledTimes(1);
    pooling.failure = new CapstanError('queue_full', 'The queue is full');
    const full = await send({});
    expect([full.status, full.headers['Retry-After']]).toEqual([429, '1']);
    pooling.failure = new CapstanError('engine_closed', 'closed');
    expect(errorOf(await send({}))).toMatchObject({ status: 503, code: 'shutting_down' });
  });
});

describe('the task of the model', () => {
  test('is refused by the other routes before they read the body', async () => {
    const readBody = jest.fn();
    for (const path of ['/v1/chat/completions', '/v1/completions']) {
      const reply = await post(app, path, {}, { readBody });
      expect(errorOf(reply)).toEqual({
        status: 400,
        type: 'invalid_request_error',
        code: 'unsupported_task',
        param: 'model',
      });
      expect(reply.json.error.message).toBe(
        `model: expected a model with the task generate for ${path}, got one with the task embed. ` +
          'Use /v1/embeddings, /v1/rerank or /v1/score, or start the server with a model that generates text.',
      );
    }
    expect(readBody).not.toHaveBeenCalled();
  });

  test('a generative model and a reranker have no embeddings', async () => {
    const generative = await loadEngine();
    const reranker = await loadPoolingEngine('score');
    expect((await post(makeApp(generative), PATH, { input: 'a' })).json.error.message).toContain(
      'got one with the task generate. Use /v1/chat/completions',
    );
    expect((await post(makeApp(reranker), PATH, { input: 'a' })).json.error.message).toContain(
      'got one with the task score. Use /v1/rerank or /v1/score',
    );
    await Promise.all([generative.close(), reranker.close()]);
  });

  test('is listed with the model', async () => {
    const { data } = (await post(app, '/v1/models', {}, { method: 'GET' })).json;
    expect(data[0].meta).toEqual({
      task: 'embed',
      embedding_size: EMBEDDING_SIZE,
      prompt_names: ['query', 'document'],
    });
    expect(data[0].permission[0]).toMatchObject({ allow_sampling: false, allow_logprobs: false });
  });

  test('tokenizing and health work with every model', async () => {
    expect((await post(app, '/tokenize', { prompt: 'ab' })).json.tokens).toEqual([97, 98]);
    expect((await post(app, '/health', {}, { method: 'GET' })).status).toBe(200);
  });
});
