/** Embeddings and scores of the real engine: equal bits, limits, errors and the life of a call. */
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Engine, type EngineOptions } from '../../ts';

const FIXTURES = path.join(__dirname, '..', 'oracle', 'fixtures', 'embeddings');
const fixture = (name: string): string => path.join(FIXTURES, name);

const open: Engine[] = [];
const folders: string[] = [];
async function load(name: string, options: EngineOptions = {}): Promise<Engine> {
  const engine = await Engine.load(name.includes('/') ? name : fixture(name), {
    device: 'cpu',
    threads: 2,
    ...options,
  });
  open.push(engine);
  return engine;
}
afterEach(async () => {
  await Promise.all(open.splice(0).map((engine) => engine.close()));
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

/** A copy of a fixture, with changes of its JSON files. `null` removes a key. */
function changed(name: string, files: Record<string, Record<string, unknown>>): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'capstan-pooling-'));
  folders.push(folder);
  cpSync(fixture(name), folder, { recursive: true });
  for (const [file, changes] of Object.entries(files)) {
    const target = path.join(folder, file);
    mkdirSync(path.dirname(target), { recursive: true });
    const json = existsSync(target) ? (JSON.parse(readFileSync(target, 'utf8')) as Record<string, unknown>) : {};
    writeFileSync(target, JSON.stringify({ ...json, ...changes }));
  }
  return folder;
}

/** Fills a tensor of a checkpoint with numbers whose sums overflow. */
function overflow(file: string, name: string): void {
  const bytes = readFileSync(file);
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + headerBytes)) as Record<string, { data_offsets: number[] }>;
  const [begin, end] = header[name].data_offsets;
  for (let at = begin; at < end; at += 4) bytes.writeFloatLE(3e38, 8 + headerBytes + at);
  writeFileSync(file, bytes);
}

/** Lengths around the tiles of attention and of matrices. */
const TOKENS = [1, 2, 3, 15, 16, 17, 40, 63, 5, 7].map((length, seed) =>
  Array.from({ length }, (_, i) => 5 + ((i * 7 + seed * 31) % 290)),
);
const bits = (embeddings: readonly Float32Array[]): number[][] =>
  embeddings.map((values) => Array.from(new Uint32Array(values.slice().buffer)));

describe.each([
  'bert-mean-f32',
  'bert-mean-bf16',
  'modernbert-f32',
  'mpnet-max-f32',
  'gemma3-f32',
  'qwen3-last-f32',
  'qwen3-mean-f32',
  'qwen3-weighted-f32',
])('%s', (name) => {
  test('an input has the same bits alone, in any batch, and on any number of threads', async () => {
    const engine = await load(name);
    const alone: Float32Array[] = [];
    for (const tokens of TOKENS) alone.push(...(await engine.embed([tokens])).embeddings);
    const expected = bits(alone);
    expect(bits((await engine.embed(TOKENS)).embeddings)).toEqual(expected);
    const backwards = (await engine.embed([...TOKENS].reverse())).embeddings;
    expect(bits([...backwards].reverse())).toEqual(expected);
    for (const options of [{ threads: 1 }, { threads: 3 }, { maxNumSeqs: 1 }, { maxNumBatchedTokens: 64 }]) {
      const other = await load(name, options);
      expect(bits((await other.embed(TOKENS)).embeddings)).toEqual(expected);
    }
  });
});

test.each(['bert-mean-f32', 'mpnet-max-f32', 'gemma3-f32', 'qwen3-last-f32'])(
  '%s has the same bits on two ranks',
  async (name) => {
    const one = await load(name);
    const two = await load(name, { tensorParallelSize: 2 });
    const expected = bits((await one.embed(TOKENS)).embeddings);
    expect(bits((await two.embed(TOKENS)).embeddings)).toEqual(expected);
  },
);

test('the inputs of a call run in one step', async () => {
  const engine = await load('bert-mean-f32');
  const { numSteps } = engine.stats();
  await engine.embed(TOKENS);
  expect(engine.stats().numSteps - numSteps).toBe(1);
});

