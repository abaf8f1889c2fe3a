// Measures speculative decoding: the time of one stream with it, as a share of the time without it. By prompt look-up:
//   copy        greedy output after a prompt that repeats a text
//   repeat      one id is allowed, so every proposal holds: for a model with random weights, which copies nothing
//   new         output drawn almost evenly from the whole vocabulary: nothing to copy
//   misleading  output drawn evenly from 50 ids: look-ups always find a place, and what followed there is wrong
// With --draft by a draft model:
//   greedy      temperature 0
//   sampled     temperature 0.8
//   node -r ./test/oracle/register-ts.cjs benchmarks/speculation.ts MODEL_DIR [--rounds 7] [--tokens 200] [--streams 1]
//     [--tasks copy,new] [--draft DRAFT_DIR] [--draft-tokens 4] [--out FILE.md]
// make_draft.py beside make_model.py makes a model and its draft model, which agree in most tokens. MODEL_DIR is the
// 0.5 B model of benchmarks/peers/make_model.py, or demo. The two engines take turns, so that other work on the machine
// delays both.
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { parseArgs } from 'node:util';
import { Engine, type SamplingParams, type SpeculativeOptions } from '../ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: 'string', default: '7' },
    tokens: { type: 'string', default: '200' },
    streams: { type: 'string', default: '1' },
    tasks: { type: 'string' },
    draft: { type: 'string' },
    'draft-tokens': { type: 'string', default: '4' },
    out: { type: 'string' },
  },
});
const model = positionals[0] ?? 'demo';
const [rounds, maxTokens, streams] = [values.rounds, values.tokens, values.streams].map(Number);
const SPECULATIVE = { method: 'ngram', numSpeculativeTokens: 7, promptLookupMax: 4, promptLookupMin: 2 } as const;
const COPY = 'The harbour has nine boats, a tall crane and a small blue house. ';
const PROMPT = `${COPY.repeat(4)}\nRepeat it: ${COPY}`;
const EVEN: SamplingParams = { temperature: 100, topK: 0, topP: 1, minP: 0 };
const lines: string[] = [];
const median = (numbers: readonly number[]): number => [...numbers].sort((a, b) => a - b)[numbers.length >> 1]!;

interface Task {
  name: string;
  speculative: SpeculativeOptions;
  sampling: SamplingParams;
  target: string;
}

const LOOK_UP: readonly Task[] = [
  { name: 'copy', speculative: SPECULATIVE, sampling: { temperature: 0 }, target: '≥ 1.8×' },
  { name: 'repeat', speculative: SPECULATIVE, sampling: { temperature: 0, allowedTokenIds: [300] }, target: '≥ 1.8×' },
  { name: 'new', speculative: SPECULATIVE, sampling: { ...EVEN }, target: '≥ 0.97×' },
  {
    name: 'misleading',
    speculative: { ...SPECULATIVE, promptLookupMin: 1 },
    sampling: { ...EVEN, allowedTokenIds: Array.from({ length: 50 }, (_, i) => 300 + 7 * i) },
    target: '≥ 0.97×',
  },
];

const draftTasks = (draft: string): Task[] => {
  const speculative = { model: draft, numSpeculativeTokens: Number(values['draft-tokens']) };
  return [
    { name: 'greedy', speculative, sampling: { temperature: 0 }, target: '–' },
    { name: 'sampled', speculative, sampling: { temperature: 0.8 }, target: '–' },
  ];
};

/** Milliseconds per token of one stream, prefill excluded, and the tokens of all streams. */
async function time(engine: Engine, sampling: SamplingParams, round: number): Promise<[number, string]> {
  const answers = await Promise.all(
    Array.from({ length: streams }, (_, i) =>
      engine
        .generate(
          PROMPT,
          { ...sampling, seed: 100 * round + i, maxTokens, ignoreEos: true },
          { cacheSalt: `${round} ${i}` },
        )
        .result(),
    ),
  );
  const decodeMs = answers.map(({ usage }) => usage.timings.decodeMs);
  return [
    median(decodeMs) / (maxTokens - 1),
    JSON.stringify(answers.map(({ choices }) => choices.map((c) => c.tokenIds))),
  ];
}

async function measure({ name, speculative, sampling, target }: Task, plain: Engine): Promise<void> {
  const drafting = await Engine.load(model, { speculative });
  const [ratios, plainMs, draftingMs]: number[][] = [[], [], []];
  for (let round = 0; round <= rounds; round++) {
    const [before, wanted] = await time(plain, sampling, round);
    const [after, got] = await time(drafting, sampling, round);
    if (got !== wanted) throw new Error(`${name}: speculation changed the output`);
    if (round === 0) continue; // warm-up
    ratios.push(before / after);
    plainMs.push(before);
    draftingMs.push(after);
  }
  const { numDrafts, numDraftTokens, numAcceptedTokens } = drafting.stats();
  await drafting.close();
  const accepted = numAcceptedTokens.reduce((sum, count) => sum + count, 0);
  const share = numDraftTokens === 0 ? 'none' : `${((100 * accepted) / numDraftTokens).toFixed(0)} %`;
  const perStep = (numDrafts / ((rounds + 1) * streams * maxTokens)).toFixed(2);
  lines.push(
    `| ${name} | ${median(plainMs).toFixed(2)} | ${median(draftingMs).toFixed(2)} | ${median(ratios).toFixed(2)}× (${Math.min(...ratios).toFixed(2)}–${Math.max(...ratios).toFixed(2)}) | ${target} | ${share} | ${perStep} |`,
  );
  process.stdout.write(`${lines.at(-1)}\n`);
}

async function main(): Promise<void> {
  const plain = await Engine.load(model);
  const { backend, isa, threads } = plain.info;
  const all = values.draft === undefined ? LOOK_UP : draftTasks(values.draft);
  const names = values.tasks?.split(',');
  for (const task of all) if (names?.includes(task.name) !== false) await measure(task, plain);
  await plain.close();
  const head = [
    `${model}, ${backend} ${isa}, ${threads} threads, ${os.cpus()[0]?.model.trim()}, ${new Date().toISOString().slice(0, 10)}; streams: ${streams}, tokens: ${maxTokens}, rounds: ${rounds}`,
    '',
    '| task | ms/token without | with | ratio: median (all rounds) | target | accepted | verifications per token |',
    '|---|---|---|---|---|---|---|',
  ];
  const report = [...head, ...lines, ''].join('\n');
  process.stdout.write(`\n${report}`);
  if (values.out !== undefined) writeFileSync(values.out, report);
}

void main();
