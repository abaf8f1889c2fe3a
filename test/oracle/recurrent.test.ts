import path from 'node:path';

import { Engine, type EngineOptions } from '../../ts/index';
import { listCases } from './golden';
import { untilPreempted } from './preempted';

/** Cases whose sizes have two equal parts. The others are refused. */
const SPLIT_IN_TWO = ['lfm2-bf16', 'qwen35-f32', 'qwen3-next-f32', 'granite4-bf16'];
const HYBRIDS = ['short-conv', 'delta-net', 'mamba2'];
const cases = listCases(path.join(__dirname, 'fixtures')).filter(({ golden }) =>
  golden.features.some((feature) => HYBRIDS.includes(feature)),
);

interface Result {
  tokenIds: number[];
  logprobs: number[];
}

/** Completes the prompts, all at once or one after the other. */
async function complete(engine: Engine, prompts: number[][], isBatch: boolean, maxTokens = 24): Promise<Result[]> {
  const one = async (prompt: number[]): Promise<Result> => {
    const sampling = { temperature: 0, maxTokens, logprobs: 0, ignoreEos: true };
    const { choices } = await engine.generate(prompt, sampling).result();
    return {
      tokenIds: [...choices[0].tokenIds],
      logprobs: (choices[0].logprobs ?? []).map(({ logprob }) => logprob),
    };
  };
  if (isBatch) return Promise.all(prompts.map(one));
  const results: Result[] = [];
  for (const prompt of prompts) results.push(await one(prompt));
  return results;
}

async function withEngine<T>(
  directory: string,
  options: EngineOptions,
  use: (engine: Engine) => Promise<T>,
): Promise<T> {
  const engine = await Engine.load(directory, { threads: 2, ...options });
  try {
    return await use(engine);
  } finally {
    await engine.close();
  }
}

/** Prompts that share a prefix of more than 512 tokens, that repeat themselves, and short ones. */
function makePrompts(random: number[]): number[][] {
  const long = [...random, ...random.slice(1, 90)];
  const loop = Array.from({ length: 40 }, (_, i) => random[i % 5]);
  return [long, [...long.slice(0, 560), ...random.slice(7, 40)], random.slice(0, 300), loop, random.slice(3, 4)];
}

const VARIANTS: [name: string, options: EngineOptions, isBatch: boolean][] = [
  ['in a batch', {}, true],
  ['in chunks of 37 tokens', { maxNumSeqs: 8, maxNumBatchedTokens: 37, prefixCache: false }, false],
  ['in chunks in a batch', { maxNumSeqs: 8, maxNumBatchedTokens: 29 }, true],
  ['with one thread', { threads: 1 }, false],
  ['with drafts', { speculative: { numSpeculativeTokens: 4, promptLookupMin: 1, promptLookupMax: 3 } }, true],
];

test('there is a case of each kind', () => {
  for (const kind of HYBRIDS) expect(cases.some(({ golden }) => golden.features.includes(kind))).toBe(true);
});

describe.each(cases.map((entry) => [entry.golden.case, entry] as const))('%s gives the same bits', (_name, entry) => {
  const prompts = makePrompts(entry.golden.prompts.find(({ name }) => name === '600')!.promptTokenIds);
  let cold: Result[];
  let cacheBytes = 0; // of a KV cache for 64 sequences

  beforeAll(async () => {
    await withEngine(entry.directory, { prefixCache: false }, async (engine) => {
      cold = await complete(engine, prompts, false);
      cacheBytes = engine.info.kvCacheBytes;
    });
  });

  test('from the prefix cache', async () => {
    await withEngine(entry.directory, {}, async (engine) => {
      expect(await complete(engine, prompts, false)).toEqual(cold);
      expect(await complete(engine, prompts, false)).toEqual(cold);
      expect(engine.stats().prefixCacheHitRate).toBeGreaterThan(0.4);
    });
  });

  test.each(VARIANTS)('%s', async (_variant, options, isBatch) => {
    expect(await withEngine(entry.directory, options, (engine) => complete(engine, prompts, isBatch))).toEqual(cold);
  });

  test('after preemptions', async () => {
    const short = [prompts[3], prompts[4], prompts[2].slice(0, 30), prompts[2].slice(60, 71)];
    const alone = await withEngine(entry.directory, { maxModelLen: 300, prefixCache: false }, (engine) =>
      complete(engine, short, false, 250),
    );
    const small = { maxModelLen: 300, kvCacheBytes: Math.ceil(cacheBytes / 90), maxNumSeqs: 4 };
    await withEngine(entry.directory, small, (engine) =>
      untilPreempted(engine, async () => expect(await complete(engine, short, true, 250)).toEqual(alone)),
    );
  });

  test('on two ranks, or says why it does not fit', async () => {
    const results = withEngine(entry.directory, { tensorParallelSize: 2 }, (engine) => complete(engine, prompts, true));
    if (SPLIT_IN_TWO.includes(entry.golden.case)) expect(await results).toEqual(cold);
    else await expect(results).rejects.toThrow(/tensorParallelSize 2 does not fit this model: .*\d/);
  });
});