test('an encoder of longer inputs than one chunk of keys has the same bits in any batch', async () => {
  const folder = changed('modernbert-f32', {
    'config.json': { max_position_embeddings: 3000, local_attention: 2200 },
    'tokenizer_config.json': { model_max_length: 3000 },
  });
  const long = [2600, 1100, 30].map((length) => Array.from({ length }, (_, i) => 5 + ((i * 11) % 290)));
  const expected: number[][] = [];
  for (const options of [{ threads: 1 }, { threads: 3 }, { threads: 2, maxNumSeqs: 2 }]) {
    const engine = await load(folder, { ...options, maxNumBatchedTokens: 6000 });
    const found = bits((await engine.embed(long)).embeddings);
    if (expected.length === 0) expected.push(...found);
    expect(found).toEqual(expected);
    expect(bits((await engine.embed([long[1]])).embeddings)).toEqual([expected[1]]);
  }
});

test.each(['max', 'weightedmean', 'mean_sqrt_len_tokens'])('chunks change no bit of %s pooling', async (mode) => {
  const folder = changed('qwen3-last-f32', { '1_Pooling/config.json': { pooling_mode: mode } });
  const prompt = Array.from({ length: 200 }, (_, i) => 5 + ((i * 13) % 280));
  const found: number[][][] = [];
  for (const options of [{ maxNumBatchedTokens: 512 }, { maxNumBatchedTokens: 64 }, { threads: 1 }])
    found.push(bits((await (await load(folder, options)).embed([prompt, prompt])).embeddings));
  expect(found[0][1]).toEqual(found[0][0]);
  for (const other of found) expect(other).toEqual(found[0]);
});

test('chunks and cached prefixes change no bit of the last token', async () => {
  const prompt = Array.from({ length: 200 }, (_, i) => 5 + ((i * 13) % 280));
  const whole = await load('qwen3-last-f32', { maxNumBatchedTokens: 512, prefixCache: false });
  const expected = bits((await whole.embed([prompt])).embeddings);
  const chunked = await load('qwen3-last-f32', { maxNumBatchedTokens: 64 });
  const first = await chunked.embed([prompt]);
  const second = await chunked.embed([prompt]);
  expect(bits(first.embeddings)).toEqual(expected);
  expect(bits(second.embeddings)).toEqual(expected);
  expect(first.usage).toEqual({ promptTokens: 200, cachedTokens: 0 });
  expect(second.usage.cachedTokens).toBe(192);
  const salted = await chunked.embed([prompt], { cacheSalt: 'another' });
  expect(salted.usage.cachedTokens).toBe(0);
  expect(bits(salted.embeddings)).toEqual(expected);
});

test('the mean of a decoder needs all tokens, so none come from the cache', async () => {
  const engine = await load('qwen3-mean-f32', { maxNumBatchedTokens: 64 });
  const prompt = Array.from({ length: 200 }, (_, i) => 5 + ((i * 13) % 280));
  const first = await engine.embed([prompt]);
  const second = await engine.embed([prompt]);
  expect(second.usage.cachedTokens).toBe(0);
  expect(bits(second.embeddings)).toEqual(bits(first.embeddings));
});

test('a decoder with is_causal: false computes an input whole', async () => {
  const engine = await load(changed('qwen3-mean-f32', { 'config.json': { is_causal: false } }));
  const prompt = Array.from({ length: 40 }, (_, i) => 5 + ((i * 7) % 290));
  const [values] = (await engine.embed([prompt])).embeddings;
  // Of transformers 5.23, which reads the key.
  const expected = [0.567027, -0.238628, 0.137798, 0.203591, 0.13122, -0.102876];
  expect([...values.slice(0, 6)]).toEqual(expected.map((value) => expect.closeTo(value, 4) as number));
  expect(engine.info).toMatchObject({ task: 'embed', prefixCache: false });
  const windows = { is_causal: false, use_sliding_window: true, sliding_window: 8, max_window_layers: 0 };
  await expect(load(changed('qwen3-mean-f32', { 'config.json': windows }))).rejects.toMatchObject({
    code: 'unsupported_model',
    param: 'config.json: is_causal',
  });
});

