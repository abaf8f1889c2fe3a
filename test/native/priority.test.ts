/** Priorities of calls, with the embedded model. */
import { Engine, type GenerationResult } from '../../ts';
import { untilPreempted } from '../oracle/preempted';

const PROMPTS = Array.from({ length: 18 }, (_, i) => `The captain says ${i}. `.repeat(1 + (i % 5)));

test('priorities and preemptions change no bit of a result', async () => {
  const engine = await Engine.load('demo', { maxNumSeqs: 4, threads: 2 });
  const run = (i: number, priority: number) =>
    engine.generate(
      PROMPTS[i],
      { maxTokens: 40, temperature: i % 2, seed: i, logprobs: 3, ignoreEos: true },
      { priority },
    );
  const alone: GenerationResult['choices'][] = [];
  for (const i of PROMPTS.keys()) alone.push((await run(i, 0).result()).choices);
  await untilPreempted(engine, async () => {
    // All slots do background work when the urgent calls arrive.
    const background = [...PROMPTS.keys()].filter((i) => i % 3 !== 0).map((i) => ({ i, call: run(i, 1 + (i % 2)) }));
    for await (const event of background[0].call) if (event.type !== 'finish') break;
    const urgent = [...PROMPTS.keys()].filter((i) => i % 3 === 0).map((i) => ({ i, call: run(i, (i % 2) - 1) }));
    for (const { i, call } of [...background.slice(1), ...urgent])
      expect((await call.result()).choices).toEqual(alone[i]);
  });
  expect(engine.stats()).toMatchObject({ numBackground: 0, queuedBackgroundTokens: 0 });
  await engine.close();
});

test('a batch has the results of single calls, and urgent calls end before it', async () => {
  const engine = await Engine.load('demo', { maxNumSeqs: 2, threads: 2 });
  const options = { maxTokens: 32, temperature: 0, ignoreEos: true };
  const ended: string[] = [];
  const requests = PROMPTS.map((prompt, i) => ({ customId: `${i}`, prompt, options }));
  const results = new Map<string, unknown>();
  for await (const { customId, result } of engine.batch(requests)) {
    ended.push(customId);
    results.set(customId, result!.choices);
    if (ended.length === 1)
      void engine
        .generate('Now', options)
        .result()
        .then(() => ended.push('urgent'));
  }
  expect(ended.indexOf('urgent')).toBeGreaterThan(0);
  expect(ended.indexOf('urgent')).toBeLessThan(PROMPTS.length / 2);
  for (const { customId, prompt } of requests)
    expect(results.get(customId)).toEqual((await engine.generate(prompt, options).result()).choices);
  await engine.close();
});
