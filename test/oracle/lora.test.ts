/** LoRA adapters against PEFT (`make_lora.py`), and the same bits alone, mixed, cached, in chunks and on two ranks. */
import path from 'node:path';
import { readdirSync, readFileSync } from 'node:fs';

import { Engine, type EngineOptions } from '../../ts/index';
import { type Answer, Comparison, F32_TOLERANCE, type Golden, nativeTolerance } from './golden';

const FIXTURES = path.join(__dirname, 'fixtures');
const LORA = path.join(FIXTURES, 'lora');

/** Models whose adapters are mixed. */
const BASES = [
  'llama3-f32',
  'qwen2-bf16',
  'phi3-f32',
  'llama3-f16',
  'granite-bf16',
  'olmo2-bf16',
  'qwen35-f32',
  'qwen3-next-f32',
  'lfm2-f32',
  'granite4-f32',
  'qwen2-moe-f32',
  'gpt-oss-f32',
  'gemma4-moe-f32',
  'gemma4-moe-bf16',
  'gemma4-f32',
  'granite-shared-f16',
];
/** Those whose sizes have two equal parts. */
const SPLIT_IN_TWO = ['granite-bf16', 'olmo2-bf16', 'qwen35-f32', 'qwen2-moe-f32', 'gpt-oss-f32', 'gemma4-moe-f32'];
/** GGUF files of models with adapters. */
const GGUF_FILES = {
  'qwen2-bf16': 'qwen2-bf16.gguf',
  'phi3-all': 'phi3-f32.gguf',
  'glm4-regex': 'glm4-f32.gguf',
  'llama31-gguf': 'llama31-f16-00001-of-00003.gguf',
  'smollm3-gguf': 'smollm3-fourth-bf16.gguf',
  'qwen35-attention': 'qwen35-f32.gguf',
  'qwen35-linear': 'qwen35-f32.gguf',
  'qwen35-moe-experts': 'qwen35-moe-f32.gguf',
  'qwen3-next-experts': 'qwen3-next-experts-f32.gguf',
  'lfm2-linear': 'lfm2-f32.gguf',
  'granite4-mamba': 'granite4-f32.gguf',
  'gpt-oss-experts': 'gpt-oss-f32.gguf',
  'gemma4-moe-experts': 'gemma4-moe-f32.gguf',
  'gemma4-inputs': 'gemma4-f32.gguf',
  'mixtral-old-experts': 'mixtral-f32.gguf',
  'qwen2-tied-head': 'qwen2-bf16.gguf',
  'granite-embedding': 'granite-bf16.gguf',
};

interface LoraGolden extends Golden {
  /** The folder of the model. */
  base: string;
}

const goldens = readdirSync(LORA).map(
  (name) => JSON.parse(readFileSync(path.join(LORA, name, 'golden.json'), 'utf8')) as LoraGolden,
);

async function withEngine<T>(base: string, options: EngineOptions, use: (engine: Engine) => Promise<T>): Promise<T> {
  const engine = await Engine.load(path.join(FIXTURES, base), { threads: 2, ...options });
  try {
    return await use(engine);
  } finally {
    await engine.close();
  }
}

async function answerOf(engine: Engine, prompt: number[], maxTokens: number, adapter?: string): Promise<Answer> {
  const sampling = { temperature: 0, maxTokens, logprobs: 8, ignoreEos: true, ...(adapter && { adapter }) };
  const { choices } = await engine.generate(prompt, sampling).result();
  return {
    tokenIds: [...choices[0].tokenIds],
    topLogprobs: choices[0].logprobs!.map(({ topLogprobs }) =>
      topLogprobs.map(({ tokenId, logprob }) => [tokenId, logprob] as [number, number]),
    ),
  };
}

