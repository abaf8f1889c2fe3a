import type { NativeCacheDType, NativeDType, NativeEngineOptions } from './addon-types';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { checkSamplingDefaults, type SamplingDefaults } from './sampling';
import { REASONING_FORMATS } from './text/reasoning';
import { findToolCallFormat } from './text/tool-calls';

/** How an engine is set up. Every field is optional. */
export interface EngineOptions {
  /** Where to run: 'cpu'; 'cuda', the first GPUs; 'cuda:0,1', one rank on each (a repeated number makes virtual ranks). 'auto' (the default) is the CPU in this version and says why. */
  device?: 'auto' | 'cpu' | 'cuda' | `cuda:${string}`;
  /** Ranks that each layer is split over: 1, 2, 4 or 8; the tokens are the same for all, on CUDA with `deterministic`. Default: as many as `device` lists, else 1. */
  tensorParallelSize?: number;
  /** Threads of the CPU in total over ranks, which CUDA does not compute on; default: the cores that affinity and the control group allow. */
  threads?: number;
  /** Tie each thread of the CPU to a core; default false. */
  pinThreads?: boolean;
  /** Give a request the same tokens to the bit whatever runs beside it, at some cost in speed on CUDA; default false. The CPU always does. */
  deterministic?: boolean;
  /** Number type of the weights; 'auto' (default) = the checkpoint's, on CUDA bf16 for f32; CUDA refuses 'f32'. */
  dtype?: 'auto' | NativeDType;
  /** Number type of the activations that meet bf16 weights; 'auto' (default) = bf16, but f32 for models with a hidden size below 512. f32 and f16 weights compute in f32. On CUDA activations have the weights' type, and 'f32' is refused. */
  computeDtype?: 'auto' | 'f32' | 'bf16';
  /** Number type of the KV cache; 'auto' (default) = the one computed in; 'fp8', on CUDA alone, holds twice the tokens less exactly, and CUDA has no other than these two. */
  kvCacheDtype?: 'auto' | NativeCacheDType;
  /** Instruction set of the CPU's kernels; 'auto' (default) = the best of this machine. */
  isa?: NativeEngineOptions['isa'];
  /** Tokens per KV cache block; default: what the backend prefers (16, on CUDA 64). */
  blockSize?: number;
  /** Size of the KV cache; default: room for `maxNumSeqs` full sequences, at most a quarter of the free memory; on CUDA see `gpuMemoryUtilization`. */
  kvCacheBytes?: number;
  /** Share of a GPU's memory that the engine may use, weights included: what is left of it becomes the KV cache, of 32 Mi tokens at most, unless `kvCacheBytes` says otherwise; default 0.9. */
  gpuMemoryUtilization?: number;
  /** Context length; default: the trained length, lowered to fit the KV cache. */
  maxModelLen?: number;
  /** Most sequences running at once; default 64, on CUDA 256. */
  maxNumSeqs?: number;
  /** Most tokens per step; default 512, on CUDA 8,192. */
  maxNumBatchedTokens?: number;
  /** Most sequences waiting; default 1,024. Beyond it requests are refused with `queue_full`. */
  maxQueuedRequests?: number;
  /** Reuse the KV cache of equal prompt prefixes; default true. */
  prefixCache?: boolean;
  /** Most prompt tokens waiting, those of texts being tokenized included; default: no limit. Beyond it requests are refused with `queue_full`. */
  maxQueuedTokens?: number;
  /** 'none' leaves out the sampling defaults of `generation_config.json`; default 'auto'. */
  generationConfig?: 'auto' | 'none';
  /** Sampling defaults that go before those of `generation_config.json`. */
  generationConfigOverrides?: SamplingDefaults;
  /** Text of a chat template (Jinja), in place of the model's. */
  chatTemplate?: string;
  /** How the model writes tool calls: the name of a format; 'auto' (default) = judged by its template. */
  toolCallFormat?: string;
  /** How the model marks thoughts: 'think' (also called 'qwen3' and 'deepseek_r1') = `<think>…</think>`; 'none' leaves them in the text; 'auto' (default) = judged by its template. */
  reasoningFormat?: string;
  /** Ends the load with code `aborted`. */
  signal?: AbortSignal;
}

/** Options that the model does not decide; `dtype` is resolved against the checkpoint by `Engine.load`. */
export type ResolvedEngineOptions = Omit<NativeEngineOptions, 'weightDtype' | 'eosTokenIds'> & {
  dtype: 'auto' | NativeDType;
};

/** Options that the library itself acts on; checked, and resolved against the model by `Engine.load`. */
export interface LibraryOptions {
  /** Infinity without a limit. */
  maxQueuedTokens: number;
  generationConfig: 'auto' | 'none';
  generationConfigOverrides: SamplingDefaults;
  chatTemplate: string | undefined;
  toolCallFormat: string;
  reasoningFormat: string;
}

