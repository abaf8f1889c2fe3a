import type { BenchReport, Plot, Table } from './bench-report';
import { machineText } from './machine';
import { LATENCIES, type Latency, type ServeBenchOptions } from './options';
import { e2elOf, itlsOf, type Outcome, tpotOf, ttftOf } from './outcome';
import { TITLES } from './report';
import type { BenchRun } from './run';
import { type Spread, spreadOf, type Summary } from './summary';

/** One run of the workload. A sweep has one for each limit of concurrent requests. */
export interface MeasuredRun {
  options: ServeBenchOptions;
  run: BenchRun;
  summary: Summary;
}

/** Latencies of each outcome, in milliseconds. */
const VALUES: Readonly<Record<Latency, (outcome: Outcome) => number[]>> = {
  ttft: (outcome) => [ttftOf(outcome)],
  tpot: (outcome) => [tpotOf(outcome)].filter((value) => value !== undefined),
  itl: itlsOf,
  e2el: (outcome) => [e2elOf(outcome)],
};

const QUANTILES = [...Array.from({ length: 100 }, (_, percentile) => percentile), 99.5, 99.9, 100];

/** Returns the table of a sweep: one row for each limit of concurrent requests. */
export function sweepTable(runs: readonly MeasuredRun[]): Table {
  const [{ options }] = runs;
  const last = options.percentiles.length - 1;
  const names = LATENCIES.filter((name) => options.percentileMetrics.includes(name));
  const hasGoodput = runs[0].summary.goodputPerS !== undefined;
  return {
    title: 'Latency and throughput over concurrency',
    columns: [
      'concurrency',
      'failed',
      'requests/s',
      ...(hasGoodput ? ['goodput/s'] : []),
      'output tokens/s',
      ...names.flatMap((name) => [
        `${name.toUpperCase()} p50 (ms)`,
        ...(last < 0 ? [] : [`${name.toUpperCase()} p${options.percentiles[last]}`]),
      ]),
    ],
    rows: runs.map(({ options: { maxConcurrency }, summary }) => [
      maxConcurrency,
      summary.failed,
      summary.requestsPerS,
      ...(hasGoodput ? [summary.goodputPerS ?? 0] : []),
      summary.outputTokensPerS,
      ...names.flatMap((name) => {
        const { median, percentiles } = summary.latencies[name];
        return last < 0 ? [median] : [median, percentiles[last]];
      }),
    ]),
  };
}

export function serveReport(runs: readonly MeasuredRun[], isSweep: boolean): BenchReport {
  const [{ options, run }] = runs;
  return {
    title: options.label ?? `Serving benchmark of ${run.model}`,
    facts: [
      ['Server', `${options.baseUrl}${options.socketPath === undefined ? '' : ` (${options.socketPath})`}`],
      ['Model', run.model],
      ['Workload', describeWorkload(options)],
      ['Client', machineText()],
    ],
    tables: isSweep ? [sweepTable(runs)] : [summaryTable(runs[0]), latencyTable(runs[0])],
    plots: isSweep ? sweepPlots(runs) : runPlots(runs[0]),
  };
}

function describeWorkload(options: ServeBenchOptions): string {
  const { numPrompts, dataset, inputLen, outputLen, requestRate, maxConcurrency, sweep, seed } = options;
  const lengths = dataset === 'random' ? ` of ${inputLen} tokens in and ${outputLen} out` : ` of ${dataset}`;
  const rate = requestRate === Infinity ? 'all at once' : `${requestRate} per second`;
  const limits = sweep.length > 0 ? sweep : [maxConcurrency].filter(Number.isFinite);
  const limit = limits.length === 0 ? '' : `, at most ${limits.join(', ')} at a time`;
  return `${numPrompts} requests${lengths}, ${rate}${limit}, seed ${seed}`;
}

