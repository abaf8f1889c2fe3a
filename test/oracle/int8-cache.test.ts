/** Every family with a KV cache in 8 bits: close to transformers, and the same bits in every order. */
import path from 'node:path';

import { Engine, type EngineOptions } from '../../ts/index';
import { compareCase } from './compare';
import { listCases, nativeTolerance } from './golden';

const INT8: EngineOptions = { kvCacheDtype: 'int8' };
/**
 * More than bf16 may cost (architecture, contract 4): a code rounds a value by up to a 254th of the largest one of its
 * head, and random models feel it most. The worst value of one model also depends on how the processor rounds bf16, so
 * the bound of `worst` is added to the one without the cache. The mean hardly depends on the processor.
 */
const INT8_TOLERANCE = { worst: 0.5, mean: 0.05 };
const cases = listCases(path.join(__dirname, 'fixtures'));
/** Without mixtures: a rounded key can change which experts a token takes, and then everything after it. */
const COMPARED = cases.filter(({ golden }) => !golden.features.some((feature) => feature.includes('experts')));
/** Windows, shared keys and values, sinks, soft caps, recurrent layers, experts. */
const ORDERED = cases.filter(({ golden }) =>
  ['gemma3-bf16', 'gemma4-bf16', 'gemma2-f32', 'gpt-oss-f32', 'granite4-bf16', 'lfm2-f32', 'qwen35-bf16'].includes(
    golden.case,
  ),
);

interface Result {
  tokenIds: number[];
  logprobs: number[];
}

async function complete(directory: string, options: EngineOptions, prompts: number[][], isBatch: boolean) {
  const engine = await Engine.load(directory, { threads: 2, ...INT8, ...options });
  const one = async (prompt: number[]): Promise<Result> => {
    const sampling = { temperature: 0, maxTokens: 16, logprobs: 0, ignoreEos: true };
    const { choices } = await engine.generate(prompt, sampling).result();
    return {
      tokenIds: [...choices[0].tokenIds],
      logprobs: (choices[0].logprobs ?? []).map(({ logprob }) => logprob),
    };
  };
  try {
    if (isBatch) return await Promise.all(prompts.map(one));
    const results: Result[] = [];
    for (const prompt of prompts) results.push(await one(prompt));
    return results;
  } finally {
    await engine.close();
  }
}

describe('a KV cache in 8 bits', () => {
  test.each(COMPARED.map((entry) => [entry.golden.case, entry] as const))(
    '%s agrees with transformers',
    async (_, entry) => {
      const { worst, mean } = nativeTolerance(entry.golden);
      const tolerance = { worst: worst + INT8_TOLERANCE.worst, mean: Math.max(mean, INT8_TOLERANCE.mean) };
      const report = await compareCase(entry, 'native', INT8, tolerance);
      expect(report.failures).toEqual([]);
    },
  );

  test('the cases with the same bits in every order exist', () => {
    expect(ORDERED).toHaveLength(7);
  });

  test.each(ORDERED.map((entry) => [entry.golden.case, entry] as const))(
    '%s gives the same bits in every order',
    async (_, { directory, golden }) => {
      const prompts = golden.prompts.map(({ promptTokenIds }) => promptTokenIds);
      const alone = await complete(directory, { prefixCache: false }, prompts, false);
      const variants: [EngineOptions, boolean][] = [
        [{}, true],
        [{ maxNumSeqs: 4, maxNumBatchedTokens: 13 }, true],
        [{ threads: 1, prefixCache: false, maxNumSeqs: 1 }, false],
      ];
      for (const [options, isBatch] of variants)
        expect(await complete(directory, options, [...prompts, ...prompts], isBatch)).toEqual([...alone, ...alone]);
    },
  );
});