test('the default prompt of a reranker is its instruction', async () => {
  const scores = async (files: Record<string, Record<string, unknown>>): Promise<number[]> => {
    const engine = await load(changed('qwen3-rerank-f32', files), { task: 'score' });
    return (await engine.rerank('the ship', ['anchor', 'seven sailors'])).scores;
  };
  const withPrompt = (query: string) => ({
    'config_sentence_transformers.json': { prompts: { query }, default_prompt_name: 'query' },
  });
  const own = await scores({});
  const usual = 'Given a web search query, retrieve relevant passages that answer the query';
  expect(await scores(withPrompt(usual))).toEqual(own);
  expect(await scores(withPrompt('Find the crew'))).not.toEqual(own);
});

test('a module LogitScore makes a reranker, with its tokens', async () => {
  const rerank = async (engine: Engine): Promise<number[]> =>
    (await engine.rerank('the ship', ['anchor', 'seven sailors'])).scores;
  const named = await load('qwen3-rerank-f32', { task: 'score' });
  const [yes, no] = await Promise.all(['yes', 'no'].map(async (text) => (await named.tokenize(text))[0]));
  const tokens = { '1_LogitScore/config.json': { true_token_id: yes, false_token_id: no } };
  const folder = changed('qwen3-rerank-f32', tokens);
  const modules = [
    { path: '', type: 'sentence_transformers.base.modules.transformer.Transformer' },
    { path: '1_LogitScore', type: 'sentence_transformers.cross_encoder.modules.logit_score.LogitScore' },
  ];
  writeFileSync(path.join(folder, 'modules.json'), JSON.stringify(modules));
  const engine = await load(folder);
  expect(engine.info.task).toBe('score');
  expect(await rerank(engine)).toEqual(await rerank(named));
  rmSync(path.join(folder, '1_LogitScore/config.json'));
  await expect(load(folder)).rejects.toMatchObject({ code: 'invalid_model', param: '1_LogitScore/config.json' });
});

test('config_sentence_transformers.json chooses the activation of a cross-encoder', async () => {
  const score = async (activation: string | null): Promise<number> => {
    const files = {
      'config_sentence_transformers.json': { activation_fn: activation },
      'config.json': { sentence_transformers: { activation_fn: 'torch.nn.modules.activation.Sigmoid' } },
    };
    const engine = await load(changed('bert-rerank-f32', files));
    return (await engine.rerank('the ship', ['anchor'])).scores[0];
  };
  const [raw, probability] = [await score('torch.nn.modules.linear.Identity'), await score(null)];
  expect(probability).toBeCloseTo(1 / (1 + Math.exp(-raw)), 6);
  await expect(score('torch.nn.modules.activation.Tanh')).rejects.toMatchObject({ code: 'unsupported_model' });
});

test('an embedding model scores pairs by the cosine of their embeddings', async () => {
  const engine = await load('bert-mean-f32');
  const { scores } = await engine.score([
    ['the ship', 'the ship'],
    ['the ship', 'anchor'],
  ]);
  const [a, b] = (await engine.embed(['the ship', 'anchor'], { normalize: true })).embeddings;
  expect(scores[0]).toBeCloseTo(1, 6);
  expect(scores[1]).toBeCloseTo(
    a.reduce((sum, value, i) => sum + value * b[i], 0),
    6,
  );
  expect((await engine.rerank('the ship', ['the ship', 'anchor'])).scores).toEqual(scores);
});