function sweepPlots(runs: readonly MeasuredRun[]): Plot[] {
  const x = {
    label: 'concurrent requests',
    values: runs.map(({ options }) => options.maxConcurrency),
    isLog: true,
  };
  const { percentiles } = runs[0].options;
  const lines = (name: Latency) => {
    const spreads = runs.map(({ summary }) => summary.latencies[name]);
    return [
      { label: 'median', values: spreads.map(({ median }) => median) },
      ...percentiles.map((percentile, i) => ({
        label: `p${percentile}`,
        values: spreads.map((spread: Spread) => spread.percentiles[i]),
      })),
    ];
  };
  const rates = [
    { label: 'output tokens', values: runs.map(({ summary }) => summary.outputTokensPerS) },
    { label: 'input and output tokens', values: runs.map(({ summary }) => summary.totalTokensPerS) },
  ];
  const requests = [
    { label: 'requests', values: runs.map(({ summary }) => summary.requestsPerS) },
    ...(runs[0].summary.goodputPerS === undefined
      ? []
      : [{ label: 'within all limits', values: runs.map(({ summary }) => summary.goodputPerS ?? 0) }]),
  ];
  return [
    { title: TITLES.ttft, x, yLabel: 'ms', series: lines('ttft') },
    { title: TITLES.itl, x, yLabel: 'ms', series: lines('itl') },
    { title: 'Tokens per second', x, yLabel: 'tokens/s', series: rates },
    { title: 'Requests per second', x, yLabel: 'requests/s', series: requests },
  ];
}

/** The share of requests or tokens that is at most this slow, and tokens per second over the run. */
function runPlots({ run, summary }: MeasuredRun): Plot[] {
  const good = run.outcomes.filter(({ errorKind }) => errorKind === undefined);
  const quantiles = (name: Latency): Plot => ({
    title: TITLES[name],
    x: { label: 'percentile', values: QUANTILES },
    yLabel: 'ms',
    series: [{ label: name.toUpperCase(), values: spreadOf(good.flatMap(VALUES[name]), QUANTILES).percentiles }],
  });
  const seconds = Array.from({ length: Math.max(1, Math.ceil(summary.durationS)) }, (_, second) => second);
  const beginMs = Math.min(...run.outcomes.map(({ sentAt }) => sentAt));
  const ends = seconds.map(() => 0);
  const chunks = seconds.map(() => 0);
  const count = (counts: number[], at: number) =>
    counts[Math.min(counts.length - 1, Math.max(0, Math.floor((at - beginMs) / 1000)))]++;
  for (const { chunkTimes, endedAt } of good) {
    for (const at of chunkTimes) count(chunks, at);
    count(ends, endedAt);
  }
  return [
    ...LATENCIES.map(quantiles),
    {
      title: 'Throughput over time',
      x: { label: 'seconds from the start', values: seconds },
      yLabel: 'per second',
      series: [
        { label: 'chunks with text', values: chunks },
        { label: 'complete requests', values: ends },
      ],
    },
  ];
}

function summaryTable({ summary }: MeasuredRun): Table {
  const goodput: [string, number][] =
    summary.goodputPerS === undefined ? [] : [['goodput (requests/s)', summary.goodputPerS]];
  return {
    title: 'Throughput',
    columns: ['figure', 'value'],
    rows: [
      ['successful requests', summary.completed],
      ['failed requests', summary.failed],
      ['duration (s)', summary.durationS],
      ['input tokens', summary.inputTokens],
      ['output tokens', summary.outputTokens],
      ['requests/s', summary.requestsPerS],
      ...goodput,
      ['output tokens/s', summary.outputTokensPerS],
      ['input and output tokens/s', summary.totalTokensPerS],
      ['peak concurrent requests', summary.maxConcurrent],
    ],
  };
}

function latencyTable({ options, summary }: MeasuredRun): Table {
  return {
    title: 'Latency in milliseconds',
    columns: ['latency', 'mean', 'median', ...options.percentiles.map((percentile) => `p${percentile}`)],
    rows: LATENCIES.map((name) => {
      const { mean, median, percentiles } = summary.latencies[name];
      return [TITLES[name], mean, median, ...percentiles];
    }),
  };
}
