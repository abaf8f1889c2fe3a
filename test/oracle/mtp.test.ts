/** Drafts by MTP heads: no answer changes, and a head that is a copy of its decoder is always right. */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Engine, type EngineOptions, type SamplingParams } from '../../ts/index';
import { untilPreempted } from './preempted';

const folder = (name: string): string => path.join(__dirname, 'fixtures', 'mtp', name);
const SPECULATIVE = { method: 'mtp', numSpeculativeTokens: 3 } as const;
/** Few ids, so that drafts of a random head sometimes hold. */
const FEW_IDS = [40, 41, 42, 43];
const FIRST = 1;

const PROMPTS = [2, 30, 100, 250].map((length, seed) => [
  FIRST,
  ...Array.from({ length: length - 1 }, (_, i) => 40 + ((i * i * 7 + i * (seed + 3)) % 41)),
]);
/** They share their first tokens, and go on differently from the middle and from the end of a block. */
const SHARED = [97, 128, 129, 160].map((length) => [...PROMPTS[3].slice(0, length), 50 + (length % 7), 61, 70]);
const SAMPLING: Record<string, SamplingParams> = {
  greedy: { temperature: 0 },
  sampled: { temperature: 0.8, seed: 5, topP: 0.95 },
  penalized: { temperature: 0.6, seed: 6, repetitionPenalty: 1.2, presencePenalty: 0.2, topK: 12 },
};
const GRAMMAR: SamplingParams = {
  temperature: 0.9,
  seed: 7,
  structuredOutput: { type: 'regex', pattern: '([a-d]{1,3}[,;])+' },
};

interface Result {
  tokenIds: number[];
  logprobs: number[];
  finishReason: string | null;
}

interface Run {
  results: Result[];
  numDrafts: number;
  numAccepted: number;
}

interface Variant {
  options?: EngineOptions;
  isBatch?: boolean;
  /** Runs everything twice, the second time with the prefix cache of the first. */
  isTwice?: boolean;
}

/** Completes each prompt with each sampling, in a batch or one after the other. */
async function run(
  name: string,
  samplings: SamplingParams[],
  { options = {}, isBatch = false, isTwice = false }: Variant,
  prompts = [...PROMPTS, ...SHARED],
  maxTokens = 24,
): Promise<Run> {
  const engine = await Engine.load(folder(name), { threads: 2, ...options });
  const complete = async (prompt: number[], sampling: SamplingParams): Promise<Result> => {
    const generation = engine.generate(prompt, { maxTokens, logprobs: 0, ignoreEos: true, ...sampling });
    const { tokenIds, logprobs, finishReason } = (await generation.result()).choices[0];
    return { tokenIds: [...tokenIds], logprobs: (logprobs ?? []).map(({ logprob }) => logprob), finishReason };
  };
  try {
    const all = samplings.flatMap((sampling) => prompts.map((prompt) => () => complete(prompt, sampling)));
    const once = async (): Promise<Result[]> => {
      if (isBatch) return Promise.all(all.map((work) => work()));
      const results = [];
      for (const work of all) results.push(await work());
      return results;
    };
    const results = await once();
    if (isTwice) expect(await once()).toEqual(results);
    const { numDraftTokens, numAcceptedTokens, prefixCacheHitRate } = engine.stats();
    if (isTwice) expect(prefixCacheHitRate).toBeGreaterThan(0.4);
    return {
      results,
      numDrafts: numDraftTokens,
      numAccepted: numAcceptedTokens.reduce((sum, count) => sum + count, 0),
    };
  } finally {
    await engine.close();
  }
}

const withHead = ({ options, ...rest }: Variant): Variant => ({
  options: { speculative: SPECULATIVE, ...options },
  ...rest,
});

