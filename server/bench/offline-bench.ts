import { availableParallelism } from 'node:os';
import { Engine, type EngineInfo, type EngineOptions, type EngineStats } from '../../ts';
import { type MachineLimits, measureLimits } from '../../ts/benchmarks';
import { LoadProgress } from '../base/load-progress';
import { counted } from '../base/words';
import { type BenchReport, renderTable, type Table } from './bench-report';
import { describeMachine, machineText } from './machine';
import { type OutputOptions, writeFile, writeOutput } from './output';
import { Progress } from './progress';
import { Random } from './random';
import { type Profile, profileOf, profileTables, ratesOf } from './profile';

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
  /** Only if it was requested. */
  profile: Profile | undefined;
}

/** Runs all requests at once through the library. Returns the exit code. */
export async function offlineBench(options: OfflineBenchOptions): Promise<number> {
  const loading = new LoadProgress((text) => process.stderr.write(`${text}\n`));
  // All requests are queued at the start, so the queue must hold them.
  const engine = await Engine.load(options.model, {
    ...options.engine,
    maxQueuedRequests: options.numPrompts,
    profile: options.profiles,
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

const READ_BYTES = 256 * 2 ** 20;
const READ_REPEATS = 2;

/** What the shares of the limit refer to. Other devices have no such tests. */
function machineLimits({ backend }: EngineInfo, { engine, profiles }: OfflineBenchOptions): MachineLimits[] {
  if (!profiles || backend !== 'cpu') return [];
  const threads = engine.threads === undefined ? 0 : Math.min(engine.threads, availableParallelism());
  return [measureLimits({ threads, repeats: READ_REPEATS, readBytes: READ_BYTES })];
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
  const limits = machineLimits(engine.info, options);
  const before: EngineStats = engine.stats();
  const loop = performance.eventLoopUtilization();
  const begin = performance.now();
  const usages = await Promise.all(
    prompts.map(async (prompt) => {
      const { usage } = await engine.generate(prompt, sampling).result();
      progress.show(`${++numEnded} of ${numPrompts} requests`);
      return usage;
    }),
  );
  const durationS = (performance.now() - begin) / 1000;
  const javascriptUs = performance.eventLoopUtilization(loop).active * 1000;
  const after = engine.stats();
  progress.clear();
  const sum = (count: (usage: (typeof usages)[number]) => number) =>
    usages.reduce((total, usage) => total + count(usage), 0);
  return {
    durationS,
    promptTokens: sum((usage) => usage.promptTokens),
    outputTokens: sum((usage) => usage.completionTokens),
    cachedTokens: sum((usage) => usage.cachedTokens),
    profile: options.profiles
      ? profileOf(before, after, {
          durationUs: durationS * 1e6,
          rates: ratesOf([...limits, ...machineLimits(engine.info, options)], engine.info.isa),
          javascriptUs,
        })
      : undefined,
  };
}

function resultText(
  { isa, threads, weightDtype, modelName }: EngineInfo,
  { numPrompts, inputLen, outputLen, prefixLen }: OfflineBenchOptions,
  { durationS, promptTokens, outputTokens, cachedTokens, profile }: OfflineResult,
): string {
  const perSecond = (count: number, digits: number) => (count / durationS).toFixed(digits);
  return [
    `${modelName} (${weightDtype}) on ${isa}, ${counted(threads, 'thread')}: ${counted(numPrompts, 'request')} of ${prefixLen + inputLen} tokens in and ${outputLen} out in ${durationS.toFixed(2)} s`,
    `${perSecond(numPrompts, 2)} requests/s, ${perSecond(outputTokens, 1)} output tokens/s, ${perSecond(promptTokens + outputTokens, 1)} total tokens/s, ${cachedTokens} tokens from the prefix cache`,
    ...tablesOf(profile).flatMap((table) => ['', `${table.title}:`, renderTable(table).trimEnd()]),
    '',
  ].join('\n');
}

function tablesOf(profile: Profile | undefined): Table[] {
  return profile === undefined ? [] : profileTables(profile);
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
    ...(profile === undefined ? {} : { profile }),
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
    tables: [throughput, ...tablesOf(profile)],
    plots: [],
  };
}