async function compare(golden: LoraGolden, options: EngineOptions, comparison: Comparison): Promise<Comparison> {
  const loraModules = { tuned: path.join(LORA, golden.case) };
  await withEngine(golden.base, { loraModules, ...options }, async (engine) => {
    for (const prompt of golden.prompts)
      comparison.addPrompt(
        prompt,
        await answerOf(engine, prompt.promptTokenIds, prompt.greedyTokenIds.length, 'tuned'),
      );
    const { promptTokenIds } = golden.prompts.find(({ name }) => name === golden.promptLogprobs.prompt)!;
    const scored = await engine
      .generate(promptTokenIds, { maxTokens: 0, promptLogprobs: 0, adapter: 'tuned' })
      .result();
    comparison.addPromptLogprobs(scored.promptLogprobs!.map((entry) => entry?.logprob ?? null));
  });
  return comparison.finish();
}

describe.each(goldens.map((golden) => [golden.case, golden] as const))('%s equals PEFT', (_name, golden) => {
  test('with the types of its model', async () => {
    expect((await compare(golden, {}, new Comparison(golden, nativeTolerance(golden)))).failures).toEqual([]);
  });

  test('in f32', async () => {
    const options = { dtype: 'f32', computeDtype: 'f32' } as const;
    expect((await compare(golden, options, new Comparison(golden, F32_TOLERANCE))).failures).toEqual([]);
  });
});

describe.each(BASES)('%s gives the same bits', (base) => {
  const own = goldens.filter((golden) => golden.base === base);
  const { prompts } = own[0];
  const long = prompts.find(({ name }) => name === '64')!.promptTokenIds;
  const calls = [undefined, ...own.map((golden) => golden.case)].flatMap((adapter) =>
    [long, long.slice(0, 40), long.slice(7, 9)].map((prompt) => ({ prompt, adapter })),
  );
  const loraModules = Object.fromEntries(own.map((golden) => [golden.case, path.join(LORA, golden.case)]));
  const run = (engine: Engine, isBatch: boolean) => {
    const start = ({ prompt, adapter }: (typeof calls)[number]) => answerOf(engine, prompt, 12, adapter);
    if (isBatch) return Promise.all(calls.map(start));
    return calls.reduce<Promise<Answer[]>>(
      async (answers, call) => [...(await answers), await start(call)],
      Promise.resolve([]),
    );
  };
  let alone: Answer[];

  beforeAll(async () => {
    alone = await withEngine(base, { loraModules, prefixCache: false }, (engine) => run(engine, false));
  });

  test('and each adapter gives other ones', () => {
    expect(new Set(alone.map((answer) => JSON.stringify(answer))).size).toBe(calls.length);
  });

  test.each<[string, EngineOptions, boolean]>([
    ['mixed in a batch', {}, true],
    ['from the prefix cache', {}, false],
    ['in chunks', { maxNumSeqs: 8, maxNumBatchedTokens: 11, prefixCache: false }, true],
    ['with one thread', { threads: 1 }, true],
    ['with drafts', { speculative: { numSpeculativeTokens: 3, promptLookupMin: 1, promptLookupMax: 3 } }, true],
    ['with a larger maximum rank', { maxLoraRank: 256 }, true],
  ])('%s', async (_variant, options, isBatch) => {
    await withEngine(base, { loraModules, ...options }, async (engine) => {
      expect(await run(engine, isBatch)).toEqual(alone);
      expect(await run(engine, isBatch)).toEqual(alone);
    });
  });

  test('without an adapter as in an engine without adapters', async () => {
    const plain = await withEngine(base, { prefixCache: false }, (engine) =>
      Promise.all(calls.slice(0, 3).map(({ prompt }) => answerOf(engine, prompt, 12))),
    );
    expect(plain).toEqual(alone.slice(0, 3));
  });

  if (SPLIT_IN_TWO.includes(base))
    test('on two ranks', async () => {
      const options = { loraModules, tensorParallelSize: 2 };
      expect(await withEngine(base, options, (engine) => run(engine, true))).toEqual(alone);
    });
});

