import type { NativeCacheDType, NativeDType, NativeEngineOptions, NativeIsa, NativeQuantization } from './addon-types';
import { checkLoraModules } from './adapters';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import type { ModelInfo } from './hub/model-info';
import type { ModelTask } from './pooling';
import { checkHubChoice, type HubChoice, type HubKind } from './hub/settings';
import { checkSamplingDefaults, type SamplingDefaults } from './sampling';
import { QUANTIZATIONS, resolveSpeculation, type SpeculativeOptions } from './speculation';
import { findReasoningFormat } from './text/reasoning';
import { findToolCallFormat } from './text/tool-calls';

/** Progress of a load: of the download of the model's files, then of its weights into memory. */
export interface LoadProgress {
  /** `download`: the files are fetched. `load`: the weights are read into memory. */
  stage: 'download' | 'load';
  /** Bytes so far. Decreases if a downloaded file was damaged. */
  doneBytes: number;
  /** Bytes of the whole stage. */
  totalBytes: number;
}

/** Options of {@link Engine.load}. Every field is optional. */
export interface EngineOptions {
  /**
   * Where the model runs. `'auto'`: the CPU in this version; `EngineInfo.notes` says why. `'cuda'`: the first
   * `tensorParallelSize` GPUs. `'cuda:0,1'`: one rank on each listed GPU; a repeated number makes virtual ranks on one
   * GPU. Default: `'auto'`.
   */
  device?: 'auto' | 'cpu' | 'cuda' | `cuda:${string}`;
  /**
   * What the model does. `'auto'`: what its files say (`modules.json` of sentence-transformers, the architecture), else
   * `'generate'`. Default: `'auto'`.
   */
  task?: 'auto' | ModelTask;
  /**
   * Number of ranks that each layer is split over: 1, 2, 4 or 8. The tokens are the same for every size; on CUDA this
   * needs `deterministic`. Default: the number of devices in `device`, else 1.
   */
  tensorParallelSize?: number;
  /** CPU threads in total, over all ranks. Default: the cores that CPU affinity and the control group allow. */
  threads?: number;
  /** Pins each CPU thread to a core. Default: false. */
  pinThreads?: boolean;
  /**
   * Makes the tokens of a request independent, bit for bit, of the other requests in the batch. Costs some speed on
   * CUDA; the CPU backend is always deterministic. Default: false.
   */
  deterministic?: boolean;
  /**
   * Data type of the weights. `'auto'` keeps the type of the checkpoint, except that CUDA turns f32 into bf16.
   * Quantized weights of a checkpoint stay quantized; on CUDA, products decode them to this type, by default bf16.
   * CUDA refuses `'f32'`. Default: `'auto'`.
   */
  dtype?: 'auto' | NativeDType;
  /**
   * Quantizes the weights while they are loaded. `'int8'` halves the memory of bf16 weights, with a scale for each 128
   * weights. `'int4'` takes about a quarter, with a scale for each 64; the embedding and the LM head keep 8 bits. Text
   * is generated faster, and less exactly. Default: `'none'`.
   */
  quantization?: NativeQuantization;
  /**
   * Data type of the activations that bf16 weights are multiplied with. `'auto'` is bf16, or f32 for models with a
   * hidden size below 512. f32 and f16 weights always compute in f32. Quantized weights are multiplied with 8-bit
   * integers, or with f32 if this is `'f32'`, which is slower and more exact. On CUDA activations have the type of the
   * weights, and `'f32'` is refused. Default: `'auto'`.
   */
  computeDtype?: 'auto' | 'f32' | 'bf16';
  /**
   * Data type of the KV cache. `'auto'` is the type that the backend computes in. `'int8'` (CPU only) and `'fp8'` (CUDA
   * only) hold about twice as many tokens as bf16 with less precision: a code of 8 bits per value, and a scale per
   * token and KV head. CUDA supports only `'auto'` and `'fp8'`. Default: `'auto'`.
   */
  kvCacheDtype?: 'auto' | NativeCacheDType;
  /** Instruction set of the CPU kernels. Default: `'auto'`, the best that this machine supports. */
  isa?: NativeIsa;
  /** Tokens per KV cache block. Default: 16 on the CPU, 64 on CUDA. */
  blockSize?: number;
  /**
   * Size of the KV cache in bytes. Default on the CPU: enough for `maxNumSeqs` sequences of `maxModelLen` tokens, at
   * most a quarter of the free memory. Default on CUDA: what `gpuMemoryUtilization` leaves.
   */
  kvCacheBytes?: number;
  /**
   * Share of a GPU's memory that the engine may use, above 0 and at most 1, weights included. Unless `kvCacheBytes` is
   * set, the remainder becomes the KV cache, up to 32 Mi tokens. Ignored on the CPU. Default: 0.9.
   */
  gpuMemoryUtilization?: number;
  /**
   * Context length in tokens: prompt and completion of one sequence. Default: the length that the model was trained
   * with, lowered if the KV cache cannot hold one such sequence. An explicit value that does not fit is an error.
   */
  maxModelLen?: number;
  /** Maximum number of sequences that run at the same time. Default: 64, on CUDA 256. */
  maxNumSeqs?: number;
  /** Token budget of one step. Default: 512, on CUDA 8,192. */
  maxNumBatchedTokens?: number;
  /**
   * Maximum milliseconds that prompts add to a step while other sequences generate. The time between two tokens of a
   * stream is at most this long plus one step without prompts. A smaller value makes running streams smoother and new
   * prompts slower. The results do not depend on it. 0: no limit. Default: 100, on CUDA 50.
   */
  maxStepMs?: number;
  /**
   * Maximum number of sequences that wait while `maxNumSeqs` others are open. Further requests fail with `queue_full`.
   * 0: nothing waits. A call of `embed`, `score` or `rerank` counts once. Default: 1,024.
   */
  maxQueuedRequests?: number;
  /**
   * Maximum memory in bytes of the compiled grammars of structured outputs and tools, and of their token masks.
   * Grammars may use half of it: a larger one fails with `invalid_argument`, and one that does not fit beside those of
   * open calls fails with `queue_full`. With a small value grammars and masks are computed more often. Default: 64 MiB.
   */
  grammarCacheBytes?: number;
  /** Reuses the KV cache of equal prompt prefixes. Default: true. */
  prefixCache?: boolean;
  /**
   * Folder in which the prefix cache survives the end of the engine. It is created with mode 0700 if it is missing.
   * What it holds can reveal prompts. CPU only, for models whose layers all see the whole context. Default: none.
   */
  prefixCacheDir?: string;
  /** Limit of what `prefixCacheDir` holds, in bytes. The least recently used blocks are removed. Default: 10 GiB. */
  prefixCacheDiskBytes?: number;
  /** Lets calls use LoRA adapters. Default: false, or true with `loraModules`. */
  enableLora?: boolean;
  /** Adapters to load with the model: their folders by name. See {@link Engine.loadAdapter}. */
  loraModules?: Readonly<Record<string, string>>;
  /**
   * Maximum rank of an adapter, up to 256. A larger one takes more memory, used or not. Mixtures of experts take it
   * once per token and chosen expert. Default: 64.
   */
  maxLoraRank?: number;
  /** Maximum number of loaded adapters. Any number of them may run in one step. Default: 64. */
  maxLoras?: number;
  /** Speculative decoding, for example `{ method: 'ngram', numSpeculativeTokens: 5 }`. Default: none. */
  speculative?: SpeculativeOptions;
  /** Records where the time of the steps goes, in `profile` of {@link Engine.stats}. Costs time. Default: false. */
  profile?: boolean;
  /**
   * Maximum number of waiting prompt tokens, prompts that are still being tokenized included. Further requests fail
   * with `queue_full`. Default: no limit.
   */
  maxQueuedTokens?: number;
  /**
   * `'none'` ignores the sampling defaults in `generation_config.json` or the GGUF file. Default: `'auto'`.
   */
  generationConfig?: 'auto' | 'none';
  /** Sampling defaults that take precedence over those of the model. */
  generationConfigOverrides?: SamplingDefaults;
  /** Source of a chat template (Jinja) to use instead of the model's. */
  chatTemplate?: string;
  /** Name of the format in which the model writes tool calls. Default: `'auto'`, detected from the chat template. */
  toolCallFormat?: string;
  /**
   * Name of the format in which the model marks its reasoning, such as `'think'` for `<think>…</think>`; `'none'`
   * leaves the reasoning in the text. Default: `'auto'`, detected from the chat template.
   */
  reasoningFormat?: string;
  /** Where models are downloaded from. Default: `'huggingface'`, or its mirror in `HF_ENDPOINT`. */
  hub?: HubKind;
  /** A token, which is sent to the hub only. null: none. Default: that of the environment, such as `HF_TOKEN`. */
  token?: string | null;
  /** Folder of the cache of downloaded models. Default: that of the environment, such as `HF_HUB_CACHE`. */
  cacheDir?: string;
  /** Called before files other than config.json are downloaded. If it throws, the load rejects with that error. */
  onDownload?: (info: ModelInfo) => void;
  /** Called while the model is downloaded and while its weights load. If it throws, the load rejects with the error. */
  onProgress?: (progress: LoadProgress) => void;
  /** Aborting it makes the load reject with code `aborted`. A later load continues the download. */
  signal?: AbortSignal;
}

