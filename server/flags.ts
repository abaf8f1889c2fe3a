import type { EngineOptions } from '../ts';
import { LOG_LEVELS } from './log-levels';

/** A command line that is wrong; shown without a stack, exit code 2. */
export class UsageError extends Error {}

/** What `capstan serve` was asked for. */
export interface ServeOptions {
  model: string;
  servedNames: string[];
  host: string;
  port: number;
  transport: 'auto' | 'uws' | 'node';
  engine: EngineOptions;
  shutdownTimeoutMs: number;
  healthStallTimeoutMs: number;
  ssePingIntervalMs: number;
  maxRequestBytes: number;
  bodyTimeoutMs: number;
  logLevel: (typeof LOG_LEVELS)[number];
  /** Flags that were given and have no effect here. */
  ignored: string[];
}

/** One flag: how it is written in the help, and what it does to the options. */
export interface Flag {
  /** As commander reads it: `--port <number>`. */
  spelling: string;
  /** Other names, which stay for ever. */
  aliases?: readonly string[];
  help: string;
  /** Absent: accepted and without effect here. */
  apply?(options: ServeOptions, value: string, flag: string): void;
  /** Repeated or followed by several values. */
  isVariadic?: boolean;
}

const DTYPES: Readonly<Record<string, EngineOptions['dtype']>> = {
  auto: 'auto', f32: 'f32', float32: 'f32', float: 'f32', f16: 'f16', float16: 'f16', half: 'f16', bf16: 'bf16', bfloat16: 'bf16',
};

export const SERVE_FLAGS: readonly Flag[] = [
  { spelling: '--model <dir>', help: 'the model, instead of the argument', apply: (options, value) => { options.model = value; } },
  { spelling: '--served-model-name <names...>', isVariadic: true, help: 'names that clients may send; the first is answered (default: the directory\'s name)', apply: (options, value) => { options.servedNames.push(value); } },
  { spelling: '--host <address>', help: 'address to listen on (default: 127.0.0.1; 0.0.0.0 when PLATFORM_SERVING_PRODUCTION is set)', apply: (options, value) => { options.host = value; } },
  { spelling: '--port <number>', help: 'port to listen on, 0 for any (default: 8080; 80 when PLATFORM_SERVING_PRODUCTION is set)', apply: (options, value, flag) => { options.port = parsePort(value, flag); } },
  { spelling: '--max-model-len <tokens>', help: 'context length, also as 8k (8,000) or 8K (8,192); default: the model\'s', apply: (options, value, flag) => { options.engine.maxModelLen = parseCount(value, flag); } },
  { spelling: '--tensor-parallel-size <ranks>', aliases: ['-tp'], help: 'ranks that each layer is split over, or auto (default: 1)', apply: (options, value, flag) => { options.engine.tensorParallelSize = value === 'auto' ? 1 : parseCount(value, flag); } },
  { spelling: '--threads <number>', help: 'threads in total (default: the cores of this process)', apply: (options, value, flag) => { options.engine.threads = parseCount(value, flag); } },
  { spelling: '--pin-threads', help: 'tie each thread to a core', apply: (options) => { options.engine.pinThreads = true; } },
  { spelling: '--device <name>', help: 'auto or cpu (default: auto)', apply: (options, value, flag) => { options.engine.device = parseChoice(value, flag, ['auto', 'cpu']); } },
  { spelling: '--isa <name>', help: 'instruction set: auto, portable, avx2, avx512 or avx512bf16 (default: auto)', apply: (options, value, flag) => { options.engine.isa = parseChoice(value, flag, ['auto', 'portable', 'avx2', 'avx512', 'avx512bf16']); } },
  { spelling: '--dtype <type>', help: 'number type of the weights: auto, f32, f16 or bf16 (default: auto, the checkpoint\'s)', apply: (options, value, flag) => { options.engine.dtype = parseDtype(value, flag); } },
  { spelling: '--kv-cache-dtype <type>', help: 'number type of the KV cache (default: auto, the type computed in)', apply: (options, value, flag) => { options.engine.kvCacheDtype = parseDtype(value, flag); } },
  { spelling: '--kv-cache-memory <bytes>', aliases: ['--kv-cache-memory-bytes'], help: 'size of the KV cache, also as 512M or 2G (default: what the sequences need, at most a quarter of the free memory)', apply: (options, value, flag) => { options.engine.kvCacheBytes = parseBytes(value, flag); } },
  { spelling: '--block-size <tokens>', help: 'tokens per KV cache block (default: 16)', apply: (options, value, flag) => { options.engine.blockSize = parseCount(value, flag); } },
  { spelling: '--max-num-seqs <number>', help: 'most sequences running at once (default: 64)', apply: (options, value, flag) => { options.engine.maxNumSeqs = parseCount(value, flag); } },
  { spelling: '--max-num-batched-tokens <tokens>', help: 'most tokens per step (default: 512)', apply: (options, value, flag) => { options.engine.maxNumBatchedTokens = parseCount(value, flag); } },
  { spelling: '--max-num-queued-reqs <number>', help: 'most sequences waiting; beyond it requests are answered 429 (default: 1024)', apply: (options, value, flag) => { options.engine.maxQueuedRequests = parseCount(value, flag); } },
  { spelling: '--enable-prefix-caching', help: 'reuse the KV cache of equal prompt prefixes (default)', apply: (options) => { options.engine.prefixCache = true; } },
  { spelling: '--no-enable-prefix-caching', help: 'do not', apply: (options) => { options.engine.prefixCache = false; } },
  { spelling: '--generation-config <source>', help: 'sampling defaults: auto (the model\'s generation_config.json) or none (default: auto)', apply: (options, value, flag) => { options.engine.generationConfig = parseChoice(value === 'vllm' ? 'none' : value, flag, ['auto', 'none']); } },
  { spelling: '--http-transport <name>', help: 'uws, node or auto (default: auto, uws where it loads)', apply: (options, value, flag) => { options.transport = parseChoice(value, flag, ['auto', 'uws', 'node']); } },
  { spelling: '--max-request-bytes <bytes>', help: 'largest request body, also as 32M (default: 32M)', apply: (options, value, flag) => { options.maxRequestBytes = parseBytes(value, flag); } },
  { spelling: '--shutdown-timeout <seconds>', help: 'how long open requests may go on after Ctrl-C or SIGTERM (default: 30)', apply: (options, value, flag) => { options.shutdownTimeoutMs = parseSeconds(value, flag, 0); } },
  { spelling: '--sse-ping-interval-s <seconds>', help: 'a comment after this much silence in a stream (default: 15)', apply: (options, value, flag) => { options.ssePingIntervalMs = parseSeconds(value, flag, 0.1); } },
  { spelling: '--health-stall-timeout-s <seconds>', help: 'with work and no step for this long, /health answers 503 (default: 30)', apply: (options, value, flag) => { options.healthStallTimeoutMs = parseSeconds(value, flag, 1); } },
  { spelling: '--log-level <level>', help: 'debug, info, warn, error or silent (default: info)', apply: (options, value, flag) => { options.logLevel = parseChoice(value, flag, LOG_LEVELS); } },
  { spelling: '--trust-remote-code', help: 'no effect: no code of a model is ever run' },
  { spelling: '--disable-log-requests', aliases: ['--no-enable-log-requests'], help: 'no effect: requests are not logged' },
  { spelling: '--gpu-memory-utilization <share>', help: 'no effect on the CPU' },
];