const VARIANTS: [name: string, variant: Variant][] = [
  ['alone', { options: { prefixCache: false } }],
  ['from the prefix cache', { isTwice: true }],
  ['in a batch of three', { options: { maxNumSeqs: 3 }, isBatch: true }],
  ['in chunks of 37 tokens', { options: { maxNumSeqs: 8, maxNumBatchedTokens: 37 } }],
  ['in chunks in a batch', { options: { maxNumSeqs: 3, maxNumBatchedTokens: 29 }, isBatch: true }],
  ['on two ranks', { options: { tensorParallelSize: 2 } }],
  [
    'with one thread and one draft',
    { options: { threads: 1, speculative: { ...SPECULATIVE, numSpeculativeTokens: 1 } } },
  ],
];

describe.each(['dense', 'hybrid', 'experts'])('a random head of the model %s', (name) => {
  const samplings = Object.values(SAMPLING).map((sampling) => ({ ...sampling, allowedTokenIds: FEW_IDS }));
  let plain: Run;
  let alone: Run;
  let underGrammar: Run;
  beforeAll(async () => {
    alone = await run(name, samplings, withHead({ options: { prefixCache: false } }));
    plain = await run(name, samplings, { options: { prefixCache: false } });
    underGrammar = await run(name, [GRAMMAR], { options: { prefixCache: false } });
    expect(plain.numDrafts).toBe(0);
  });

  test.each(VARIANTS)('changes no answer %s', async (_name, variant) => {
    const drafted = await run(name, samplings, withHead(variant));
    expect(drafted.results).toEqual(plain.results);
    expect((await run(name, [GRAMMAR], withHead(variant))).results).toEqual(underGrammar.results);
    expect(drafted.numAccepted).toBeGreaterThan(0);
    expect(drafted.numAccepted).toBeLessThan(drafted.numDrafts);
    // Neither chunks nor the cache nor ranks change a draft.
    const { numDrafts, numAccepted } = alone;
    const runs = variant.isTwice ? 2 : 1;
    if (!variant.isBatch && variant.options?.speculative === undefined)
      expect(drafted).toMatchObject({ numDrafts: runs * numDrafts, numAccepted: runs * numAccepted });
  });

  test('changes no answer after preemptions', async () => {
    const prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[1].slice(0, 20), PROMPTS[2].slice(0, 40)];
    const options = { maxModelLen: 300, maxNumSeqs: 4, kvCacheBytes: 500_000 };
    const sampling = { temperature: 0, allowedTokenIds: FEW_IDS };
    const alone = await run(name, [sampling], { options: { prefixCache: false, maxModelLen: 300 } }, prompts, 230);
    const engine = await Engine.load(folder(name), { threads: 2, speculative: SPECULATIVE, ...options });
    try {
      await untilPreempted(engine, async () => {
        const answers = await Promise.all(
          prompts.map((prompt) => engine.generate(prompt, { maxTokens: 230, ignoreEos: true, ...sampling }).result()),
        );
        expect(answers.map(({ choices }) => [...choices[0].tokenIds])).toEqual(
          alone.results.map(({ tokenIds }) => tokenIds),
        );
      });
    } finally {
      await engine.close();
    }
  });
});

interface GoldenPrompt {
  tokenIds: number[];
  drafts: [id: number, logprob: number][][];
  ofLast: number[];
  ofFirst: number[];
}

/** Twice the tolerance of f32: which token a draft is must be certain. */
const MIN_MARGIN = 2e-3;