describe('what a call refuses', () => {
  test('calls of another task', async () => {
    const embedder = await load('bert-mean-f32');
    const reranker = await load('bert-rerank-f32');
    const generator = await load('qwen3-rerank-f32', { task: 'generate' });
    const refused = { code: 'unsupported_task' };
    await expect(embedder.generate('a').result()).rejects.toMatchObject(refused);
    await expect(embedder.chat([{ role: 'user', content: 'a' }]).result()).rejects.toMatchObject(refused);
    await expect(reranker.embed('a')).rejects.toMatchObject(refused);
    await expect(generator.embed('a')).rejects.toMatchObject({
      ...refused,
      message: expect.stringContaining("the task 'generate', which answers generate() and chat()") as string,
    });
    await expect(generator.rerank('a', ['b'])).rejects.toMatchObject(refused);
    expect((await generator.generate('a', { maxTokens: 1 }).result()).choices).toHaveLength(1);
  });

  test('tasks that the model does not have', async () => {
    await expect(load('bert-mean-f32', { task: 'generate' })).rejects.toMatchObject({
      code: 'invalid_argument',
      param: 'task',
      expected: 'auto, embed for BertModel',
    });
    await expect(load('bert-rerank-f32', { task: 'embed' })).rejects.toMatchObject({ param: 'task' });
    await expect(load('bert-mean-f32', { task: 'rank' as 'score' })).rejects.toMatchObject({ param: 'task' });
  });

  test('wrong arguments, by name', async () => {
    const engine = await load('qwen3-last-f32');
    const argument = (param: string) => ({ code: 'invalid_argument', param });
    await expect(engine.embed([])).rejects.toMatchObject(argument('inputs'));
    await expect(engine.embed(5 as unknown as string)).rejects.toMatchObject(argument('inputs'));
    await expect(engine.embed([[]])).rejects.toMatchObject(argument('inputs[0]'));
    await expect(engine.embed(['a', [1, 300]])).rejects.toMatchObject(argument('inputs[1][1]'));
    await expect(engine.embed(['a', null as unknown as string])).rejects.toMatchObject(argument('inputs[1]'));
    await expect(engine.embed('a', { dimensions: 33 })).rejects.toMatchObject(argument('dimensions'));
    await expect(engine.embed('a', { dimensions: 0 })).rejects.toMatchObject(argument('dimensions'));
    await expect(engine.embed('a', { promptName: 'title' })).rejects.toMatchObject({
      ...argument('promptName'),
      expected: 'one of query, document',
    });
    await expect(engine.embed('a', { truncatePromptTokens: 0 })).rejects.toMatchObject(
      argument('truncatePromptTokens'),
    );
    await expect(engine.embed('a', { truncatePromptTokens: 513 })).rejects.toMatchObject(
      argument('truncatePromptTokens'),
    );
    await expect(engine.embed('a', { dimension: 3 } as object)).rejects.toMatchObject(argument('options.dimension'));
    await expect(engine.score([['a'] as unknown as [string, string]])).rejects.toMatchObject(argument('pairs[0]'));
    await expect(engine.rerank('a', [])).rejects.toMatchObject(argument('documents'));
    await expect(engine.rerank('a', ['b', 3 as unknown as string])).rejects.toMatchObject(argument('documents[1]'));
  });

  test('long inputs, unless they may lose their end', async () => {
    const engine = await load('bert-mean-f32');
    const text = 'sailors haul the anchor '.repeat(40);
    await expect(engine.embed(['a', text])).rejects.toMatchObject({
      code: 'context_length_exceeded',
      param: 'inputs[1]',
    });
    expect((await engine.embed(text, { truncatePromptTokens: 9 })).usage.promptTokens).toBe(9);
    await expect(engine.embed(text, { truncatePromptTokens: 1 })).rejects.toMatchObject({
      param: 'truncatePromptTokens',
    });
    await expect(engine.embed(['a', 'x'.repeat(3 << 20)], { truncatePromptTokens: -1 })).rejects.toMatchObject({
      code: 'context_length_exceeded',
      param: 'inputs[1]',
    });
    await expect(engine.embed(text)).rejects.toThrow(
      'With truncatePromptTokens: -1 the end of a longer text is cut off',
    );
    await expect(engine.embed('a', { truncatePromptTokens: 513 })).rejects.toThrow(
      'truncatePromptTokens: expected -1 or an integer from 1 to ',
    );
  });

  test('the long text of a pair, by its name', async () => {
    const long = 'sailors haul the anchor '.repeat(40);
    const embedder = await load('bert-mean-f32');
    await expect(embedder.rerank(long, ['a'])).rejects.toMatchObject({ param: 'query' });
    await expect(embedder.rerank('a', ['b', long])).rejects.toMatchObject({ param: 'documents[1]' });
    const pairs: [string, string][] = [
      ['a', 'b'],
      [long, 'b'],
    ];
    await expect(embedder.score(pairs)).rejects.toMatchObject({ param: 'pairs[1][0]' });
    const reranker = await load('bert-rerank-f32');
    await expect(reranker.rerank(long, ['a'])).rejects.toMatchObject({
      param: 'documents[0]',
      message: expect.stringMatching(/^query and documents\[0\] together: expected at most/) as string,
    });
    await expect(reranker.score(pairs)).rejects.toMatchObject({ param: 'pairs[1]' });
  });

  test('a result that is not a number', async () => {
    const folder = changed('bert-mean-f32', {});
    overflow(path.join(folder, 'model.safetensors'), 'encoder.layer.1.output.dense.weight');
    const engine = await load(folder);
    await expect(engine.embed(['a', 'b'])).rejects.toMatchObject({ code: 'numeric_error' });
    expect(engine.stats()).toMatchObject({ numRunning: 0, failure: null });
  });
});

