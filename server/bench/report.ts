import { describeMachine } from './machine';
import { LATENCIES, type Latency, type ServeBenchOptions } from './options';
import { itlsOf, ttftOf } from './outcome';
import type { BenchRun } from './run';
import type { Summary } from './summary';

export const TITLES: Readonly<Record<Latency, string>> = {
  ttft: 'Time to first token',
  tpot: 'Time per output token after the first',
  itl: 'Inter-token latency',
  e2el: 'End-to-end latency',
};
const WIDTH = 58;

/** Returns the table for the terminal. */
export function renderReport(run: BenchRun, summary: Summary, options: ServeBenchOptions): string {
  const row = (name: string, value: string) => `${`${name}:`.padEnd(WIDTH - 14)}${value.padStart(14)}\n`;
  const figure = (name: string, value: number, digits = 2) => row(name, value.toFixed(digits));
  const rule = (title: string) => `${` ${title} `.padStart((WIDTH + title.length + 2) / 2, '-').padEnd(WIDTH, '-')}\n`;
  let text = `${' Serving benchmark '.padStart(38, '=').padEnd(WIDTH, '=')}\n`;
  text += figure('Successful requests', summary.completed, 0) + figure('Failed requests', summary.failed, 0);
  if (run.numUnsent > 0) text += figure('Not sent because the run was stopped', run.numUnsent, 0);
  if (options.maxConcurrency < Infinity) text += figure('Maximum concurrency (configured)', options.maxConcurrency, 0);
  if (options.requestRate < Infinity) text += figure('Requests per second (configured)', options.requestRate);
  text += figure('Peak concurrent requests', summary.maxConcurrent, 0);
  text += figure('Duration (s)', summary.durationS);
  text += figure('Input tokens', summary.inputTokens, 0);
  if (summary.cachedTokens > 0) text += figure('Input tokens from the prefix cache', summary.cachedTokens, 0);
  text += figure('Output tokens', summary.outputTokens, 0);
  text += figure('Requests per second', summary.requestsPerS);
  if (summary.goodputPerS !== undefined) text += figure('Goodput (requests per second)', summary.goodputPerS);
  text +=
    figure('Output tokens per second', summary.outputTokensPerS) +
    figure('Input and output tokens per second', summary.totalTokensPerS);
  for (const name of LATENCIES.filter((latency) => options.percentileMetrics.includes(latency))) {
    const { mean, median, percentiles } = summary.latencies[name];
    text += rule(TITLES[name]);
    text += figure(`Mean ${name.toUpperCase()} (ms)`, mean) + figure(`Median ${name.toUpperCase()} (ms)`, median);
    options.percentiles.forEach((percentile, i) => {
      text += figure(`P${percentile} ${name.toUpperCase()} (ms)`, percentiles[i]);
    });
  }
  if (options.maxConcurrency === Infinity) text += rule('Client') + figure('Mean send lag (ms)', summary.sendLag.mean);
  if (summary.errors.length > 0) text += rule('Errors');
  for (const { kind, count, message } of summary.errors) text += `${row(kind, String(count))}  ${message}\n`;
  return `${text}${'='.repeat(WIDTH)}\n`;
}

/** Returns the content of the result file. Fields of `vllm bench serve` come first, under their names there. */
export function resultJson(
  run: BenchRun,
  summary: Summary,
  options: ServeBenchOptions,
  now: Date,
): Record<string, unknown> {
  const latencies = Object.fromEntries(
    LATENCIES.flatMap((name) => {
      const { mean, median, std, percentiles } = summary.latencies[name];
      return [
        [`mean_${name}_ms`, mean],
        [`median_${name}_ms`, median],
        [`std_${name}_ms`, std],
        ...options.percentiles.map((percentile, i) => [`p${percentile}_${name}_ms`, percentiles[i]]),
      ] as [string, number][];
    }),
  );
  return {
    date: now.toISOString(),
    backend: options.backend,
    label: options.label ?? null,
    model_id: run.model,
    num_prompts: options.numPrompts,
    ...options.metadata,
    request_rate: finite(options.requestRate),
    burstiness: options.burstiness,
    max_concurrency: options.maxConcurrency === Infinity ? null : options.maxConcurrency,
    duration: summary.durationS,
    completed: summary.completed,
    failed: summary.failed,
    total_input_tokens: summary.inputTokens,
    total_output_tokens: summary.outputTokens,
    request_throughput: summary.requestsPerS,
    request_goodput: summary.goodputPerS ?? null,
    output_throughput: summary.outputTokensPerS,
    total_token_throughput: summary.totalTokensPerS,
    max_concurrent_requests: summary.maxConcurrent,
    ...latencies,
    total_cached_tokens: summary.cachedTokens,
    mean_send_lag_ms: summary.sendLag.mean,
    errors: summary.errors,
    workload: {
      dataset: options.dataset,
      input_len: options.inputLen,
      output_len: options.outputLen,
      range_ratio: options.rangeRatio,
      prefix_len: options.prefixLen,
      seed: options.seed,
      ignore_eos: options.ignoreEos,
      ...(options.dataset === 'prefix_repetition' ? { prefixes: options.prefixes } : {}),
    },
    machine: describeMachine(),
    ...(options.isDetailed ? details(run) : {}),
  };
}

function details({ outcomes }: BenchRun): object {
  return {
    input_lens: outcomes.map(({ promptTokens }) => promptTokens),
    output_lens: outcomes.map(({ completionTokens }) => completionTokens),
    ttfts: outcomes.map((outcome) => ttftOf(outcome) / 1000),
    itls: outcomes.map((outcome) => itlsOf(outcome).map((ms) => ms / 1000)),
    request_errors: outcomes.map(({ errorKind }) => errorKind ?? ''),
  };
}

function finite(value: number): number | 'inf' {
  return value === Infinity ? 'inf' : value;
}
