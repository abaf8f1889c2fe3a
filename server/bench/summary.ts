import type { Latency, ServeBenchOptions } from './options';
import { e2elOf, itlsOf, type Outcome, tpotOf, ttftOf } from './outcome';
import type { BenchRun } from './run';

/** Statistics of a set of milliseconds. All zero if the set is empty. */
export interface Spread {
  mean: number;
  median: number;
  std: number;
  /** In the order of the requested percentiles. */
  percentiles: number[];
}

export interface Summary {
  completed: number;
  failed: number;
  durationS: number;
  inputTokens: number;
  cachedTokens: number;
  outputTokens: number;
  requestsPerS: number;
  /** Requests per second within all bounds. Undefined without bounds. */
  goodputPerS: number | undefined;
  outputTokensPerS: number;
  totalTokensPerS: number;
  maxConcurrent: number;
  latencies: Record<Latency, Spread>;
  /** How late this client sent the requests: large if the client is overloaded. Zero under a concurrency limit. */
  sendLag: Spread;
  errors: { kind: string; count: number; message: string }[];
}

export function summarize(
  { outcomes, durationMs }: BenchRun,
  options: Pick<ServeBenchOptions, 'percentiles' | 'goodput' | 'maxConcurrency'>,
): Summary {
  const good = outcomes.filter(({ errorKind }) => errorKind === undefined);
  const durationS = durationMs / 1000;
  const sum = (count: (outcome: Outcome) => number) => good.reduce((total, outcome) => total + count(outcome), 0);
  const inputTokens = sum(({ promptTokens }) => promptTokens);
  const outputTokens = sum(({ completionTokens }) => completionTokens);
  const spread = (values: number[]) => spreadOf(values, options.percentiles);
  const bounds = Object.keys(options.goodput).length;
  return {
    completed: good.length,
    failed: outcomes.length - good.length,
    durationS,
    inputTokens,
    cachedTokens: sum(({ cachedTokens }) => cachedTokens),
    outputTokens,
    requestsPerS: good.length / durationS,
    goodputPerS:
      bounds === 0 ? undefined : good.filter((outcome) => isWithinBounds(outcome, options.goodput)).length / durationS,
    outputTokensPerS: outputTokens / durationS,
    totalTokensPerS: (inputTokens + outputTokens) / durationS,
    maxConcurrent: maxConcurrentOf(outcomes),
    latencies: {
      ttft: spread(good.map(ttftOf)),
      tpot: spread(good.map(tpotOf).filter((value) => value !== undefined)),
      itl: spread(good.flatMap(itlsOf)),
      e2el: spread(good.map(e2elOf)),
    },
    sendLag: spread(options.maxConcurrency === Infinity ? outcomes.map(({ dueAt, sentAt }) => sentAt - dueAt) : []),
    errors: countErrors(outcomes),
  };
}

export function spreadOf(values: readonly number[], percentiles: readonly number[]): Spread {
  if (values.length === 0) return { mean: 0, median: 0, std: 0, percentiles: percentiles.map(() => 0) };
  const sorted = Float64Array.from(values).sort();
  const mean = sorted.reduce((total, value) => total + value, 0) / sorted.length;
  const variance = sorted.reduce((total, value) => total + (value - mean) ** 2, 0) / sorted.length;
  return {
    mean,
    median: percentileOf(sorted, 50),
    std: Math.sqrt(variance),
    percentiles: percentiles.map((percentile) => percentileOf(sorted, percentile)),
  };
}

/** Interpolates linearly between the nearest ranks, as numpy does by default. */
function percentileOf(sorted: Float64Array, percentile: number): number {
  const rank = ((sorted.length - 1) * percentile) / 100;
  const below = Math.floor(rank);
  return sorted[below] + (rank - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

function isWithinBounds(
  outcome: Outcome,
  { ttft = Infinity, tpot = Infinity, e2el = Infinity }: ServeBenchOptions['goodput'],
): boolean {
  return ttftOf(outcome) <= ttft && (tpotOf(outcome) ?? 0) <= tpot && e2elOf(outcome) <= e2el;
}

function maxConcurrentOf(outcomes: readonly Outcome[]): number {
  const changes = outcomes
    .flatMap(({ sentAt, endedAt }) => [
      { at: sentAt, by: 1 },
      { at: endedAt, by: -1 },
    ])
    .sort((a, b) => a.at - b.at || a.by - b.by);
  let open = 0;
  let most = 0;
  for (const { by } of changes) most = Math.max(most, (open += by));
  return most;
}

function countErrors(outcomes: readonly Outcome[]): Summary['errors'] {
  const byKind = new Map<string, Summary['errors'][number]>();
  for (const { errorKind, errorMessage = '' } of outcomes) {
    if (errorKind === undefined) continue;
    const entry = byKind.get(errorKind) ?? { kind: errorKind, count: 0, message: errorMessage };
    entry.count++;
    byKind.set(errorKind, entry);
  }
  return [...byKind.values()].sort((a, b) => b.count - a.count);
}
