/**
 * Compares the files of random_gguf.py: node -r ./test/oracle/register-ts.cjs test/oracle/compare-gguf.ts DIR
 *
 * A file in f32 gives the results of transformers. A file of codes gives those of the file with their values. These
 * are written to CASE.values.json for `llama-cpp.py DIR --files`.
 */
import { existsSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { compareCase } from './compare';
import { type Answer, Comparison, F32_TOLERANCE, f32Tolerance, type GoldenCase, listCases } from './golden';

async function compareFiles({ directory, golden }: GoldenCase): Promise<string[]> {
  const file = (kind: string) => `${directory}.${kind}.gguf`;
  const plain = await compareCase({ directory: file('f32'), golden }, 'f32', { dtype: 'f32' });
  const failures = plain.failures.map((failure) => `f32: ${failure}`);
  const any = { worst: Infinity, mean: Infinity };
  const options = { dtype: 'f32' } as const;
  const values = await compareCase({ directory: file('values'), golden }, 'f32', options, any);
  const codes = await compareCase({ directory: file('codes'), golden }, 'f32', options, any);
  const prompts = golden.prompts.map(({ name, promptTokenIds }, i) =>
    toPrompt(name, promptTokenIds, values.answers[i]),
  );
  writeFileSync(`${directory}.values.json`, JSON.stringify({ float32Cost: golden.float32Cost, prompts }));
  const comparison = new Comparison(golden, { ...F32_TOLERANCE, worst: Math.max(2e-3, f32Tolerance(golden).worst) });
  for (const [i, { name: _, ...answer }] of codes.answers.entries()) comparison.addPrompt(prompts[i], answer);
  return [...failures, ...comparison.finish().failures.map((failure) => `codes: ${failure}`)];
}

/** The answer of one file as the golden of another. */
function toPrompt(name: string, promptTokenIds: number[], { tokenIds, topLogprobs }: Answer) {
  const top = topLogprobs.map((step) => step.slice(0, 5));
  const margins = top.map(([[, first], [, second]]) => first - second);
  return { name, promptTokenIds, greedyTokenIds: tokenIds, topLogprobs: top, margins };
}

async function main([folder]: string[]): Promise<number> {
  const cases = listCases(folder).filter(({ directory }) => existsSync(`${directory}.codes.gguf`));
  if (cases.length === 0) throw new Error(`no files in ${folder}`);
  let numWrong = 0;
  for (const goldenCase of cases) {
    const failures = await compareFiles(goldenCase).catch((error: unknown) => [String(error)]);
    if (failures.length > 0) numWrong++;
    for (const failure of failures) console.error(`${path.basename(goldenCase.directory)}: ${failure}`);
  }
  console.log(`${cases.length} GGUF models, ${cases.length - numWrong} agree`);
  return numWrong === 0 ? 0 : 1;
}

main(process.argv.slice(2)).then(
  (status) => (process.exitCode = status),
  (error: unknown) => {
    console.error(error);
    process.exitCode = 2;
  },
);
