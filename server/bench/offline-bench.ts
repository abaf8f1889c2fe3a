import { Engine, type EngineInfo, type EngineOptions, type EngineStats } from '../../ts';
import { LoadProgress } from '../base/load-progress';
import { counted } from '../base/words';
import { type BenchReport, renderTable } from './bench-report';
import { describeMachine, machineText } from './machine';
import { type OutputOptions, writeFile, writeOutput } from './output';
import { Progress } from './progress';
import { Random } from './random';
import { type Profile, profileOf, profileTable } from './profile';

export interface OfflineBenchOptions extends OutputOptions {
  model: string;
  engine: EngineOptions;
  numPrompts: number;
  inputLen: number;
  outputLen: number;
  prefixLen: number;
  seed: number;
  /** Reports where the time of the steps goes. */
  profiles: boolean;
  resultPath: string | undefined;
}

interface OfflineResult {
  durationS: number;
  promptTokens: number;
  outputTokens: number;
  cachedTokens: number;
  profile: Profile;
}

/** Runs all requests at once through the library. Returns the exit code. */
export async function offlineBench(options: OfflineBenchOptions): Promise<number> {
  const loading = new LoadProgress((text) => process.stderr.write(`${text}\n`));
  // All requests are queued at the start, so the queue must hold them.
  const engine = await Engine.load(options.model, {
    ...options.engine,
    maxQueuedRequests: options.numPrompts,
    onProgress: (progress) => loading.update(progress),
  }).finally(() => loading.end());
  try {
    const result = await measure(engine, options);
    const json = resultJson(options, result);
    const report = offlineReport(engine.info, options, result);
    writeOutput(options, { text: resultText(engine.info, options, result), json, report });
    if (options.resultPath !== undefined)
      writeFile(options.resultPath, `${JSON.stringify(json, null, 1)}\n`, options.printsJson);
    return 0;
  } finally {
    await engine.close();
  }
}

async function measure(engine: Engine, options: OfflineBenchOptions): Promise<OfflineResult> {
  const { numPrompts, inputLen, outputLen, prefixLen } = options;
  const random = new Random(options.seed);
  const ids = (count: number) => Array.from({ length: count }, () => random.integer(0, engine.info.vocabSize - 1));
  const prefix = ids(prefixLen);
  const prompts = Array.from({ length: numPrompts }, () => [...prefix, ...ids(inputLen)]);
  const sampling = { maxTokens: outputLen, temperature: 0, ignoreEos: true };
  await engine.generate(ids(8), { ...sampling, maxTokens: 2 }).result();
  const progress = new Progress(false);
  let numEnded = 0;
  const before: EngineStats = engine.stats();
  const begin = performance.now();
  const usages = await Promise.all(
    prompts.map(async (prompt) => {
      const { usage } = await engine.generate(prompt, sampling).result();
      progress.show(`${++numEnded} of ${numPrompts} requests`);
      return usage;
    }),
  );
  const durationS = (performance.now() - begin) / 1000;
  progress.clear();
  const sum = (count: (usage: (typeof usages)[number]) => number) =>
    usages.reduce((total, usage) => total + count(usage), 0);
  return {
    durationS,
    promptTokens: sum((usage) => usage.promptTokens),
    outputTokens: sum((usage) => usage.completionTokens),
    cachedTokens: sum((usage) => usage.cachedTokens),
    profile: profileOf(before, engine.stats(), durationS),
  };
}

function resultText(
  { isa, threads, weightDtype, modelName }: EngineInfo,
  { numPrompts, inputLen, outputLen, prefixLen, profiles }: OfflineBenchOptions,
  { durationS, promptTokens, outputTokens, cachedTokens, profile }: OfflineResult,
): string {
  const perSecond = (count: number, digits: number) => (count / durationS).toFixed(digits);
  return [
    `${modelName} (${weightDtype}) on ${isa}, ${counted(threads, 'thread')}: ${counted(numPrompts, 'request')} of ${prefixLen + inputLen} tokens in and ${outputLen} out in ${durationS.toFixed(2)} s`,
    `${perSecond(numPrompts, 2)} requests/s, ${perSecond(outputTokens, 1)} output tokens/s, ${perSecond(promptTokens + outputTokens, 1)} total tokens/s, ${cachedTokens} tokens from the prefix cache`,
    ...(profiles ? ['', renderTable(profileTable(profile)).trimEnd()] : []),
    '',
  ].join('\n');
}

function resultJson(options: OfflineBenchOptions, result: OfflineResult): object {
  const { durationS, promptTokens, outputTokens, cachedTokens, profile } = result;
  const { model, numPrompts, inputLen, outputLen, prefixLen, seed, engine } = options;
  return {
    duration: durationS,
    requests_per_second: numPrompts / durationS,
    output_tokens_per_second: outputTokens / durationS,
    tokens_per_second: (promptTokens + outputTokens) / durationS,
    cached_tokens: cachedTokens,
    workload: { model, numPrompts, inputLen, outputLen, prefixLen, seed },
    engine,
    machine: describeMachine(),
    ...(options.profiles ? { profile } : {}),
  };
}

function offlineReport(
  { isa, threads, weightDtype, modelName }: EngineInfo,
  { numPrompts, inputLen, outputLen, prefixLen, seed }: OfflineBenchOptions,
  { durationS, promptTokens, outputTokens, cachedTokens, profile }: OfflineResult,
): BenchReport {
  const throughput = {
    title: 'Throughput',
    columns: ['figure', 'value'],
    rows: [
      ['duration (s)', durationS],
      ['requests/s', numPrompts / durationS],
      ['output tokens/s', outputTokens / durationS],
      ['input and output tokens/s', (promptTokens + outputTokens) / durationS],
      ['tokens from the prefix cache', cachedTokens],
    ],
  };
  const lengths = `${prefixLen + inputLen} tokens in and ${outputLen} out`;
  return {
    title: `Offline benchmark of ${modelName}`,
    facts: [
      ['Engine', `${weightDtype} on ${isa}, ${counted(threads, 'thread')}`],
      ['Workload', `${counted(numPrompts, 'request')} of ${lengths}, all at once, seed ${seed}`],
      ['Machine', machineText()],
    ],
    tables: [throughput, profileTable(profile)],
    plots: [],
  };
}