const DTYPES = ['f32', 'f16', 'bf16'] as const;
const ISAS = ['auto', 'portable', 'avx2', 'avx512', 'avx512bf16'] as const;
const ENGINE_KEYS = [
  'device',
  'tensorParallelSize',
  'threads',
  'pinThreads',
  'deterministic',
  'dtype',
  'computeDtype',
  'kvCacheDtype',
  'isa',
  'blockSize',
  'kvCacheBytes',
  'gpuMemoryUtilization',
  'maxModelLen',
  'maxNumSeqs',
  'maxNumBatchedTokens',
  'maxQueuedRequests',
  'prefixCache',
  'maxQueuedTokens',
  'generationConfig',
  'generationConfigOverrides',
  'chatTemplate',
  'toolCallFormat',
  'reasoningFormat',
  'signal',
] as const satisfies readonly (keyof EngineOptions)[];

/** @throws CapstanError `invalid_argument` naming the first option that is wrong. */
export function resolveEngineOptions(options: EngineOptions): ResolvedEngineOptions {
  checkKnownKeys('options', checkObject('options', options), ENGINE_KEYS);
  if (options.signal !== undefined && !(options.signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', options.signal);
  const device = checkDevice(options.device ?? 'auto');
  const isCuda = device.startsWith('cuda');
  const count = (name: keyof EngineOptions, fallback: number, min = 1) =>
    options[name] === undefined
      ? fallback
      : checkNumber(name, options[name], { min, max: 2 ** 31 - 1, isInteger: true });
  return {
    device,
    tensorParallelSize: count('tensorParallelSize', device.startsWith('cuda:') ? device.split(',').length : 1),
    threads: count('threads', 0),
    pinThreads: checkBoolean('pinThreads', options.pinThreads ?? false),
    deterministic: checkBoolean('deterministic', options.deterministic ?? false),
    dtype: checkOneOf('dtype', options.dtype ?? 'auto', ['auto', ...DTYPES]),
    computeDtype: checkOneOf('computeDtype', options.computeDtype ?? 'auto', ['auto', 'f32', 'bf16']),
    kvCacheDtype: checkOneOf('kvCacheDtype', options.kvCacheDtype ?? 'auto', ['auto', ...DTYPES, 'fp8']),
    isa: checkOneOf('isa', options.isa ?? 'auto', ISAS),
    blockSize: count('blockSize', 0),
    kvCacheBytes:
      options.kvCacheBytes === undefined
        ? 0
        : checkNumber('kvCacheBytes', options.kvCacheBytes, { min: 1, isInteger: true }),
    gpuMemoryUtilization:
      options.gpuMemoryUtilization === undefined
        ? 0.9
        : checkNumber('gpuMemoryUtilization', options.gpuMemoryUtilization, { min: 0, max: 1 }),
    maxModelLen: count('maxModelLen', 0),
    maxNumSeqs: count('maxNumSeqs', isCuda ? 256 : 64),
    maxNumBatchedTokens: count('maxNumBatchedTokens', isCuda ? 8192 : 512),
    maxQueuedRequests: count('maxQueuedRequests', 1024),
    prefixCache: checkBoolean('prefixCache', options.prefixCache ?? true),
  };
}

/** @throws CapstanError `invalid_argument` naming the first option that is wrong. */
export function resolveLibraryOptions(options: EngineOptions): LibraryOptions {
  const {
    maxQueuedTokens,
    generationConfig = 'auto',
    generationConfigOverrides = {},
    chatTemplate,
    toolCallFormat = 'auto',
    reasoningFormat = 'auto',
  } = options;
  return {
    maxQueuedTokens:
      maxQueuedTokens === undefined
        ? Infinity
        : checkNumber('maxQueuedTokens', maxQueuedTokens, { min: 1, isInteger: true }),
    generationConfig: checkOneOf('generationConfig', generationConfig, ['auto', 'none']),
    generationConfigOverrides: checkSamplingDefaults('generationConfigOverrides', generationConfigOverrides),
    chatTemplate: chatTemplate === undefined ? undefined : checkString('chatTemplate', chatTemplate),
    toolCallFormat: checkToolCallFormat(toolCallFormat),
    reasoningFormat: checkOneOf('reasoningFormat', reasoningFormat, ['auto', 'none', ...REASONING_FORMATS]),
  };
}

function checkDevice(device: string): string {
  if (!/^(auto|cpu|cuda|cuda:\d{1,3}(,\d{1,3})*)$/.test(checkString('device', device)))
    throw CapstanError.argument('device', 'auto, cpu, cuda, or cuda:0,1 and the like', device);
  return device;
}

/** Before the model is read, whose template 'auto' needs. */
function checkToolCallFormat(name: string): string {
  findToolCallFormat(name, () => false);
  return name;
}
