/**
 * Compares the engine with golden cases: node -r ./test/oracle/register-ts.cjs test/oracle/compare.ts DIR [--cases a,b]
 * [--json FILE] [--out FILE.md]
 *
 * Compares each case with the types of its checkpoint, and with activations and KV cache in f32. Prompts together must
 * have the bits of prompts alone. Prints a table of families and number types. --json writes the tokens, --out the
 * table.
 */
import { writeFileSync } from 'node:fs';

import { Engine, type EngineOptions } from '../../ts/index';
import { Comparison, f32Tolerance, listCases, nativeTolerance } from './golden';
import type { Answer, Golden, GoldenCase, GoldenPrompt } from './golden';

export type Mode = 'native' | 'f32';

export interface CaseReport {
  case: string;
  family: string;
  dtype: string;
  mode: Mode;
  worst: number;
  mean: number;
  numTokens: number;
  numEqualTokens: number;
  failures: string[];
  answers: (Answer & { name: string })[];
}

/** More than the five of the golden, so that a near tie at the fifth place is not a difference. */
const NUM_TOP_LOGPROBS = 10;

export async function compareCase(
  { directory, golden }: GoldenCase,
  mode: Mode,
  options: EngineOptions = {},
  tolerance = mode === 'f32' ? f32Tolerance(golden) : nativeTolerance(golden),
): Promise<CaseReport> {
  const comparison = new Comparison(golden, tolerance);
  const answers: CaseReport['answers'] = [];
  const engine = await Engine.load(directory, { ...loadOptions(golden, mode), ...options });
  try {
    for (const prompt of golden.prompts) {
      const answer = await answerPrompt(engine, prompt);
      comparison.addPrompt(prompt, answer);
      answers.push({ name: prompt.name, ...answer });
    }
    comparison.addPromptLogprobs(
      await promptLogprobs(
        engine,
        golden.prompts.find((prompt) => prompt.name === golden.promptLogprobs.prompt)!,
      ),
    );
  } finally {
    await engine.close();
  }
  const { worst, mean, numTokens, numEqualTokens, failures } = comparison.finish();
  return {
    case: golden.case,
    family: golden.family,
    dtype: golden.dtype,
    mode,
    worst,
    mean,
    numTokens,
    numEqualTokens,
    failures,
    answers,
  };
}

function loadOptions(golden: Golden, mode: Mode): EngineOptions {
  const length = golden.maxModelLen === undefined ? {} : { maxModelLen: golden.maxModelLen };
  if (mode === 'f32') {
    // By default, bf16 keeps the weights that a quantized checkpoint has in 16 bits.
    const dtype = golden.dtype === 'quantized' ? ({ dtype: 'f32' } as const) : {};
    // More threads would mostly wait for each other. The other mode has them.
    return { ...length, ...dtype, computeDtype: 'f32', kvCacheDtype: 'f32', threads: 1 };
  }
  // Such narrow models compute in f32 by default.
  return { ...length, ...(golden.dtype === 'bf16' ? { computeDtype: 'bf16' } : {}) };
}

/** Asks all prompts at once, in chunks, and again from the prefix cache. Returns the answers whose bits differ. */
export async function compareTogether({ directory, golden }: GoldenCase, alone: CaseReport): Promise<string[]> {
  const options = { ...loadOptions(golden, alone.mode), maxNumSeqs: 8, maxNumBatchedTokens: 64 };
  const engine = await Engine.load(directory, options);
  const failures: string[] = [];
  try {
    for (const round of ['together in chunks', 'together from the prefix cache']) {
      const answers = await Promise.all(golden.prompts.map((prompt) => answerPrompt(engine, prompt)));
      for (const [i, answer] of answers.entries()) {
        const { name, ...expected } = alone.answers[i];
        if (JSON.stringify(answer) !== JSON.stringify(expected))
          failures.push(`prompt ${name}: other bits ${round} than alone`);
      }
    }
  } finally {
    await engine.close();
  }
  return failures;
}

async function answerPrompt(engine: Engine, prompt: GoldenPrompt): Promise<Answer> {
  const sampling = {
    temperature: 0,
    maxTokens: prompt.greedyTokenIds.length,
    logprobs: NUM_TOP_LOGPROBS,
    ignoreEos: true,
  };
  const { choices } = await engine.generate(prompt.promptTokenIds, sampling).result();
  return {
    tokenIds: [...choices[0].tokenIds],
    topLogprobs: (choices[0].logprobs ?? []).map(({ topLogprobs }) =>
      topLogprobs.map(({ tokenId, logprob }) => [tokenId, logprob] as [number, number]),
    ),
  };
}

