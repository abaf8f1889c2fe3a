/**
 * What crosses the language boundary, written once for the script side. `native/binding` converts the same records to C++.
 * Down: one record to load, one per request. Up: one array of events per step for all sequences together.
 */
import type { Grammar, GrammarExpr } from './text/grammar';

export type NativeDType = 'f32' | 'f16' | 'bf16';
/** Of the KV cache: 'fp8' is e4m3 with a power of two for each token and head. */
export type NativeCacheDType = NativeDType | 'fp8';

/** A tensor of the checkpoint under its canonical name (see `ts/model/families.ts`), as stored in the file: row-major, little endian. */
export interface NativeTensor {
  /** `embed_tokens.weight`, `lm_head.weight`, `norm.weight`, `layers.N.{input_norm,post_attention_norm,q_norm,k_norm}.weight`,
   *  `layers.N.{q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj}.{weight,bias}` */
  name: string;
  /** Index into `NativeLoad.files`. */
  file: number;
  /** First byte, counted from the start of the file. */
  offset: number;
  dtype: NativeDType;
  shape: number[];
}

/** The architecture as data. Sizes are the whole model's, before any split over ranks. */
export interface NativeModelSpec {
  vocabSize: number;
  hiddenSize: number;
  intermediateSize: number;
  numLayers: number;
  numHeads: number;
  numKvHeads: number;
  headDim: number;
  rmsNormEps: number;
  hiddenAct: 'silu' | 'gelu' | 'gelu_tanh';
  tieWordEmbeddings: boolean;
  /** Factor on q·k, usually 1/sqrt(headDim). */
  attentionScale: number;
  /** Per layer: how many of the newest positions (itself included) a query sees; 0 = all. */
  slidingWindows: Int32Array;
  rope: {
    type: 'default' | 'linear' | 'dynamic' | 'llama3' | 'yarn';
    theta: number;
    /** Rotated dimensions of a head, from its first; headDim unless partial. */
    rotaryDim: number;
    factor: number;
    /** Trained length: `original_max_position_embeddings`, else `max_position_embeddings`. */
    originalMaxPositions: number;
    lowFreqFactor: number;
    highFreqFactor: number;
    betaFast: number;
    betaSlow: number;
    /** Whether YaRN's correction range is rounded to whole dimensions. */
    truncate: boolean;
    /** Factor on cos and sin (YaRN's temperature); 1 otherwise. */
    attentionFactor: number;
  };
  /** `max_position_embeddings` of the config. */
  maxPositionEmbeddings: number;
}

/** id → bytes: token `id` is `bytes[offsets[id] .. offsets[id + 1]]`. Ids without a token have no bytes. */
export interface NativeVocab {
  bytes: Uint8Array;
  /** numTokens + 1 entries; numTokens may be below `vocabSize` (the rest is never sampled). */
  offsets: Uint32Array;
  /** numTokens entries: 0 ordinary; 1 special (left out of text when `skipSpecialTokens`); 2 a marker (always in the text). Grammars take special
   *  tokens and markers only where a literal or `until` spells them. */
  special: Uint8Array;
}

export interface NativeEngineOptions {
  /** 'auto', 'cpu', 'cuda' or 'cuda:' and the numbers of devices. */
  device: string;
  tensorParallelSize: number;
  /** Total over ranks; 0 = the cores that affinity and the control group allow. */
  threads: number;
  pinThreads: boolean;
  /** On CUDA: kernels that give a token the same bits whatever runs beside it; the CPU always does. */
  deterministic: boolean;
  /** Number type of the packed weights; tensors of another type are converted while packing. */
  weightDtype: NativeDType;
  /** What bf16 weights are multiplied with; 'auto' = bf16, but f32 for models narrower than 512. */
  computeDtype: 'auto' | 'f32' | 'bf16';
  /** 'auto' = the type computed in. */
  kvCacheDtype: 'auto' | NativeCacheDType;
  /** Instruction set; 'auto' = the best this machine has. */
  isa: 'auto' | 'portable' | 'avx2' | 'avx512' | 'avx512bf16';
  /** 0 = what the backend prefers. */
  blockSize: number;
  /** 0 = default: min(maxNumSeqs × maxModelLen, 25 % of the memory left); on a GPU what gpuMemoryUtilization leaves. */
  kvCacheBytes: number;
  /** Share of a GPU's memory that the engine may use, weights included; without meaning on the CPU. */
  gpuMemoryUtilization: number;
  /** 0 = default (the trained length, lowered to fit the KV cache); otherwise asked for and must fit. */
  maxModelLen: number;
  maxNumSeqs: number;
  maxNumBatchedTokens: number;
  maxQueuedRequests: number;
  prefixCache: boolean;
  eosTokenIds: Int32Array;
}

