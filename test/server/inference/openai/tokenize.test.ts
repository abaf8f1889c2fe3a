/** POST /tokenize and /detokenize, and the routes that answer 501. */
import type { Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { OPENAI_ROUTES } from '../../../../server/inference/openai/routes';
import { fake } from '../../../fakes/fake-addon';
import { tinyTokenizer } from '../../../fakes/tiny-model';
import { errorOf, keysOf, loadEngine, makeApp, MESSAGES, post, TOOLS } from './support';

let engine: Engine;
let app: App;

beforeAll(async () => {
  // Adds <|endoftext|> at the start, as tokenizers with a BOS token do.
  const single = [{ SpecialToken: { id: '<|endoftext|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }];
  const postProcessor = {
    type: 'TemplateProcessing',
    single,
    pair: [...single, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: { '<|endoftext|>': { id: '<|endoftext|>', ids: [256], tokens: ['<|endoftext|>'] } },
  };
  engine = await loadEngine({ 'tokenizer.json': { ...tinyTokenizer(), post_processor: postProcessor } });
  app = makeApp(engine);
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

describe('/tokenize', () => {
  test('adds special tokens to a text by default', async () => {
    const { json } = await post(app, '/tokenize', { model: 'tiny', prompt: 'aé' });
    expect(keysOf(json)).toBe('count max_model_len tokens token_strs');
    expect(json).toEqual({ count: 4, max_model_len: 4096, tokens: [256, 97, 195, 169], token_strs: null });
    expect((await post(app, '/tokenize', { prompt: 'a', add_special_tokens: false })).json.tokens).toEqual([97]);
    expect((await post(app, '/tokenize', { prompt: '', add_special_tokens: false })).json).toMatchObject({
      count: 0,
      tokens: [],
    });
  });

  test('returns the text of each token if requested', async () => {
    expect((await post(app, '/tokenize', { prompt: 'ab', return_token_strs: true })).json.token_strs).toEqual([
      '<|endoftext|>',
      'a',
      'b',
    ]);
  });

  test('tokenizes messages like a chat request', async () => {
    for (const body of [
      { messages: MESSAGES },
      { messages: MESSAGES, tools: TOOLS },
      {
        messages: [...MESSAGES, { role: 'assistant', content: 'I' }],
        continue_final_message: true,
        add_generation_prompt: false,
      },
      { messages: MESSAGES, add_generation_prompt: false },
    ]) {
      fake.reset();
      const { json } = await post(app, '/tokenize', body);
      await post(app, '/v1/chat/completions', body);
      expect(json.tokens).toEqual([...fake.requests[0].promptTokenIds]);
    }
  });

  test('tokenizes a text like a completion request', async () => {
    await post(app, '/v1/completions', { prompt: 'ab', echo: true, logprobs: 0, max_tokens: 1 }).then(({ json }) => {
      // The added token is not part of the text, so offsets do not change.
      expect(json.choices[0].logprobs.text_offset).toEqual([0, 0, 1, 2]);
    });
    expect([...fake.requests[0].promptTokenIds]).toEqual((await post(app, '/tokenize', { prompt: 'ab' })).json.tokens);
  });

  test.each<[body: unknown, code: string, param: string | null]>([
    [{}, 'missing_required_parameter', 'prompt'],
    [{ prompt: 5 }, 'invalid_type', 'prompt'],
    [{ prompt: 'a', messages: MESSAGES }, 'invalid_value', 'prompt'],
    [{ messages: [] }, 'invalid_value', 'messages'],
    [{ messages: [{ role: 'x' }] }, 'invalid_value', 'messages[0].role'],
    [{ messages: [{ role: 'user' }] }, 'missing_required_parameter', 'messages[0].content'],
    [{ prompt: 'a', add_special_tokens: 1 }, 'invalid_type', 'add_special_tokens'],
    [{ prompt: 'a', chat_template: 'x' }, 'unsupported_value', 'chat_template'],
    ['[', 'invalid_json', null],
    [
      { messages: MESSAGES, add_generation_prompt: true, continue_final_message: true },
      'invalid_value',
      'continue_final_message',
    ],
  ])('refuses %j', async (body, code, param) => {
    expect(errorOf(await post(app, '/tokenize', body))).toEqual({
      status: 400,
      type: 'invalid_request_error',
      code,
      param,
    });
  });

  test('answers 404 for an unknown model', async () => {
    expect((await post(app, '/tokenize', { model: 'x', prompt: 'a' })).status).toBe(404);
    expect((await post(app, '/detokenize', { model: 'x', tokens: [] })).status).toBe(404);
  });
});

describe('/detokenize', () => {
  test('returns the text, special tokens included', async () => {
    expect((await post(app, '/detokenize', { tokens: [256, 97, 195, 169, 195] })).text).toBe(
      JSON.stringify({ prompt: '<|endoftext|>aé\ufffd' }),
    );
    expect((await post(app, '/detokenize', { model: 'alias', tokens: [] })).json).toEqual({ prompt: '' });
  });

  test.each<[body: unknown, code: string, param: string]>([
    [{}, 'missing_required_parameter', 'tokens'],
    [{ tokens: 'a' }, 'invalid_type', 'tokens'],
    [{ tokens: [1.5] }, 'invalid_type', 'tokens'],
    [{ tokens: [-1] }, 'invalid_value', 'tokens'],
    [{ tokens: [99999] }, 'invalid_value', 'tokens'],
    [{ tokens: ['1'] }, 'invalid_type', 'tokens'],
  ])('refuses %j', async (body, code, param) => {
    expect(errorOf(await post(app, '/detokenize', body))).toEqual({
      status: 400,
      type: 'invalid_request_error',
      code,
      param,
    });
  });
});

describe('long inputs', () => {
  /** Counts the turns of the event loop during an operation. */
  async function turnsDuring(work: Promise<unknown>): Promise<number> {
    let turns = 0;
    let isDone = false;
    const stop = () => {
      isDone = true;
    };
    work.then(stop, stop);
    while (!isDone) {
      await new Promise((resolve) => {
        setImmediate(resolve);
      });
      turns++;
    }
    return turns;
  }

  test('detokenizes a million tokens in batches without cutting a character', async () => {
    const smile = [...Buffer.from('😀')];
    const tokens = Array.from({ length: 1_000_000 }, (_, i) => smile[(i + 1) % 4]).slice(3);
    const answer = post(app, '/detokenize', { tokens });
    expect(await turnsDuring(answer)).toBeGreaterThan(20);
    expect((await answer).json.prompt).toBe('😀'.repeat(249_999) + '\ufffd');
  });

  test('spells the tokens of a long text in batches', async () => {
    const answer = post(app, '/tokenize', { prompt: 'ab'.repeat(30_000), return_token_strs: true });
    expect(await turnsDuring(answer)).toBeGreaterThan(7);
    const { count, token_strs: texts } = (await answer).json as { count: number; token_strs: string[] };
    expect([count, texts.length, texts.slice(-2)]).toEqual([60_001, 60_001, ['a', 'b']]);
  });

  test.each<[string, string, object, string, string]>([
    ['a text above 1 MiB', '/tokenize', { prompt: 'a'.repeat(2 ** 20 + 1) }, 'context_length_exceeded', 'prompt'],
    [
      'more messages than tokens in the context',
      '/tokenize',
      { messages: Array.from({ length: 5_000 }, () => ({ role: 'user', content: 'a' })) },
      'context_length_exceeded',
      'messages',
    ],
    [
      'the texts of more than 65,536 tokens',
      '/tokenize',
      { prompt: 'a'.repeat(70_000), return_token_strs: true },
      'invalid_value',
      'return_token_strs',
    ],
    [
      'more than 1,048,576 ids',
      '/detokenize',
      { tokens: Array.from({ length: 2 ** 20 + 1 }, () => 1) },
      'invalid_value',
      'tokens',
    ],
  ])('refuses %s', async (_name, path, body, code, param) => {
    expect(errorOf(await post(app, path, body))).toMatchObject({ status: 400, code, param });
  });

  test('counts tokenizing against the queue limit', async () => {
    const narrow = await loadEngine({}, { maxNumSeqs: 1, maxQueuedRequests: 0 });
    const answers = await Promise.all(
      [1, 2, 3].map(() => post(makeApp(narrow), '/tokenize', { prompt: 'a'.repeat(50_000) })),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 429, 429]);
    await narrow.close();
  });
});

describe('routes', () => {
  const known = OPENAI_ROUTES.filter(({ isNotImplemented }) => isNotImplemented);

  test.each(known.map(({ method, path }) => [method, path]))('%s %s answers 501', async (method, path) => {
    expect(errorOf(await post(app, path, {}, { method }))).toEqual({
      status: 501,
      type: 'server_error',
      code: 'not_implemented',
      param: null,
    });
  });

  test('have a summary, and a schema if they take a body', () => {
    for (const { method, path, summary, requestSchema, isNotImplemented } of OPENAI_ROUTES) {
      expect(summary).toMatch(/^[A-Z]/);
      const takesBody = method === 'POST' && isNotImplemented !== true && !path.endsWith('/cancel');
      expect([path, requestSchema !== undefined]).toEqual([path, takesBody]);
    }
  });

  test.each(['/v1/completions', '/tokenize', '/detokenize'])('%s accepts only JSON and POST', async (path) => {
    expect((await post(app, path, {}, { method: 'GET' })).headers.Allow).toBe('POST');
    expect(errorOf(await post(app, path, '{}', { headers: [['content-type', 'text/plain']] }))).toMatchObject({
      status: 415,
      code: 'unsupported_media_type',
    });
    expect(errorOf(await post(app, path, '{"a"'))).toMatchObject({ status: 400, code: 'invalid_json' });
    expect(errorOf(await post(app, path, '[]'))).toMatchObject({ status: 400, code: 'invalid_type', param: null });
  });
});
