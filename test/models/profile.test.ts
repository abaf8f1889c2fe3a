import { Engine, type EngineOptions, type EngineStats, type GenerateOptions, type StepProfile } from '../../ts/index';

const LETTERS: GenerateOptions = { structuredOutput: { type: 'regex', pattern: '[a-z]{4,12}' } };

/** Two prompts at once, so that a step decodes one while it computes the other, then one with a grammar. */
async function answer(engine: Engine): Promise<unknown> {
  const call = (prompt: number[], options: GenerateOptions) =>
    engine.generate(prompt, { temperature: 0.7, seed: 3, logprobs: 2, ...options }).result();
  const long = Array.from({ length: 900 }, (_, i) => (i * 37) % 1000);
  const both = [call([5, 6, 7], { maxTokens: 60, ignoreEos: true }), call(long, { maxTokens: 3, ignoreEos: true })];
  const results = [...(await Promise.all(both)), await call([9, 10], { maxTokens: 20, ...LETTERS })];
  return results.map(({ choices }) => choices.map(({ tokenIds, logprobs }) => ({ tokenIds, logprobs })));
}

async function run(options: EngineOptions): Promise<{ answers: unknown; stats: EngineStats }> {
  const engine = await Engine.load('demo', { maxModelLen: 1024, ...options });
  try {
    return { answers: await answer(engine), stats: engine.stats() };
  } finally {
    await engine.close();
  }
}

const sum = (values: Iterable<number>) => [...values].reduce((total, value) => total + value, 0);

/** The entries of the parts from `first` to `last` in steps of kind `kind`. */
function range({ parts }: StepProfile, values: Float64Array, kind: number, first: string, last: string): Float64Array {
  expect(parts).toEqual(expect.arrayContaining([first, last]));
  const begin = kind * parts.length;
  return values.subarray(begin + parts.indexOf(first), begin + parts.indexOf(last) + 1);
}

test('the parts of a profile add up to the steps, and it changes no bit', async () => {
  const plain = await run({ threads: 2 });
  expect(plain.stats.profile).toBeNull();
  for (const options of [{ threads: 1 }, { threads: 3 }, { threads: 2, tensorParallelSize: 2 }]) {
    const { answers, stats } = await run({ ...options, profile: true });
    expect(answers).toEqual(plain.answers);
    const profile = stats.profile!;
    expect(profile.kinds).toEqual(['decode', 'prefill', 'mixed']);
    expect(sum(profile.numSteps)).toBe(stats.numSteps);
    expect(sum(profile.numTokens)).toBe(stats.allSteps.numTokens);
    for (const [kind, numSteps] of profile.numSteps.entries()) {
      expect(numSteps).toBeGreaterThan(0);
      const all = range(profile, profile.partUs, kind, profile.parts[0]!, profile.parts.at(-1)!);
      expect(sum(all)).toBeCloseTo(profile.stepUs[kind]!, 0);
      const [rest] = range(profile, profile.partUs, kind, 'rest', 'rest');
      expect(sum(all) - rest!).toBeGreaterThan(0.9 * profile.stepUs[kind]!);
      for (const name of [
        'embedding',
        'norms and packing of inputs',
        'QKV product',
        'attention',
        'LM head',
        'sampling',
      ])
        expect(range(profile, profile.partUs, kind, name, name)[0]).toBeGreaterThan(0);
    }
    profile.waitUs.forEach((us, i) => expect(us).toBeLessThanOrEqual(profile.partUs[i]!));
    const model = sum(
      profile.kinds.map((_, kind) => sum(range(profile, profile.partUs, kind, 'embedding', 'rest of the model'))),
    );
    expect(model).toBeLessThan(stats.allSteps.forwardUs + stats.allSteps.scheduleUs);
    expect(sum(range(profile, profile.partUs, 0, 'grammar masks', 'grammar masks'))).toBeGreaterThan(0);
  }
});

test('a profile knows the bytes of the weights and the operations', async () => {
  for (const quantization of ['none', 'int8'] as const) {
    const engine = await Engine.load('demo', { profile: true, threads: 1, quantization, prefixCache: false });
    try {
      await engine.generate([1, 2, 3], { maxTokens: 21, ignoreEos: true }).result();
      const { profile } = engine.stats();
      const { math, numSteps, bytes, ops } = profile!;
      // Each of 20 steps with one token reads every matrix once.
      expect(numSteps[0]).toBe(20);
      const weights =
        sum(range(profile!, bytes, 0, 'QKV product', 'LM head')) -
        range(profile!, bytes, 0, 'attention', 'attention')[0]!;
      expect(weights / 20 / engine.info.weightBytes).toBeCloseTo(1, 2);
      const type = math.indexOf(quantization === 'int8' ? 'int8' : 'f32');
      expect(sum(range(profile!, ops[type]!, 0, 'QKV product', 'LM head')) / 20).toBeGreaterThan(
        2 * engine.info.numParameters * 0.95,
      );
    } finally {
      await engine.close();
    }
  }
});

test('profile: expected true or false', async () => {
  await expect(Engine.load('demo', { profile: 'yes' as never })).rejects.toThrow(
    'profile: expected true or false, got "yes"',
  );
});
