/** How requests run together changes no bit, in families whose layers differ from those of Llama. */
import path from 'node:path';

import { Engine, type EngineOptions } from '../../ts/index';
import { listCases } from './golden';

const SPLITTABLE = [
  'apertus-bf16',
  'cohere2-bf16',
  'gemma3-bf16',
  'gemma4-bf16',
  'gemma4-moe-f32',
  'gpt-oss-f32',
  'granite-bf16',
  'olmo2-bf16',
  'qwen2-moe-f32',
  'qwen3-moe-bf16',
];
const FAMILIES = [
  ...SPLITTABLE,
  'apertus-f32',
  'cohere2-f32',
  'exaone4-f32',
  'gemma4-moe-bf16',
  'gemma4-f32',
  'glm4-moe-f32',
  'gemma2-f32',
  'olmo3-f32',
];
const cases = listCases(path.join(__dirname, 'fixtures')).filter(({ golden }) => FAMILIES.includes(golden.case));

interface Answer {
  tokenIds: readonly number[];
  logprobs: number[];
}

async function ask(engine: Engine, promptTokenIds: number[]): Promise<Answer> {
  const sampling = { temperature: 0, maxTokens: 12, logprobs: 2, ignoreEos: true };
  const { choices } = await engine.generate(promptTokenIds, sampling).result();
  const logprobs = choices[0].logprobs!.flatMap(({ topLogprobs }) => topLogprobs.map(({ logprob }) => logprob));
  return { tokenIds: choices[0].tokenIds, logprobs };
}

describe.each(cases)('$golden.case', ({ directory, golden }) => {
  const prompts = golden.prompts.slice(0, 6).map(({ promptTokenIds }) => promptTokenIds);

  async function answers(options: EngineOptions, isBatch: boolean): Promise<Answer[]> {
    const computeDtype = golden.dtype === 'bf16' ? 'bf16' : 'auto';
    const engine = await Engine.load(directory, { threads: 2, computeDtype, ...options });
    try {
      if (isBatch) return await Promise.all(prompts.map((prompt) => ask(engine, prompt)));
      const results: Answer[] = [];
      for (const prompt of prompts) results.push(await ask(engine, prompt));
      return results;
    } finally {
      await engine.close();
    }
  }

  let alone: Answer[];
  beforeAll(async () => {
    alone = await answers({}, false);
  });

  test.each<[string, EngineOptions]>([
    ['together', {}],
    ['in chunks of 64 tokens', { maxNumSeqs: 8, maxNumBatchedTokens: 64 }],
    ['on one thread', { threads: 1 }],
    ['without a prefix cache', { prefixCache: false }],
  ])('%s', async (_name, options) => {
    expect(await answers(options, true)).toEqual(alone);
  });

  if (SPLITTABLE.includes(golden.case))
    test('on two ranks', async () => {
      expect(await answers({ tensorParallelSize: 2 }, true)).toEqual(alone);
    });
});