describe.each(['int8', 'int4'] as const)('a model in %s', (quantization) => {
  const find = (name: string) => goldens.find((entry) => entry.case === name)!;

  test('is about as far from PEFT with an adapter as it is from transformers without', async () => {
    const options = { quantization, computeDtype: 'f32' } as const;
    const golden = find('qwen2-bf16');
    const comparison = await compare(golden, options, new Comparison(golden, { worst: Infinity, mean: Infinity }));
    expect(comparison.mean).toBeLessThan(quantization === 'int8' ? 0.1 : 0.8);
  });

  test.each<[string, EngineOptions]>([
    ['qwen2-bf16', {}],
    ['qwen2-bf16', { computeDtype: 'f32' }],
    ['granite-embedding', {}],
    ['qwen2-moe-experts', {}],
    ['gemma4-moe-bf16', {}],
    ['gemma4-inputs', {}],
  ])('gives the same bits alone and mixed (%s, %j)', async (name, compute) => {
    const golden = find(name);
    const [{ promptTokenIds: prompt }] = golden.prompts.slice(-1);
    const loraModules = { tuned: path.join(LORA, golden.case) };
    const options = { loraModules, quantization, prefixCache: false, ...compute };
    await withEngine(golden.base, options, async (engine) => {
      const adapters = ['tuned', undefined, 'tuned', undefined, 'tuned', 'tuned', 'tuned'];
      const alone = { tuned: await answerOf(engine, prompt, 6, 'tuned'), none: await answerOf(engine, prompt, 6) };
      expect(alone.tuned).not.toEqual(alone.none);
      expect(await Promise.all(adapters.map((adapter) => answerOf(engine, prompt, 6, adapter)))).toEqual(
        adapters.map((adapter) => (adapter === undefined ? alone.none : alone.tuned)),
      );
    });
  });
});

test.each(Object.entries(GGUF_FILES))('%s equals PEFT on a GGUF file', async (name, file) => {
  const golden = goldens.find((entry) => entry.case === name)!;
  const gguf = { ...golden, base: path.join('gguf', file) };
  const options = { dtype: 'f32', computeDtype: 'f32' } as const;
  expect((await compare(gguf, options, new Comparison(golden, F32_TOLERANCE))).failures).toEqual([]);
});

test('an adapter that is loaded again finds no blocks of the old one', async () => {
  await withEngine('llama3-f32', { enableLora: true }, async (engine) => {
    const prompt = goldens[0].prompts.find(({ name }) => name === '64')!.promptTokenIds;
    const cached = async () =>
      (await engine.generate(prompt, { maxTokens: 1, adapter: 'tuned' }).result()).usage.cachedTokens;
    await engine.loadAdapter('tuned', path.join(LORA, 'llama-all'));
    expect([await cached(), (await cached()) > 0]).toEqual([0, true]);
    engine.unloadAdapter('tuned');
    await expect(cached()).rejects.toThrow('adapter: expected the name of a loaded adapter, got "tuned"');
    await engine.loadAdapter('tuned', path.join(LORA, 'llama-patterns'));
    expect(await cached()).toBe(0);
  });
});

test('adapters come and go while calls use them, and change no answer', async () => {
  const names = ['llama-all', 'llama-patterns'];
  const prompt = goldens[0].prompts.find(({ name }) => name === '31')!.promptTokenIds;
  await withEngine('llama3-f32', { enableLora: true, maxLoras: 3 }, async (engine) => {
    const expected = new Map<string | undefined, Answer>([[undefined, await answerOf(engine, prompt, 12)]]);
    for (const name of names) {
      await engine.loadAdapter(name, path.join(LORA, name));
      expected.set(name, await answerOf(engine, prompt, 12, name));
      engine.unloadAdapter(name);
    }
    let state = 7;
    const random = (count: number) => (state = (state * 48271) % 2147483647) % count;
    const running: Promise<void>[] = [];
    for (let i = 0; i < 40; i++) {
      const name = names[random(2)];
      const isLoaded = engine.adapters.some((adapter) => adapter.name === name);
      const action = random(4);
      if (action === 0 && isLoaded) engine.unloadAdapter(name);
      else if (action === 1 && !isLoaded) await engine.loadAdapter(name, path.join(LORA, name));
      const adapter = isLoaded && action !== 0 ? name : undefined;
      running.push(
        answerOf(engine, prompt, 12, adapter).then((answer) => expect(answer).toEqual(expected.get(adapter))),
      );
    }
    await Promise.all(running);
    expect(engine.adapters.every(({ numCalls }) => numCalls === 0)).toBe(true);
  });
});