describe('models whose files ask for what does not run', () => {
  test.each<[string, string, Record<string, Record<string, unknown>>, string]>([
    ['two modes', 'xlmr-cls-f32', { '1_Pooling/config.json': { pooling_mode: ['max', 'mean'] } }, 'pooling_mode'],
    ['two poolings', 'bert-mean-f32', { '1_Pooling/config.json': { pooling_mode_cls_token: true } }, 'pooling_mode'],
    [
      'means without the prompt',
      'xlmr-cls-f32',
      { '1_Pooling/config.json': { include_prompt: false } },
      'include_prompt',
    ],
    [
      'other activations',
      'gemma3-f32',
      { '2_Dense/config.json': { activation_function: 'torch.nn.Mish' } },
      'activation_function',
    ],
  ])('%s', async (_title, name, files, param) => {
    await expect(load(changed(name, files))).rejects.toMatchObject({
      code: 'unsupported_model',
      message: expect.stringContaining(param) as string,
    });
  });

  test('classifiers of several labels, and relative positions', async () => {
    const labels = { 'config.json': { id2label: { 0: 'no', 1: 'yes' } } };
    await expect(load(changed('bert-rerank-f32', labels))).rejects.toMatchObject({ param: 'id2label' });
    const relative = { 'config.json': { position_embedding_type: 'relative_key' } };
    await expect(load(changed('bert-mean-f32', relative))).rejects.toMatchObject({ param: 'position_embedding_type' });
  });

  test('unknown modules, and ones that do not parse', async () => {
    const folder = changed('bert-mean-f32', {});
    const modules = path.join(folder, 'modules.json');
    writeFileSync(modules, '[{"path": "", "type": "sentence_transformers.models.CNN"}]');
    await expect(load(folder)).rejects.toMatchObject({
      code: 'unsupported_model',
      received: '"sentence_transformers.models.CNN"',
    });
    writeFileSync(modules, '[{"path": "../x", "type": "sentence_transformers.models.Pooling"}]');
    await expect(load(folder)).rejects.toMatchObject({ code: 'invalid_model' });
    writeFileSync(modules, '[');
    await expect(load(folder)).rejects.toMatchObject({ code: 'invalid_model' });
  });

  const moduleOf = (name: string, path: string, type = `sentence_transformers.models.${name}`) => ({ path, type });
  const transformer = moduleOf('Transformer', '');
  const pooling = moduleOf('Pooling', '1_Pooling');
  const dense = moduleOf('Dense', '2_Dense');
  const normalize = moduleOf('Normalize', '4_Normalize');
  const logits = moduleOf('', '1_LogitScore', 'sentence_transformers.cross_encoder.modules.logit_score.LogitScore');

  test.each<[string, object[], string]>([
    ['a Dense without Pooling', [transformer, dense], 'modules.json'],
    [
      'a Dense of another package',
      [transformer, pooling, moduleOf('', '2_Dense', 'pylate.models.Dense.Dense')],
      'type',
    ],
    ['a Dense after Normalize', [transformer, pooling, normalize, dense], 'modules.json'],
    ['no Transformer', [pooling, normalize], 'modules.json'],
    ['two Poolings', [transformer, pooling, pooling], 'modules.json'],
    ['scores of logits in another family', [transformer, logits], 'LogitScore'],
  ])('%s', async (_title, modules, named) => {
    const folder = changed('gemma3-f32', { '1_LogitScore/config.json': { true_token_id: 5, false_token_id: 6 } });
    writeFileSync(path.join(folder, 'modules.json'), JSON.stringify(modules));
    await expect(load(folder)).rejects.toMatchObject({
      code: 'unsupported_model',
      message: expect.stringContaining(named) as string,
    });
  });

  test('modules in the order and with the names of the newest version', async () => {
    const folder = changed('gemma3-f32', {});
    const base = 'sentence_transformers.base.modules';
    const modules = [
      moduleOf('', '', `${base}.transformer.Transformer`),
      moduleOf('', '1_Pooling', 'sentence_transformers.sentence_transformer.modules.pooling.Pooling'),
      moduleOf('', '2_Dense', `${base}.dense.Dense`),
      moduleOf('', '3_Dense', `${base}.dense.Dense`),
      moduleOf('', '4_Normalize', `${base}.normalize.Normalize`),
    ];
    writeFileSync(path.join(folder, 'modules.json'), JSON.stringify(modules));
    const [one, two] = [await load('gemma3-f32'), await load(folder)];
    expect(bits((await two.embed(TOKENS)).embeddings)).toEqual(bits((await one.embed(TOKENS)).embeddings));
  });

  test.each(['module_input_name', 'module_output_name'])('%s of a Dense', async (key) => {
    const folder = changed('gemma3-f32', { '3_Dense/config.json': { [key]: 'scores' } });
    await expect(load(folder)).rejects.toMatchObject({
      code: 'unsupported_model',
      param: `3_Dense/config.json: ${key}`,
    });
  });

  test.each(['1_Pooling/config.json', '2_Dense/config.json', '2_Dense/model.safetensors'])(
    'a module without %s',
    async (file) => {
      const folder = changed('gemma3-f32', {});
      rmSync(path.join(folder, file));
      await expect(load(folder)).rejects.toMatchObject({ code: 'invalid_model', param: file });
    },
  );

  test('the weights of a module in another format, or without a tensor', async () => {
    const folder = changed('gemma3-f32', {});
    cpSync(path.join(folder, '1_Pooling/config.json'), path.join(folder, '2_Dense/pytorch_model.bin'));
    cpSync(path.join(folder, 'model.safetensors'), path.join(folder, '2_Dense/model.safetensors'));
    await expect(load(folder)).rejects.toThrow('in 2_Dense/model.safetensors, got none of that name');
    rmSync(path.join(folder, '2_Dense/model.safetensors'));
    await expect(load(folder)).rejects.toThrow(
      '2_Dense/model.safetensors: expected the weights of the module, got only pytorch_model.bin. Convert the module',
    );
  });

  test('a default prompt that the model does not have', async () => {
    const config = { prompts: { query: 'q: ', document: '' }, default_prompt_name: 'passage' };
    await expect(load(changed('bert-mean-f32', { 'config_sentence_transformers.json': config }))).rejects.toMatchObject(
      {
        code: 'invalid_model',
        message: expect.stringContaining(
          'default_prompt_name: expected null or a name in prompts (query, document)',
        ) as string,
      },
    );
  });

  test('speculative decoding', async () => {
    await expect(load('bert-mean-f32', { speculative: { numSpeculativeTokens: 3 } })).rejects.toMatchObject({
      code: 'invalid_argument',
    });
  });
});

