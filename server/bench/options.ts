/** How prompts are made. */
export const DATASETS = ['random', 'prefix_repetition', 'custom'] as const;

/** What the requests are sent as. */
export const BACKENDS = ['openai', 'openai-chat'] as const;

/** Latencies that can be reported and bounded. */
export const LATENCIES = ['ttft', 'tpot', 'itl', 'e2el'] as const;

export type Latency = (typeof LATENCIES)[number];

export interface ServeBenchOptions {
  backend: (typeof BACKENDS)[number];
  /** Without a slash at its end. */
  baseUrl: string;
  /** Path of the route, the default of the backend if undefined. */
  endpoint: string | undefined;
  /** Connect through this Unix socket; the URL then gives the Host header alone. */
  socketPath: string | undefined;
  /** Default: the first that /v1/models lists. */
  model: string | undefined;
  apiKey: string | undefined;
  headers: Readonly<Record<string, string>>;
  /** Merged into every request's body. */
  extraBody: Readonly<Record<string, unknown>>;
  sampling: Readonly<Record<string, number>>;
  ignoreEos: boolean;
  dataset: (typeof DATASETS)[number];
  datasetPath: string | undefined;
  inputLen: number;
  outputLen: number;
  /** Lengths are drawn from `length × (1 ± ratio)`. */
  rangeRatio: number;
  /** Tokens that all prompts of the random workload share. */
  prefixLen: number;
  prefixes: { length: number; suffixLen: number; count: number };
  /** Token ids are drawn below this. */
  vocabSize: number | undefined;
  numPrompts: number;
  numWarmups: number;
  /** Requests a second; Infinity sends all at once. */
  requestRate: number;
  /** Shape of the gamma distribution of the gaps: 1 is a Poisson process, below it bursts, above it evenness. */
  burstiness: number;
  maxConcurrency: number;
  seed: number;
  timeoutMs: number;
  readyTimeoutMs: number;
  percentiles: readonly number[];
  percentileMetrics: readonly Latency[];
  /** Milliseconds that a request must keep to count as good. */
  goodput: Readonly<Partial<Record<Exclude<Latency, 'itl'>, number>>>;
  resultPath: string | undefined;
  isDetailed: boolean;
  label: string | undefined;
  metadata: Readonly<Record<string, string>>;
  isQuiet: boolean;
}
