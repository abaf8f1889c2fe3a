/**
 * Compares models that pool with their goldens: node -r ./test/oracle/register-ts.cjs test/oracle/compare-embeddings.ts
 * DIR [--cases a,b]
 *
 * Each model computes in f32 and as its files say. Inputs together must have the bits of inputs alone.
 */
import { existsSync } from 'node:fs';
import path from 'node:path';
import type { Engine, EngineOptions } from '../../ts';
import {
  type EmbeddingGolden,
  listPoolingCases,
  type PoolingCase,
  type ScoreGolden,
  withEngine,
  worstCosine,
} from './embedding-golden';

const MODES = ['f32', 'auto'] as const;
type Mode = (typeof MODES)[number];

/** Differences that are allowed. `length` is a share, `score` one of a score or of 1, if that is more. */
const F32 = { cosine: 1e-5, length: 1e-4, score: 1e-4 };
/** A dense layer has the type of the model, also if its file has f32. */
const F32_OF_BF16 = { ...F32, cosine: 1e-4, length: 1e-3 };
const BF16 = { cosine: 1e-3, length: 0.03, score: 0.05 };

async function compare({ directory, golden }: PoolingCase, mode: Mode): Promise<string[]> {
  const options: EngineOptions = { task: golden.task, computeDtype: mode };
  const ofBf16 = mode === 'f32' ? F32_OF_BF16 : BF16;
  const bounds = golden.dtype === 'f32' ? F32 : ofBf16;
  return withEngine(directory, options, (engine) =>
    golden.task === 'embed'
      ? compareEmbeddings(engine, golden, bounds, existsSync(path.join(directory, 'modules.json')))
      : compareScores(engine, golden, bounds),
  );
}

async function compareEmbeddings(
  engine: Engine,
  golden: EmbeddingGolden,
  bounds: typeof F32,
  hasModules: boolean,
): Promise<string[]> {
  const failures: string[] = [];
  const check = (title: string, ours: Float32Array[], theirs: number[][]): void => {
    const cosine = worstCosine(ours, theirs);
    if (!(cosine > 1 - bounds.cosine)) failures.push(`${title}: cosine ${cosine}`);
    // Without the files of sentence-transformers embeddings are normalized; sentence-transformers leaves them.
    const lengths = ours.map((values, i) => Math.hypot(...values) / (hasModules ? Math.hypot(...theirs[i]) : 1));
    const wrong = lengths.find((ratio) => Math.abs(ratio - 1) > bounds.length);
    if (wrong !== undefined) failures.push(`${title}: length ${wrong} of that of the judge`);
  };
  // Sentence-transformers truncates.
  const truncated = { truncatePromptTokens: -1 };
  const { embeddings } = await engine.embed(golden.texts, truncated);
  check('texts', embeddings, golden.embeddings);
  const alone: Float32Array[] = [];
  for (const text of golden.texts) alone.push(...(await engine.embed(text, truncated)).embeddings);
  if (alone.some((values, i) => !Buffer.from(values.buffer).equals(Buffer.from(embeddings[i].buffer))))
    failures.push('texts: other bits alone than together');
  const two = golden.texts.slice(1, 3);
  for (const [promptName, expected] of Object.entries(golden.prompts))
    check(`prompt ${promptName}`, (await engine.embed(two, { ...truncated, promptName })).embeddings, expected);
  check('long text', (await engine.embed(golden.long.text, truncated)).embeddings, [golden.long.embedding]);
  const short = (await engine.embed(two, { ...truncated, dimensions: 8, normalize: true })).embeddings;
  if (!(worstCosine(short, golden.short) > 1 - bounds.cosine)) failures.push('short: other values');
  if (engine.info.maxModelLen !== golden.long.length)
    failures.push(`at most ${engine.info.maxModelLen} tokens instead of ${golden.long.length}`);
  return failures;
}

async function compareScores(engine: Engine, golden: ScoreGolden, bounds: typeof F32): Promise<string[]> {
  const failures: string[] = [];
  const check = (title: string, ours: readonly number[], theirs: readonly number[]): void => {
    const wrong = ours.findIndex(
      (value, i) => !(Math.abs(value - theirs[i]) <= bounds.score * Math.max(1, Math.abs(theirs[i]))),
    );
    if (wrong >= 0) failures.push(`${title}: score ${wrong} is ${ours[wrong]} instead of ${theirs[wrong]}`);
  };
  const { query, documents, truncatedTo } = golden;
  check('scores', (await engine.rerank(query, documents)).scores, golden.scores);
  check(
    'truncated',
    (await engine.rerank(query, documents, { truncatePromptTokens: truncatedTo })).scores,
    golden.truncated,
  );
  return failures;
}

async function main(args: string[]): Promise<number> {
  const chosen = args[1] === '--cases' ? args[2].split(',') : undefined;
  const cases = listPoolingCases(args[0]).filter(({ name }) => chosen === undefined || chosen.includes(name));
  if (cases.length === 0) throw new Error(`no case in ${args[0]}`);
  let numWrong = 0;
  for (const poolingCase of cases)
    for (const mode of MODES) {
      const failures = await compare(poolingCase, mode).catch((error: unknown) => [String(error)]);
      if (failures.length > 0) numWrong++;
      for (const failure of failures) console.error(`${poolingCase.name} (${mode}): ${failure}`);
    }
  console.log(
    `${cases.length} models that pool, ${2 * cases.length - numWrong} of ${2 * cases.length} comparisons agree`,
  );
  return numWrong === 0 ? 0 : 1;
}

main(process.argv.slice(2)).then(
  (status) => (process.exitCode = status),
  (error: unknown) => {
    console.error(error);
    process.exitCode = 2;
  },
);