export interface NativeLoad {
  files: string[];
  tensors: NativeTensor[];
  spec: NativeModelSpec;
  vocab: NativeVocab;
  options: NativeEngineOptions;
}

/** What the engine resolved its options to. */
export interface NativeEngineInfo {
  backend: string;
  isa: string;
  threads: number;
  tensorParallelSize: number;
  weightDtype: NativeDType;
  computeDtype: NativeDType;
  kvCacheDtype: NativeCacheDType;
  blockSize: number;
  numBlocks: number;
  kvCacheBytes: number;
  weightBytes: number;
  maxModelLen: number;
  /** Lines worth logging once: a lowered context length, a fall back. */
  notes: string[];
}

/** Every field is present; validated in `ts/options.ts` and checked again natively. */
export interface NativeSampling {
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  presencePenalty: number;
  frequencyPenalty: number;
  repetitionPenalty: number;
  /** null: drawn at submit. */
  seed: bigint | null;
  /** 0: the prompt is only scored. */
  maxTokens: number;
  /** A grammar whose text can only end goes before it. */
  minTokens: number;
  ignoreEos: boolean;
  stopTokenIds: Int32Array;
  stop: string[];
  includeStopInOutput: boolean;
  skipSpecialTokens: boolean;
  logitBiasIds: Int32Array;
  logitBiasValues: Float32Array;
  /** null: all. */
  allowedTokenIds: Int32Array | null;
  /** Alternatives per token; -1 = no logprobs at all, 0 = the sampled token's only. */
  logprobs: number;
  /** The same for prompt tokens; -1 = none. */
  promptLogprobs: number;
  /** Token sequences that a completion never holds: the last token of one is not sampled after the others. */
  badWords: Int32Array[];
  thinkingBudget: NativeThinkingBudget | null;
}

/** Bounds the tokens between two markers. Where the budget is used up the closing marker follows, token by token; a grammar that cannot take it yet comes first. */
export interface NativeThinkingBudget {
  /** Most tokens inside, the markers not counted, over the whole completion; 0: closed at once. */
  budget: number;
  /** Empty: only what the prompt has opened. */
  openIds: Int32Array;
  closeIds: Int32Array;
  /** Whether the prompt ends inside. */
  isInside: boolean;
}

export interface NativeRequest {
  promptTokenIds: Int32Array;
  /** Choices of one prompt (n). */
  numChoices: number;
  sampling: NativeSampling;
  /** Partition of the prefix cache; '' = the common one. */
  cacheSalt: string;
  /** Drop one leading space of the completion (metaspace tokenizers whose decoded prompt is empty). */
  stripLeadingSpace: boolean;
  /** What the text is held to: compiled by the same engine. */
  grammar?: NativeGrammar | null;
}

export interface NativeTokenLogprob {
  tokenId: number;
  logprob: number;
  /** 1 = most likely. */
  rank: number;
  top: { tokenId: number; logprob: number }[];
}

/** Counted in tokens and milliseconds, per choice. */
export interface NativeFinish {
  reason: 'stop' | 'length' | 'abort' | 'error';
  /** The stop string or stop token id that ended it; null for EOS, length and the rest. */
  stopReason: string | number | null;
  errorCode: string | null;
  errorMessage: string | null;
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  queueMs: number;
  prefillMs: number;
  decodeMs: number;
  numPreemptions: number;
}

/** What one choice gained since its last event. */
export interface NativeEvent {
  id: number;
  index: number;
  textDelta: string;
  tokenIds: number[];
  /** With `logprobs` ≥ 0: one per entry of `tokenIds`. */
  logprobs: NativeTokenLogprob[] | null;
  /** Once per request, with its first event, when asked for; the first entry is null. */
  promptLogprobs: (NativeTokenLogprob | null)[] | null;
  finish: NativeFinish | null;
}