/** The port rule: a deployment serves on port 80 of all addresses, anything else on port 8080 of this machine; variables go before it, flags before them. */
export function defaultServeOptions(env: NodeJS.ProcessEnv): ServeOptions {
  const isProduction = (env.PLATFORM_SERVING_PRODUCTION ?? '') !== '';
  const { PLATFORM_SERVING_HOST: host = '', PLATFORM_SERVING_PORT: port = '' } = env;
  return {
    model: 'demo',
    servedNames: [],
    host: host !== '' ? host : isProduction ? '0.0.0.0' : '127.0.0.1',
    port: port !== '' ? parsePort(port, 'PLATFORM_SERVING_PORT') : isProduction ? 80 : 8080,
    transport: 'auto',
    engine: {},
    shutdownTimeoutMs: 30_000,
    healthStallTimeoutMs: 30_000,
    ssePingIntervalMs: 15_000,
    maxRequestBytes: 32 * 2 ** 20,
    bodyTimeoutMs: 60_000,
    logLevel: 'info',
    ignored: [],
  };
}

function parseChoice<const T extends string>(value: string, flag: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new UsageError(`${flag}: expected ${choices.join(', ')}, got '${value}'`);
  return found;
}

function parseDtype(value: string, flag: string): NonNullable<EngineOptions['dtype']> {
  const dtype = Object.hasOwn(DTYPES, value) ? DTYPES[value] : undefined;
  if (dtype === undefined) throw new UsageError(`${flag}: expected ${Object.keys(DTYPES).join(', ')}, got '${value}'`);
  return dtype;
}

function parsePort(value: string, flag: string): number {
  const port = /^\d{1,5}$/.test(value) ? Number(value) : NaN;
  if (!(port <= 65535)) throw new UsageError(`${flag}: expected a port from 0 to 65535, got '${value}'`);
  return port;
}

function parseSeconds(value: string, flag: string, min: number): number {
  const seconds = /^\d+(\.\d+)?$/.test(value) ? Number(value) : NaN;
  if (!(seconds >= min && seconds <= 86_400)) throw new UsageError(`${flag}: expected seconds from ${min} to 86400, got '${value}'`);
  return seconds * 1000;
}

/** vLLM's rule: a small letter counts in thousands, a capital one in powers of 1,024. */
const COUNT_UNITS: Readonly<Record<string, number>> = { '': 1, k: 1e3, m: 1e6, g: 1e9, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 };

function parseCount(value: string, flag: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)([kmgKMG]?)$/.exec(value) ?? [];
  const count = digits === undefined ? NaN : Number(digits) * COUNT_UNITS[unit];
  if (!Number.isSafeInteger(count) || count < 1) throw new UsageError(`${flag}: expected a whole number of 1 or more, such as 8192 or 8K, got '${value}'`);
  return count;
}

const BYTE_UNITS: Readonly<Record<string, number>> = { '': 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

/** Memory comes in powers of 1,024, however the unit is written: 2G, 2g, 2GB, 2GiB. */
function parseBytes(value: string, flag: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?$/i.exec(value) ?? [];
  const bytes = digits === undefined ? NaN : Math.round(Number(digits) * BYTE_UNITS[unit.toLowerCase()]);
  if (!Number.isSafeInteger(bytes) || bytes < 1) throw new UsageError(`${flag}: expected a number of bytes, such as 512M or 2G, got '${value}'`);
  return bytes;
}
