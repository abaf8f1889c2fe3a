import type { Command } from 'commander';
import { UsageError } from '../../base/usage-error';
import {
  parseBaseUrl,
  parseBounds,
  parseJsonObject,
  parseNumber,
  parseOneOf,
  parsePairs,
  parsePercentiles,
  parseRate,
  parseWhole,
  parseWholes,
} from './flag-values';
import { addOutputFlags, type OutputFlags, readOutputFlags } from './output-flags';
import { BACKENDS, DATASETS, LATENCIES, type ServeBenchOptions } from '../../bench/options';

/** The flags as commander returns them. */
export interface ServeBenchFlags extends OutputFlags {
  backend: string;
  baseUrl?: string;
  host: string;
  port: string;
  endpoint?: string;
  uds?: string;
  model?: string;
  apiKey?: string;
  header?: string[];
  extraBody?: string;
  temperature?: string;
  topP?: string;
  topK?: string;
  ignoreEos?: boolean;
  datasetName: string;
  datasetPath?: string;
  inputLen?: string;
  outputLen?: string;
  randomInputLen?: string;
  randomOutputLen?: string;
  randomRangeRatio: string;
  randomPrefixLen: string;
  prefixRepetitionPrefixLen: string;
  prefixRepetitionSuffixLen: string;
  prefixRepetitionNumPrefixes: string;
  prefixRepetitionOutputLen: string;
  vocabSize?: string;
  numPrompts: string;
  numWarmups: string;
  requestRate: string;
  burstiness: string;
  maxConcurrency?: string;
  concurrency?: string;
  seed: string;
  timeout: string;
  readyCheckTimeoutSec: string;
  metricPercentiles: string;
  percentileMetrics: string;
  goodput?: string[];
  saveResult?: boolean;
  saveDetailed?: boolean;
  resultDir: string;
  resultFilename?: string;
  label?: string;
  metadata?: string[];
  disableTqdm?: boolean;
}

/** Adds the flags, named as in `vllm bench serve`. */
export function addServeBenchFlags(command: Command): Command {
  addMeasurementFlags(command);
  return addOutputFlags(command);
}

function addMeasurementFlags(command: Command): void {
  command
    .option('--base-url <url>', 'URL of the server (default: from --host and --port)')
    .option('--host <address>', 'address of the server', '127.0.0.1')
    .option('--port <number>', 'port of the server', '8080')
    .option('--uds <path>', 'path of a Unix socket to connect through')
    .option(
      '--backend <name>',
      'openai (or vllm): token ids to /v1/completions; openai-chat: text to /v1/chat/completions',
      'openai',
    )
    .option('--endpoint <path>', 'path of the requests (default: the path of --backend)')
    .option('--model <name>', 'model name in the requests (default: the first model of /v1/models)')
    .option('--served-model-name <name>', 'same as --model')
    .option('--api-key <key>', 'access key, sent as a bearer token (default: OPENAI_API_KEY)')
    .option('--header <key=value...>', 'additional headers of every request')
    .option('--extra-body <json>', 'additional fields of every request body')
    .option('--temperature <number>', 'sampling temperature (default: chosen by the server)')
    .option('--top-p <number>', 'top-p sampling (default: chosen by the server)')
    .option('--top-k <number>', 'top-k sampling (default: chosen by the server)')
    .option('--ignore-eos', 'generate every response to its maximum length')
    .option(
      '--dataset-name <name>',
      'prompts: random, prefix_repetition (prompts that share prefixes) or custom (a file)',
      'random',
    )
    .option(
      '--dataset-path <file>',
      'file of the custom dataset: JSON lines with "prompt" and an optional "output_tokens"',
    )
    .option('--input-len <tokens>', 'same as --random-input-len')
    .option('--output-len <tokens>', 'same as --random-output-len')
    .option('--random-input-len <tokens>', 'length of each prompt in tokens (default: 1024)')
    .option('--random-output-len <tokens>', 'maximum number of output tokens per request (default: 128)')
    .option('--random-range-ratio <share>', 'share by which the lengths vary, from 0 to 1', '0')
    .option('--random-prefix-len <tokens>', 'length of a prefix that all prompts share, in tokens', '0')
    .option('--prefix-repetition-prefix-len <tokens>', 'length of each shared prefix in tokens', '256')
    .option('--prefix-repetition-suffix-len <tokens>', 'length of the unique part of each prompt in tokens', '256')
    .option('--prefix-repetition-num-prefixes <number>', 'number of shared prefixes', '10')
    .option('--prefix-repetition-output-len <tokens>', 'maximum number of output tokens per request', '128')
    .option('--vocab-size <number>', 'vocabulary size for random token ids (default: from /v1/models, else 1000)')
    .option('--num-prompts <number>', 'number of requests', '1000')
    .option('--num-warmups <number>', 'number of warm-up requests, in addition to the test request', '0')
    .option('--request-rate <number>', 'requests per second on average, or inf to send all at once', 'inf')
    .option('--burstiness <number>', 'shape of the arrivals: 1 is Poisson, below 1 in bursts, above 1 more even', '1')
    .option(
      '--max-concurrency <number>',
      'maximum number of concurrent requests; the wait for this limit is not measured (default: no limit)',
    )
    .option(
      '--concurrency <list>',
      'run once with each of these limits in place of --max-concurrency, for example 1,2,4,8,16, and compare them',
    )
    .option('--seed <number>', 'seed of the prompts and arrivals', '0')
    .option('--timeout <seconds>', 'maximum duration of a request', '600')
    .option('--ready-check-timeout-sec <seconds>', 'maximum time to wait until the server is ready', '0')
    .option('--metric-percentiles <list>', 'percentiles to report', '90,99')
    .option(
      '--percentile-metrics <list>',
      'latencies to report: ttft (time to first token), tpot (time per output token), itl (inter-token latency), e2el (end-to-end latency)',
      'ttft,tpot,itl,e2el',
    )
    .option(
      '--goodput <name:ms...>',
      'latency limits in milliseconds, for example ttft:500 tpot:50 e2el:5000; goodput counts the requests within all limits',
    )
    .option('--save-result', 'write the result to a JSON file')
    .option('--save-detailed', 'include the measurements of each request in the result file')
    .option('--result-dir <dir>', 'directory of the result file', '.')
    .option(
      '--result-filename <name>',
      'name of the result file; implies --save-result (default: from backend, rate, model and time)',
    )
    .option('--label <text>', 'name of the run in the result file')
    .option('--metadata <key=value...>', 'additional fields of the result file')
    .option('--disable-tqdm', 'do not print progress');
}