export interface NativeStats {
  /** Requests' sequences by state. */
  numWaiting: number;
  numRunning: number;
  queuedPromptTokens: number;
  numBlocks: number;
  /** Never used or dropped from the prefix cache. */
  numFreeBlocks: number;
  /** Unused but indexed by the prefix cache. */
  numCachedBlocks: number;
  numEvictions: number;
  numPreemptions: number;
  numSteps: number;
  /** Milliseconds since the last finished step; 0 when idle. The heartbeat of a health check. */
  msSinceLastStep: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  numFinished: { stop: number; length: number; abort: number; error: number };
  lastStep: { numTokens: number; numSeqs: number; scheduleUs: number; forwardUs: number; settleUs: number };
  /** null, or why the engine no longer answers. */
  failure: string | null;
}

/** A GBNF text, a regular expression that the whole text matches, or rules. */
export type NativeGrammarSource =
  /** `prefix`: what the text begins with, before what the GBNF text describes; without rules. */
  | { kind: 'gbnf'; text: string; prefix?: GrammarExpr }
  | { kind: 'regex'; pattern: string }
  | ({ kind: 'rules' } & Grammar);

/** A compiled grammar. */
export interface NativeGrammar {
  /** What it takes of memory; the masks made from it are bounded by themselves, all grammars' together. */
  readonly sizeBytes: number;
  /** A new matcher at the beginning of a text. */
  matcher(): NativeGrammarMatcher;
}

/** The state of one text that is held to a grammar, byte by byte. */
export interface NativeGrammarMatcher {
  /** False, with nothing taken, if the bytes cannot come next. */
  accept(bytes: Uint8Array): boolean;
  /** The bytes that may come next, ascending. */
  nextBytes(): number[];
  /** Those of them that lead to the end soonest. */
  closingBytes(): number[];
  canEnd(): boolean;
  /** Fewest bytes until the text may end. */
  bytesToEnd(): number;
}

export interface NativeEngine {
  readonly info: NativeEngineInfo;
  /** Returns the request's id. Throws an Error with `code`. */
  submit(request: NativeRequest): number;
  /** Compiles on a pool thread, for requests to this engine. Rejects with code invalid_argument and a message that says what is wrong where. */
  compileGrammar(source: NativeGrammarSource): Promise<NativeGrammar>;
  /** Ends every choice with reason 'abort'; unknown or finished ids are ignored. */
  abort(id: number): void;
  /** Ends one choice with reason 'stop'; ignored where it has finished. */
  stop(id: number, index: number): void;
  stats(): NativeStats;
  /** Ends open requests with error engine_closed, joins the threads. Idempotent. */
  close(): Promise<void>;
}

export interface NativeAddon {
  readonly version: string;
  /** Instruction sets this machine can run, best first. */
  readonly isas: string[];
  /** Compiles on a pool thread, for matching bytes. Rejects with code invalid_argument and a message that says what is wrong where. */
  compileGrammar(source: NativeGrammarSource): Promise<NativeGrammar>;
  /** Tells V8 of so many bytes more (or less) of native memory that JavaScript objects hold, so that it looks for garbage in time. */
  adjustExternalMemory(change: number): void;
  /** Gives memory that the allocator keeps for later back to the system, on a pool thread. */
  trimMemory(): Promise<void>;
  /**
   * Loads on a thread of its own. `onProgress` gets bytes packed and bytes in total, `onEvents` one array per step.
   * `cancel.onCancel` gets a function that ends the load with code 'aborted'. Rejects with an Error that has `code`.
   */
  load(
    load: NativeLoad,
    onProgress: (done: number, total: number) => void,
    onEvents: (events: NativeEvent[]) => void,
    cancel: { onCancel: (cancel: () => void) => void },
  ): Promise<NativeEngine>;
}

/** Codes that native errors carry in `code`. */
export type NativeErrorCode =
  | 'invalid_argument'
  | 'invalid_model'
  | 'unsupported_model'
  | 'io_error'
  | 'out_of_memory'
  | 'context_length_exceeded'
  | 'queue_full'
  | 'engine_closed'
  | 'numeric_error'
  | 'device_lost'
  | 'aborted'
  | 'internal_error';