describe.each(['dense', 'hybrid', 'experts'])('the drafts of the model %s are those of torch', (name) => {
  const golden = JSON.parse(readFileSync(path.join(folder(name), 'golden.json'), 'utf8')) as {
    prompts: GoldenPrompt[];
  };
  const best = (logprobs: Map<number, number>): number | undefined => {
    const [[first, most], [, next]] = [...logprobs].sort(([, a], [, b]) => b - a);
    return most - next > MIN_MARGIN ? first : undefined;
  };

  /** Compares drafts where few tokens are allowed. A draft that is rejected is not the token that the model draws. */
  test.each<[string, EngineOptions]>([
    ['in one chunk', {}],
    ['in chunks of 13 tokens without a cache', { maxNumSeqs: 8, maxNumBatchedTokens: 13, prefixCache: false }],
  ])('%s', async (_variant, options) => {
    const speculative = { method: 'mtp', numSpeculativeTokens: 2 } as const;
    const engine = await Engine.load(folder(name), { threads: 2, speculative, ...options });
    const numChecked = [0, 0];
    const check = async ({ tokenIds, drafts, ofLast, ofFirst }: GoldenPrompt, place: 0 | 1, others: number[]) => {
      const last = tokenIds.at(-1)!;
      const first = drafts[0][0][0];
      const logprobs = new Map([[last, ofLast[place]], ...(place === 1 ? [[first, ofFirst[1]] as const] : [])]);
      for (const other of others) logprobs.set(...drafts[place][other]);
      const before = engine.stats().numAcceptedTokens;
      // The last token needs no draft, so the first token is followed by at most `place + 1` drafts.
      const sampling = {
        temperature: 0,
        maxTokens: 3 + place,
        allowedTokenIds: [...logprobs.keys()],
        ignoreEos: true,
      };
      const { choices } = await engine.generate(tokenIds.slice(0, -1), sampling).result();
      expect(choices[0].tokenIds[0]).toBe(last);
      const draft = best(logprobs);
      // A later draft is verified only if those before it hold.
      if (draft === undefined || (place === 1 && choices[0].tokenIds[1] !== first)) return;
      const isAccepted = draft === choices[0].tokenIds[1 + place];
      const numAccepted = engine.stats().numAcceptedTokens.map((count, i) => count - before[i]);
      expect(numAccepted).toEqual(place === 0 ? [isAccepted ? 1 : 0, 0] : [1, isAccepted ? 1 : 0]);
      numChecked[place]++;
    };
    try {
      for (const prompt of golden.prompts)
        for (let other = 0; other + 1 < prompt.drafts[0].length; other++)
          for (const place of [0, 1] as const) await check(prompt, place, [other, other + 1]);
      expect(Math.min(...numChecked)).toBeGreaterThan(0);
      expect(numChecked[0]).toBeGreaterThan(75);
    } finally {
      await engine.close();
    }
  });
});

describe('a head that is a copy of its decoder', () => {
  // The head never sees the first token, which is nowhere else.
  const isFirstLeftOut = { logitBias: { [FIRST]: -100 } };

  test.each(VARIANTS)('is always right %s', async (_name, variant) => {
    const samplings = [...Object.values(SAMPLING).map((sampling) => ({ ...sampling, ...isFirstLeftOut })), GRAMMAR];
    const plain = await run('copied', samplings, { options: { prefixCache: false } });
    const drafted = await run('copied', samplings, withHead(variant));
    expect(drafted.results).toEqual(plain.results);
    expect(drafted.numDrafts).toBeGreaterThan(plain.results.length * 8);
    expect(drafted.numAccepted).toBe(drafted.numDrafts);
  });
});

describe('without a head', () => {
  const fixtures = path.join(__dirname, 'fixtures');
  test.each([
    ['demo', 'a model of the architecture Qwen2ForCausalLM'],
    [path.join(fixtures, 'gguf', 'qwen3-bf16.gguf'), 'a model of the architecture Qwen3ForCausalLM'],
    [path.join(fixtures, 'qwen35-f32'), 'a checkpoint without the tensor mtp.fc.weight'],
  ])('%s is refused', async (model, received) => {
    const expected =
      "speculative.method: expected 'ngram', or 'mtp' with a checkpoint of Qwen3.5 or Qwen3-Next that holds its MTP head (tensors mtp.*), got ";
    await expect(Engine.load(model, { speculative: SPECULATIVE })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expected + received,
    });
  });
});