function readBaseUrl({ baseUrl, host, port }: ServeBenchFlags): string {
  if (baseUrl !== undefined) return parseBaseUrl('--base-url', baseUrl);
  const hostname = host.includes(':') ? `[${host}]` : host;
  return parseBaseUrl('--host and --port', `http://${hostname}:${port}`);
}

/** @throws UsageError for the first wrong value. */
export function readServeBenchFlags(
  flags: ServeBenchFlags & { servedModelName?: string },
  env: NodeJS.ProcessEnv,
): ServeBenchOptions {
  const isRepetition = flags.datasetName === 'prefix_repetition';
  const sampling = Object.entries({ temperature: flags.temperature, top_p: flags.topP, top_k: flags.topK }).filter(
    (entry) => entry[1] !== undefined,
  );
  const percentileMetrics = flags.percentileMetrics
    .split(',')
    .map((name) => parseOneOf('--percentile-metrics', name.trim(), LATENCIES));
  const options: ServeBenchOptions = {
    backend: parseOneOf('--backend', flags.backend === 'vllm' ? 'openai' : flags.backend, BACKENDS),
    baseUrl: readBaseUrl(flags),
    endpoint: flags.endpoint,
    socketPath: flags.uds,
    model: flags.servedModelName ?? flags.model,
    apiKey: flags.apiKey ?? (env.OPENAI_API_KEY === '' ? undefined : env.OPENAI_API_KEY),
    headers: parsePairs('--header', flags.header ?? []),
    extraBody: flags.extraBody === undefined ? {} : parseJsonObject('--extra-body', flags.extraBody),
    sampling: Object.fromEntries(
      sampling.map(([name, value]) => [name, parseNumber(`--${name.replace('_', '-')}`, value!, 0)]),
    ),
    ignoreEos: flags.ignoreEos ?? false,
    dataset: parseOneOf('--dataset-name', flags.datasetName, DATASETS),
    datasetPath: flags.datasetPath,
    inputLen: parseWhole('--random-input-len', flags.randomInputLen ?? flags.inputLen ?? '1024', 1),
    outputLen: parseWhole(
      '--random-output-len',
      isRepetition ? flags.prefixRepetitionOutputLen : (flags.randomOutputLen ?? flags.outputLen ?? '128'),
      1,
    ),
    rangeRatio: parseNumber('--random-range-ratio', flags.randomRangeRatio, 0, 1),
    prefixLen: parseWhole('--random-prefix-len', flags.randomPrefixLen, 0),
    prefixes: {
      length: parseWhole('--prefix-repetition-prefix-len', flags.prefixRepetitionPrefixLen, 1),
      suffixLen: parseWhole('--prefix-repetition-suffix-len', flags.prefixRepetitionSuffixLen, 1),
      count: parseWhole('--prefix-repetition-num-prefixes', flags.prefixRepetitionNumPrefixes, 1),
    },
    vocabSize: flags.vocabSize === undefined ? undefined : parseWhole('--vocab-size', flags.vocabSize, 16),
    numPrompts: parseWhole('--num-prompts', flags.numPrompts, 1),
    numWarmups: parseWhole('--num-warmups', flags.numWarmups, 0),
    requestRate: parseRate('--request-rate', flags.requestRate),
    burstiness: parseNumber('--burstiness', flags.burstiness, 0.01),
    maxConcurrency:
      flags.maxConcurrency === undefined ? Infinity : parseWhole('--max-concurrency', flags.maxConcurrency, 1),
    sweep: flags.concurrency === undefined ? [] : parseWholes('--concurrency', flags.concurrency, 1),
    seed: parseWhole('--seed', flags.seed, 0),
    timeoutMs: parseNumber('--timeout', flags.timeout, 0.001, 86_400) * 1000,
    readyTimeoutMs: parseNumber('--ready-check-timeout-sec', flags.readyCheckTimeoutSec, 0, 86_400) * 1000,
    percentiles: parsePercentiles('--metric-percentiles', flags.metricPercentiles),
    percentileMetrics,
    goodput: parseBounds('--goodput', flags.goodput ?? [], ['ttft', 'tpot', 'e2el']),
    resultPath:
      flags.saveResult === true || flags.resultFilename !== undefined
        ? `${flags.resultDir}/${flags.resultFilename ?? ''}`
        : undefined,
    isDetailed: flags.saveDetailed ?? false,
    label: flags.label,
    metadata: parsePairs('--metadata', flags.metadata ?? []),
    isQuiet: flags.disableTqdm ?? false,
    ...readOutputFlags(flags),
  };
  if (options.sweep.length > 0 && options.maxConcurrency < Infinity)
    throw new UsageError('--concurrency: cannot be used with --max-concurrency: the list sets the limit of each run');
  if (options.dataset === 'custom' && options.datasetPath === undefined)
    throw new UsageError('--dataset-path: expected a file for --dataset-name custom');
  return options;
}