describe('the life of a call', () => {
  const many = (count: number) => Array.from({ length: count }, (_, i) => `sailor ${i} hauls the anchor`);

  test('a call of more inputs than the queue holds is computed', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 2, maxQueuedRequests: 1 });
    const { embeddings, usage } = await engine.embed(many(300));
    expect(embeddings).toHaveLength(300);
    expect(usage.promptTokens).toBeGreaterThan(1500);
    expect(engine.stats()).toMatchObject({ numWaiting: 0, numRunning: 0, queuedPromptTokens: 0 });
    expect(engine.stats().numFinished.stop).toBe(300);
  });

  test('a call of many inputs is one call in the queue', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1, maxQueuedRequests: 2 });
    const long = engine.embed(many(1000));
    while (engine.stats().numWaiting < 100) await new Promise((resolve) => setImmediate(resolve));
    expect(() => engine.checkCapacity()).not.toThrow();
    expect((await engine.embed('a')).embeddings).toHaveLength(1);
    expect((await long).embeddings).toHaveLength(1000);
  });

  test('further calls are refused while the queue is full', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1, maxQueuedRequests: 2 });
    const first = engine.embed(many(200));
    const second = Array.from({ length: 4 }, () => engine.embed('a'));
    const results = await Promise.allSettled([first, ...second]);
    expect(results[0].status).toBe('fulfilled');
    expect(results.at(-1)).toMatchObject({ status: 'rejected', reason: { code: 'queue_full' } });
    expect((await engine.embed('a')).embeddings).toHaveLength(1);
  });

  test('two calls share the engine', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1 });
    const order: string[] = [];
    await Promise.all([
      engine.embed(many(500)).then(() => order.push('long')),
      engine.embed(many(3)).then(() => order.push('short')),
    ]);
    expect(order).toEqual(['short', 'long']);
  });

  test('an aborted call ends, and the next one runs', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1 });
    const controller = new AbortController();
    const call = engine.embed(many(2000), { signal: controller.signal });
    setImmediate(() => controller.abort('enough'));
    await expect(call).rejects.toMatchObject({ code: 'aborted', cause: 'enough' });
    await expect(engine.embed('a', { signal: controller.signal })).rejects.toMatchObject({ code: 'aborted' });
    expect((await engine.embed('a')).embeddings).toHaveLength(1);
    expect(engine.stats()).toMatchObject({ numWaiting: 0, numRunning: 0, queuedPromptTokens: 0 });
  });

  test('an input that fails ends the call and leaves nothing behind', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1 });
    await expect(engine.embed([...many(200), 'word '.repeat(100)])).rejects.toMatchObject({ param: 'inputs[200]' });
    expect((await engine.embed('a')).embeddings).toHaveLength(1);
    expect(engine.stats()).toMatchObject({ numWaiting: 0, numRunning: 0, queuedPromptTokens: 0 });
  });

  test('closing ends running and waiting inputs', async () => {
    const engine = await load('bert-mean-f32', { maxNumSeqs: 1 });
    const call = engine.embed(many(2000));
    const closed = expect(call).rejects.toMatchObject({ code: 'engine_closed' });
    await engine.close();
    await closed;
    await expect(engine.embed('a')).rejects.toMatchObject({ code: 'engine_closed' });
  });
});

test('a batch has the embeddings of single calls', async () => {
  const engine = await load('bert-mean-f32');
  const requests = ['a sailor', 'the anchor', 'haul'].map((inputs, i) => ({ customId: `${i}`, inputs }));
  let numResults = 0;
  for await (const { customId, embeddings } of engine.batch(requests)) {
    numResults++;
    expect(embeddings).toEqual(await engine.embed(requests[Number(customId)].inputs));
  }
  expect(numResults).toBe(3);
});