/** Checked options for the addon. The fields left out, and `dtype: 'auto'`, depend on the model. */
export type ResolvedEngineOptions = Omit<NativeEngineOptions, 'weightDtype' | 'eosTokenIds' | 'modelDigest'> & {
  dtype: 'auto' | NativeDType;
};

/** Checked options that the library itself handles. */
export interface LibraryOptions {
  task: 'auto' | ModelTask;
  /** Infinity: no limit. */
  maxQueuedTokens: number;
  generationConfig: 'auto' | 'none';
  generationConfigOverrides: SamplingDefaults;
  chatTemplate: string | undefined;
  toolCallFormat: string;
  reasoningFormat: string;
  hub: HubChoice;
  loraModules: Readonly<Record<string, string>>;
}

const DEFAULT_DISK_BYTES = 10 * 2 ** 30;
const TASKS = ['generate', 'embed', 'score'] as const;
const DTYPES = ['f32', 'f16', 'bf16'] as const;
const ISAS = [
  'auto',
  'portable',
  'avx2',
  'avxvnni',
  'avx512',
  'avx512vnni',
  'avx512bf16',
  'amx',
  'neon',
  'neondot',
  'neonbf16',
] as const satisfies readonly NativeIsa[];
/** NOTE: a record, so that a field missing here does not compile. */
const ENGINE_KEYS = Object.keys({
  device: true,
  task: true,
  tensorParallelSize: true,
  threads: true,
  pinThreads: true,
  deterministic: true,
  dtype: true,
  quantization: true,
  computeDtype: true,
  kvCacheDtype: true,
  isa: true,
  blockSize: true,
  kvCacheBytes: true,
  gpuMemoryUtilization: true,
  maxModelLen: true,
  maxNumSeqs: true,
  maxNumBatchedTokens: true,
  maxStepMs: true,
  maxQueuedRequests: true,
  grammarCacheBytes: true,
  prefixCache: true,
  prefixCacheDir: true,
  prefixCacheDiskBytes: true,
  enableLora: true,
  loraModules: true,
  maxLoraRank: true,
  maxLoras: true,
  speculative: true,
  profile: true,
  maxQueuedTokens: true,
  generationConfig: true,
  generationConfigOverrides: true,
  chatTemplate: true,
  toolCallFormat: true,
  reasoningFormat: true,
  hub: true,
  token: true,
  cacheDir: true,
  onDownload: true,
  onProgress: true,
  signal: true,
} satisfies Record<keyof EngineOptions, true>);

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function resolveEngineOptions(options: EngineOptions): ResolvedEngineOptions {
  checkKnownKeys('options', checkObject('options', options), ENGINE_KEYS);
  if (options.signal !== undefined && !(options.signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', options.signal);
  for (const name of ['onDownload', 'onProgress'] as const)
    if (options[name] !== undefined && typeof options[name] !== 'function')
      throw CapstanError.argument(name, 'a function', options[name]);
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
    quantization: checkOneOf('quantization', options.quantization ?? 'none', QUANTIZATIONS),
    computeDtype: checkOneOf('computeDtype', options.computeDtype ?? 'auto', ['auto', 'f32', 'bf16']),
    kvCacheDtype: checkOneOf('kvCacheDtype', options.kvCacheDtype ?? 'auto', ['auto', ...DTYPES, 'int8', 'fp8']),
    isa: checkOneOf('isa', options.isa ?? 'auto', ISAS),
    blockSize: count('blockSize', 0),
    kvCacheBytes:
      options.kvCacheBytes === undefined
        ? 0
        : checkNumber('kvCacheBytes', options.kvCacheBytes, { min: 1, isInteger: true }),
    gpuMemoryUtilization:
      options.gpuMemoryUtilization === undefined
        ? 0.9
        : checkNumber('gpuMemoryUtilization', options.gpuMemoryUtilization, { min: 0, isMinOpen: true, max: 1 }),
    maxModelLen: count('maxModelLen', 0),
    maxNumSeqs: count('maxNumSeqs', isCuda ? 256 : 64),
    maxNumBatchedTokens: count('maxNumBatchedTokens', isCuda ? 8192 : 512),
    maxStepMs: checkNumber('maxStepMs', options.maxStepMs ?? (isCuda ? 50 : 100), { min: 0, max: 3_600_000 }),
    maxQueuedRequests: count('maxQueuedRequests', 1024, 0),
    grammarCacheBytes:
      options.grammarCacheBytes === undefined
        ? 64 << 20
        : checkNumber('grammarCacheBytes', options.grammarCacheBytes, { min: 1, isInteger: true }),
    prefixCache: checkBoolean('prefixCache', options.prefixCache ?? true),
    prefixCacheDir: options.prefixCacheDir === undefined ? null : checkFolder('prefixCacheDir', options.prefixCacheDir),
    prefixCacheDiskBytes:
      options.prefixCacheDiskBytes === undefined
        ? DEFAULT_DISK_BYTES
        : checkNumber('prefixCacheDiskBytes', options.prefixCacheDiskBytes, { min: 1, isInteger: true }),
    enableLora: checkBoolean('enableLora', options.enableLora ?? options.loraModules !== undefined),
    maxLoras: count('maxLoras', 64),
    maxLoraRank: count('maxLoraRank', 64),
    speculative: options.speculative === undefined ? null : resolveSpeculation(options.speculative),
    profile: checkBoolean('profile', options.profile ?? false),
  };
}

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function resolveLibraryOptions(options: EngineOptions): LibraryOptions {
  const {
    task = 'auto',
    maxQueuedTokens,
    generationConfig = 'auto',
    generationConfigOverrides = {},
    chatTemplate,
    toolCallFormat = 'auto',
    reasoningFormat = 'auto',
    loraModules = {},
  } = options;
  return {
    task: checkOneOf('task', task, ['auto', ...TASKS]),
    maxQueuedTokens:
      maxQueuedTokens === undefined
        ? Infinity
        : checkNumber('maxQueuedTokens', maxQueuedTokens, { min: 1, isInteger: true }),
    generationConfig: checkOneOf('generationConfig', generationConfig, ['auto', 'none']),
    generationConfigOverrides: checkSamplingDefaults('generationConfigOverrides', generationConfigOverrides),
    chatTemplate: chatTemplate === undefined ? undefined : checkString('chatTemplate', chatTemplate),
    toolCallFormat: checkToolCallFormat(toolCallFormat),
    reasoningFormat: checkReasoningFormat(reasoningFormat),
    hub: checkHubChoice(options),
    loraModules: checkLoraModules(loraModules),
  };
}

function checkFolder(param: string, value: unknown): string {
  const path = checkString(param, value);
  if (path === '' || path.includes('\0')) throw CapstanError.argument(param, 'a path', value);
  return path;
}

function checkDevice(device: string): string {
  if (!/^(auto|cpu|cuda|cuda:\d{1,3}(,\d{1,3})*)$/.test(checkString('device', device)))
    throw CapstanError.argument('device', 'auto, cpu, cuda, or cuda: with device numbers such as cuda:0,1', device);
  return device;
}

/** Checks the name before the model is loaded. 'auto' is resolved later, because it needs the chat template. */
function checkToolCallFormat(name: string): string {
  findToolCallFormat(name, () => false);
  return name;
}

/** Like {@link checkToolCallFormat}. */
function checkReasoningFormat(name: string): string {
  findReasoningFormat(name, () => false);
  return name;
}
