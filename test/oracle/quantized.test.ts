/** Quantized checkpoints (`make_quantized.py`) give the results of transformers for their values. */
import path from 'node:path';

import { Engine } from '../../ts/index';
import { compareCase } from './compare';
import { type GoldenCase, listCases } from './golden';

const cases = listCases(path.join(__dirname, 'fixtures', 'quantized'));

test('the fixtures cover every method', () => {
  expect(cases.map(({ golden }) => golden.case)).toEqual([
    'awq',
    'awq-qwen3-moe',
    'bitsandbytes-fp4',
    'bitsandbytes-int8',
    'bitsandbytes-nf4',
    'compressed-fp8',
    'compressed-int4',
    'compressed-int8',
    'compressed-mxfp4',
    'compressed-nvfp4',
    'fp8-blocks',
    'gpt-oss-mxfp4',
    'gptq',
    'gptq-3bit',
    'gptq-act-order',
    'gptq-v2-8bit',
    'modelopt-mixed',
    'modelopt-nvfp4-qwen3-moe',
    'mxfp4',
  ]);
});

/** Returns the greedy tokens and their log-probabilities of the first prompts, one by one or all at once. */
async function answersOf({ directory, golden }: GoldenCase, tensorParallelSize: number, isBatch: boolean) {
  const engine = await Engine.load(directory, { tensorParallelSize, threads: 2 });
  const ask = async ({ promptTokenIds }: (typeof golden.prompts)[number]) => {
    const sampling = { temperature: 0, maxTokens: 8, logprobs: 3, ignoreEos: true };
    const { choices } = await engine.generate(promptTokenIds, sampling).result();
    return { tokenIds: choices[0].tokenIds, logprobs: choices[0].logprobs };
  };
  const prompts = golden.prompts.slice(0, 4);
  const answers: Awaited<ReturnType<typeof ask>>[] = [];
  if (isBatch) answers.push(...(await Promise.all(prompts.map(ask))));
  else for (const prompt of prompts) answers.push(await ask(prompt));
  await engine.close();
  return answers;
}

describe.each(cases)('$golden.case', (quantized) => {
  test.each(['native', 'f32'] as const)('has the results of transformers (%s)', async (mode) => {
    const report = await compareCase(quantized, mode);
    expect(report.failures).toEqual([]);
  });

  test('has the same bits with two ranks, and alone', async () => {
    const batch = await answersOf(quantized, 1, true);
    expect(await answersOf(quantized, 1, false)).toEqual(batch);
    expect(await answersOf(quantized, 2, true)).toEqual(batch);
  });
});

test('the log says which weights are decoded, and that they are quantized again', async () => {
  const notesOf = async (name: string, options: Parameters<typeof Engine.load>[1] = {}) => {
    const engine = await Engine.load(path.join(__dirname, 'fixtures', 'quantized', name), options);
    const { notes } = engine.info;
    await engine.close();
    return notes.join('\n');
  };
  expect(await notesOf('awq')).not.toMatch(/quantized/);
  expect(await notesOf('gptq')).not.toMatch(/quantized/);
  expect(await notesOf('bitsandbytes-int8')).not.toMatch(/quantized/);
  expect(await notesOf('bitsandbytes-nf4')).toMatch(/7 of 7 quantized weights are decoded to bf16/);
  expect(await notesOf('gptq-act-order')).toMatch(/7 of 7 quantized weights are decoded to bf16/);
  expect(await notesOf('fp8-blocks', { dtype: 'f32' })).toMatch(/7 of 7 quantized weights are decoded to f32/);
  expect(await notesOf('awq', { quantization: 'int8' })).toMatch(/are quantized again to int8/);
});
