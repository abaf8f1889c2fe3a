import type { Command } from 'commander';
import { UsageError } from '../flag-values';
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
} from './flag-values';
import { BACKENDS, DATASETS, LATENCIES, type ServeBenchOptions } from './options';

/** As commander gives them. */
export interface ServeBenchFlags {
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

/** Flags under the names of `vllm bench serve`. */
export function addServeBenchFlags(command: Command): Command {
  return command
    .option('--base-url <url>', 'the server; --host and --port are another way to say it')
    .option('--host <address>', "the server's address", '127.0.0.1')
    .option('--port <number>', "the server's port", '8080')
    .option('--uds <path>', 'connect through this Unix socket')
    .option(
      '--backend <name>',
      'openai (or vllm): token ids to /v1/completions; openai-chat: text to /v1/chat/completions',
      'openai',
    )
    .option('--endpoint <path>', "another path than the backend's")
    .option('--model <name>', 'the model to ask for (default: the first of /v1/models)')
    .option('--served-model-name <name>', 'the same')
    .option('--api-key <key>', 'sent as Bearer (default: OPENAI_API_KEY)')
    .option('--header <key=value...>', 'headers to send')
    .option('--extra-body <json>', 'fields for every request')
    .option('--temperature <number>', "sampling (default: the server's)")
    .option('--top-p <number>', 'the same')
    .option('--top-k <number>', 'the same')
    .option('--ignore-eos', 'let every answer reach its full length')
    .option('--dataset-name <name>', 'random; prefix_repetition: prompts that share prefixes; custom: a file', 'random')
    .option('--dataset-path <file>', 'for custom: lines of JSON with "prompt" and perhaps "output_tokens"')
    .option('--input-len <tokens>', 'as --random-input-len')
    .option('--output-len <tokens>', 'as --random-output-len')
    .option('--random-input-len <tokens>', 'prompt length (default: 1024)')
    .option('--random-output-len <tokens>', 'most tokens of an answer (default: 128)')
    .option('--random-range-ratio <share>', 'lengths vary by up to this share', '0')
    .option('--random-prefix-len <tokens>', 'tokens before each prompt that all share', '0')
    .option('--prefix-repetition-prefix-len <tokens>', 'length of the shared prefixes', '256')
    .option('--prefix-repetition-suffix-len <tokens>', 'own tokens of each prompt', '256')
    .option('--prefix-repetition-num-prefixes <number>', 'how many prefixes', '10')
    .option('--prefix-repetition-output-len <tokens>', 'most tokens of an answer', '128')
    .option('--vocab-size <number>', 'token ids are drawn below this (default: what /v1/models says, else 1000)')
    .option('--num-prompts <number>', 'how many requests', '1000')
    .option('--num-warmups <number>', 'requests before the measurement, beside the one that tries the server', '0')
    .option('--request-rate <number>', 'requests a second, arriving by chance (Poisson); inf: all at once', 'inf')
    .option('--burstiness <number>', 'below 1 arrivals come in bursts, above it evenly', '1')
    .option('--max-concurrency <number>', 'most requests open at once; the others wait here, outside all latencies')
    .option('--seed <number>', 'decides prompts and arrivals', '0')
    .option('--timeout <seconds>', 'most time for one request', '600')
    .option('--ready-check-timeout-sec <seconds>', 'wait this long for the server to be ready', '0')
    .option('--metric-percentiles <list>', 'percentiles to report', '90,99')
    .option('--percentile-metrics <list>', 'latencies to report: ttft, tpot, itl, e2el', 'ttft,tpot,itl,e2el')
    .option(
      '--goodput <name:ms...>',
      'bounds, such as ttft:500 tpot:50 e2el:5000; counts the requests that keep them all',
    )
    .option('--save-result', 'write a JSON file')
    .option('--save-detailed', 'with what each request saw')
    .option('--result-dir <dir>', 'where', '.')
    .option(
      '--result-filename <name>',
      'its name (default: made of backend, rate, model and time); writes it without --save-result too',
    )
    .option('--label <text>', 'a name for the run, in the file')
    .option('--metadata <key=value...>', 'more for the file')
    .option('--disable-tqdm', 'print no progress');
}

/** @throws UsageError for the first value that is wrong. */
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
    baseUrl:
      flags.baseUrl === undefined
        ? parseBaseUrl(
            '--host and --port',
            `http://${flags.host.includes(':') ? `[${flags.host}]` : flags.host}:${flags.port}`,
          )
        : parseBaseUrl('--base-url', flags.baseUrl),
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
  };
  if (options.dataset === 'custom' && options.datasetPath === undefined)
    throw new UsageError('--dataset-path: expected the file of --dataset-name custom');
  return options;
}