async function promptLogprobs(engine: Engine, prompt: GoldenPrompt): Promise<(number | null)[]> {
  const result = await engine
    .generate(prompt.promptTokenIds, { temperature: 0, maxTokens: 1, ignoreEos: true, promptLogprobs: 0 })
    .result();
  return (result.promptLogprobs ?? []).map((entry) => entry?.logprob ?? null);
}

const scientific = (value: number) => value.toExponential(1);

/** Returns a Markdown table with a row per family and number type. */
export function table(reports: CaseReport[]): string {
  const groups = new Map<string, CaseReport[]>();
  for (const report of reports) {
    const key = `${report.family} | ${report.dtype}`;
    groups.set(key, [...(groups.get(key) ?? []), report]);
  }
  const cells = (group: CaseReport[], mode: Mode) => {
    const chosen = group.filter((report) => report.mode === mode);
    if (chosen.length === 0) return '- | - | -';
    const sum = (field: 'numTokens' | 'numEqualTokens' | 'mean') =>
      chosen.reduce((total, report) => total + report[field], 0);
    return `${scientific(Math.max(...chosen.map(({ worst }) => worst)))} | ${scientific(sum('mean') / chosen.length)} | ${sum('numEqualTokens')} / ${sum('numTokens')}`;
  };
  const rows = [...groups]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, group]) => {
      const isWrong = group.some(({ failures }) => failures.length > 0);
      return `| ${key} | ${cells(group, 'native')} | ${cells(group, 'f32')} |${isWrong ? ' **wrong**' : ''}`;
    });
  return [
    '| family | weights | worst | mean | tokens equal | computing in f32: worst | mean | tokens equal |',
    '|---|---|---|---|---|---|---|---|',
    ...rows,
  ].join('\n');
}

function page(source: string, numCases: number, reports: CaseReport[]): string {
  return `# The engine compared with transformers

The ${numCases} tiny random models of \`${source}\` are described in \`test/oracle/README.md\`. Each model is loaded twice: with the types of its checkpoint, and with \`computeDtype\` and \`kvCacheDtype\` f32.
Eight prompts of 1 to 600 tokens have 16 greedy tokens each.

- 'worst' and 'mean' are the largest and the mean difference of log-probabilities from transformers 5.23 in float32, in natural logarithm. They cover the top five of each step, and the prompt tokens of one prompt.
- 'tokens equal' counts tokens until they differ from those of transformers. They may differ only where transformers itself is near a tie.

${table(reports)}
`;
}

async function compareBothWays(goldenCase: GoldenCase, mode: Mode): Promise<CaseReport> {
  const report = await compareCase(goldenCase, mode);
  report.failures.push(...(await compareTogether(goldenCase, report)));
  return report;
}

async function main(args: string[]): Promise<number> {
  const option = (name: string) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
  const chosen = option('--cases')?.split(',');
  const cases = listCases(args[0]).filter(({ golden }) => chosen === undefined || chosen.includes(golden.case));
  if (cases.length === 0) throw new Error(`no case in ${args[0]}`);
  const reports: CaseReport[] = [];
  for (const goldenCase of cases) {
    for (const mode of ['native', 'f32'] as const) {
      const report = await compareBothWays(goldenCase, mode).catch((error: unknown): CaseReport => {
        const { case: name, family, dtype } = goldenCase.golden;
        return {
          case: name,
          family,
          dtype,
          mode,
          worst: Infinity,
          mean: Infinity,
          numTokens: 0,
          numEqualTokens: 0,
          failures: [String(error)],
          answers: [],
        };
      });
      reports.push(report);
      for (const failure of report.failures) console.error(`${report.case} (${mode}): ${failure}`);
    }
  }
  console.log(table(reports));
  const jsonFile = option('--json');
  if (jsonFile !== undefined) writeFileSync(jsonFile, JSON.stringify(reports));
  const outFile = option('--out');
  if (outFile !== undefined) writeFileSync(outFile, page(args[0], cases.length, reports));
  const numWrong = reports.filter(({ failures }) => failures.length > 0).length;
  console.log(
    `\n${cases.length} cases, ${reports.length - numWrong} of ${reports.length} comparisons within tolerance`,
  );
  return numWrong === 0 ? 0 : 1;
}

if (require.main === module) {
  main(process.argv.slice(2)).then(
    (status) => (process.exitCode = status),
    (error: unknown) => {
      console.error(error);
      process.exitCode = 2;
    },
  );
}
