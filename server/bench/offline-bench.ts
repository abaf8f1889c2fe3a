import { writeFileSync } from 'node:fs';
import { Engine, type EngineOptions } from '../../ts';
import { counted } from '../base/words';
import { describeMachine } from './machine';
import { Random } from './random';

export interface OfflineBenchOptions {
  model: string;
  engine: EngineOptions;
  numPrompts: number;
  inputLen: number;
  outputLen: number;
  prefixLen: number;
  seed: number;
  resultPath: string | undefined;
}

/** Runs all requests at once through the library. Returns the exit code. */
export async function offlineBench(options: OfflineBenchOptions): Promise<number> {
  const { numPrompts, inputLen, outputLen, prefixLen } = options;
  // All requests are queued at the start, so the queue must hold them.
  const engine = await Engine.load(options.model, { ...options.engine, maxQueuedRequests: numPrompts });
  try {
    const random = new Random(options.seed);
    const ids = (count: number) => Array.from({ length: count }, () => random.integer(0, engine.info.vocabSize - 1));
    const prefix = ids(prefixLen);
    const prompts = Array.from({ length: numPrompts }, () => [...prefix, ...ids(inputLen)]);
    const sampling = { maxTokens: outputLen, temperature: 0, ignoreEos: true };
    await engine.generate(ids(8), { ...sampling, maxTokens: 2 }).result();
    const begin = performance.now();
    const usages = await Promise.all(
      prompts.map(async (prompt) => (await engine.generate(prompt, sampling).result()).usage),
    );
    const durationS = (performance.now() - begin) / 1000;
    const sum = (count: (usage: (typeof usages)[number]) => number) =>
      usages.reduce((total, usage) => total + count(usage), 0);
    const outputTokens = sum((usage) => usage.completionTokens);
    const totalTokens = outputTokens + sum((usage) => usage.promptTokens);
    const cachedTokens = sum((usage) => usage.cachedTokens);
    const { isa, threads, weightDtype, modelName } = engine.info;
    process.stdout.write(
      [
        `${modelName} (${weightDtype}) on ${isa}, ${counted(threads, 'thread')}: ${counted(numPrompts, 'request')} of ${prefixLen + inputLen} tokens in and ${outputLen} out in ${durationS.toFixed(2)} s`,
        `${(numPrompts / durationS).toFixed(2)} requests/s, ${(outputTokens / durationS).toFixed(1)} output tokens/s, ${(totalTokens / durationS).toFixed(1)} total tokens/s, ${cachedTokens} tokens from the prefix cache`,
        '',
      ].join('\n'),
    );
    if (options.resultPath !== undefined) {
      const { resultPath, engine: engineOptions, ...workload } = options;
      const result = {
        duration: durationS,
        requests_per_second: numPrompts / durationS,
        output_tokens_per_second: outputTokens / durationS,
        tokens_per_second: totalTokens / durationS,
        cached_tokens: cachedTokens,
        workload,
        engine: engineOptions,
        machine: describeMachine(),
      };
      writeFileSync(resultPath, `${JSON.stringify(result, null, 1)}\n`);
    }
    return 0;
  } finally {
    await engine.close();
  }
}
