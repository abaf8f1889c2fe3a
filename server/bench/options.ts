import type { OutputOptions } from './output';

/** Sources of prompts. */
export const DATASETS = ['random', 'prefix_repetition', 'custom'] as const;

/** Routes and formats of the requests. */
export const BACKENDS = ['openai', 'openai-chat'] as const;

/** The measured latencies. */
export const LATENCIES = ['ttft', 'tpot', 'itl', 'e2el'] as const;

export type Latency = (typeof LATENCIES)[number];

export interface ServeBenchOptions extends OutputOptions {
  backend: (typeof BACKENDS)[number];
  /** Without a trailing slash. */
  baseUrl: string;
  /** Path of the requests. Default: from the backend. */
  endpoint: string | undefined;
  /** Unix socket to connect through. The URL is then used only for the Host header and the path. */
  socketPath: string | undefined;
  /** Default: the first model of /v1/models. */
  model: string | undefined;
  apiKey: string | undefined;
  headers: Readonly<Record<string, string>>;
  /** Additional fields of every request body. */
  extraBody: Readonly<Record<string, unknown>>;
  sampling: Readonly<Record<string, number>>;
  ignoreEos: boolean;
  dataset: (typeof DATASETS)[number];
  datasetPath: string | undefined;
  inputLen: number;
  outputLen: number;
  /** Lengths are drawn from `length × (1 ± ratio)`. */
  rangeRatio: number;
  /** Length of the prefix that all prompts of the random dataset share. */
  prefixLen: number;
  prefixes: { length: number; suffixLen: number; count: number };
  /** Random token ids are below this number. Default: from /v1/models. */
  vocabSize: number | undefined;
  numPrompts: number;
  numWarmups: number;
  /** Requests per second. Infinity sends all at once. */
  requestRate: number;
  /** Shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 bursts, above 1 more even. */
  burstiness: number;
  maxConcurrency: number;
  /** Limits of a sweep: the workload runs once with each of them in place of `maxConcurrency`. Empty: no sweep. */
  sweep: readonly number[];
  seed: number;
  timeoutMs: number;
  readyTimeoutMs: number;
  percentiles: readonly number[];
  percentileMetrics: readonly Latency[];
  /** Upper bounds in milliseconds. Goodput counts the requests within all of them. */
  goodput: Readonly<Partial<Record<Exclude<Latency, 'itl'>, number>>>;
  resultPath: string | undefined;
  isDetailed: boolean;
  label: string | undefined;
  metadata: Readonly<Record<string, string>>;
  isQuiet: boolean;
}
