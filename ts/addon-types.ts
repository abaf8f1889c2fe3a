/**
 * Types of the native addon. `native/binding` converts the same records to C++.
 * The addon receives one record to load a model and one per request. It sends one array of events per step for all
 * sequences together.
 */
import type { Grammar, GrammarExpr } from './text/grammar';

/**
 * Floating-point types of weights, activations and the KV cache.
 * @inline
 */
export type NativeDType = 'f32' | 'f16' | 'bf16';
/**
 * Instruction set of the CPU kernels; 'auto' = the best that this machine supports.
 * @inline
 */
export type NativeIsa =
  | 'auto'
  | 'portable'
  | 'avx2'
  | 'avxvnni'
  | 'avx512'
  | 'avx512vnni'
  | 'avx512bf16'
  | 'amx'
  | 'neon'
  | 'neondot'
  | 'neonbf16';
/** Quantized number types of GGUF files. */
export type NativeBlockFormat =
  | 'q4_0'
  | 'q4_1'
  | 'q5_0'
  | 'q5_1'
  | 'q8_0'
  | 'q2_k'
  | 'q3_k'
  | 'q4_k'
  | 'q5_k'
  | 'q6_k'
  | 'iq4_nl'
  | 'iq4_xs'
  | 'mxfp4'
  | 'nvfp4';
/** How the codes of a quantized tensor of a safetensors file lie in it (`CodeLayout` in native/backend). */
export type NativeCodeLayout =
  'rows' | 'gptq' | 'gptq_v2' | 'awq' | 'int8' | 'fp8' | 'fp4' | 'fp4_e4m3' | 'table4' | 'int8_max';
/**
 * Data types of the KV cache. 'int8' is codes with a scale per token and KV head. 'fp8' is e4m3 with a power-of-two
 * scale per token and head.
 * @inline
 */
export type NativeCacheDType = NativeDType | 'int8' | 'fp8';

/**
 * Formats that weights can be quantized to at load.
 * @inline
 */
export type NativeQuantization = 'none' | 'int8' | 'int4';

/** Rows of a matrix to quantize. */
export interface NativeQuantizeRows {
  /** For errors. */
  name: string;
  /** Of the open file. */
  descriptor: number;
  /** Of the matrix, (rows, cols), in bytes from the start of the file. */
  offset: number;
  dtype: NativeDType;
  rows: number;
  cols: number;
  rowBegin: number;
  numRows: number;
  bits: 4 | 8;
  /** 16, 32, 64 or 128 columns with one scale. Divides `cols`. */
  groupSize: number;
}

export interface NativeQuantizedRows {
  /** Words of 32 bits, little endian, as in the layout `rows` of {@link NativeCodeLayout}. */
  codes: Uint8Array;
  /** (numRows, cols / groupSize) in f16. */
  scales: Uint8Array;
}

/** An array of a file. */
export interface NativeArray {
  /** Index into `NativeLoad.files`. */
  file: number;
  /** Offset of the first byte from the start of the file. */
  offset: number;
  dtype: NativeDType | 'e8m0' | 'e4m3' | 'i32' | 'i8' | 'u8';
}

/** What a tensor with a {@link NativeCodeLayout} has besides its codes. */
export interface NativeGroups {
  /** Of a code. */
  bits: number;
  /** Rows and columns that share a scale and a zero point. */
  groupRows: number;
  groupCols: number;
  scales: NativeArray;
  /** Absent: the middle of the codes. */
  zeros?: NativeArray;
  /** The group of each column. Absent: in order. */
  groupIndex?: NativeArray;
  /** Of the layout `table4`: the values of the 16 codes, in f32. */
  table?: NativeArray;
  /** Of scales in bytes: scale i = table[byte i] * factors[i / run] + offset. Table and factors are in f32. */
  scaleCodes?: { table: NativeArray; factors: NativeArray; run: number; offset: number };
}

/** A tensor of the checkpoint as stored in the file: row-major, little endian. */
export interface NativeTensor {
  /**
   * Canonical name (see `ts/model/families.ts`): `embed_tokens.weight`, `lm_head.weight`, `norm.weight`,
   * `layers.N.{input_norm,mlp_norm,q_norm,k_norm}.weight`,
   * `layers.N.{q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj}.{weight,bias}`. Of recurrent layers:
   * `layers.N.{in_proj,conv}.{weight,bias}`, or for a delta net in place of `in_proj`
   * `layers.N.{in_proj_qkv,in_proj_z,in_proj_b,in_proj_a}.weight`, where `layers.N.in_proj_qkvz.weight` can replace
   * the first two and `layers.N.in_proj_ba.weight` the last two;
   * `layers.N.{a_log,dt_bias,skip}` and `layers.N.mixer_norm.weight`. Of inputs per layer:
   * `{per_layer_table,per_layer_projection,per_layer_norm}.weight`,
   * `layers.N.{per_layer_gate,per_layer_projection,per_layer_norm}.weight` and `layers.N.layer_scale`.
   */
  name: string;
  /** Index into `NativeLoad.files`. */
  file: number;
  /** Offset of the first byte from the start of the file. */
  offset: number;
  dtype: NativeDType | NativeBlockFormat | NativeCodeLayout;
  /** Of the values, not of the codes in the file. */
  shape: number[];
  /** Of a tensor whose `dtype` is a code layout. `offset` is that of the codes. */
  groups?: NativeGroups;
  /** What scales in e4m3 are multiplied by, or divided by: an f32. */
  scaleFactor?: NativeArray;
  scaleDivisor?: NativeArray;
  /**
   * Size of a head whose rows are stored as pairs: row 2r + j of the head in the file is its row j * size / 2 + r. GGUF
   * files store the q and k projections of Llama like this. Default: rows in order.
   */
  interleavedHeadDim?: number;
  /** How many rows of each head are stored so, from the first on; all by default. */
  interleavedRows?: number;
  /** The file holds the transposed matrix. */
  isTransposed?: boolean;
  /** Of a vector x: the file holds -exp(x). */
  isNegatedExp?: boolean;
}

/** The architecture as data. Sizes are those of the complete model, before it is split over ranks. */
export interface NativeModelSpec {
  vocabSize: number;
  hiddenSize: number;
  intermediateSize: number;
  numHeads: number;
  numKvHeads: number;
  headDim: number;
  rmsNormEps: number;
  /** `clamped_swish` is the gated unit of gpt-oss. */
  hiddenAct: NativeActivation;
  tieWordEmbeddings: boolean;
  /** Factor on q·k, usually 1/sqrt(headDim). */
  attentionScale: number;
  /** c: scores s become c·tanh(s / c); 0 = none. */
  attentionSoftCap: number;
  /** Norms of q and k: of each head, or over all heads. */
  qkNorm: 'none' | 'head' | 'all_heads';
  rotatesBeforeQkNorm: boolean;
  /** Each head of v is divided by its root mean square. */
  hasVNorm: boolean;
  /** Which norms a layer has: before attention, of its result, before the MLP, and of its result. */
  norms: {
    input: boolean;
    attentionOut: boolean;
    mlp: boolean;
    mlpOut: boolean;
    /** The norms of results are of the hidden states after the result is added, and replace them. */
    isOfSum: boolean;
  };
  /** `layer`: with mean and bias. */
  normKind: 'rms' | 'layer';
  /** Otherwise the hidden states of the last layer are the result. */
  hasFinalNorm: boolean;
  /** Otherwise the MLP has no `gate_proj`. */
  hasGatedMlp: boolean;
  /** The MLP reads the hidden states before the result of attention is added. */
  isParallel: boolean;
  /** Otherwise tokens also see those after them, in their window or all. Needs `pooling`. */
  isCausal: boolean;
  /** What is added to the embeddings of tokens; absent: nothing. */
  embedding?: NativeEmbedding;
  /** Absent: the model generates text. */
  pooling?: NativePooling;
  /** Added to the weights of all norms. */
  normOffset: number;
  /** Each head has the logit of a key without value (`layers.N.sinks`). */
  hasSinks: boolean;
  embeddingScale: number;
  /** Factor of what attention and the MLP add to the hidden states. */
  residualScale: number;
  logitScale: number;
  /** As `attentionSoftCap`, of the scaled logits. */
  logitSoftCap: number;
  /** Absent in dense models. */
  moe?: NativeMoe;
  layers: NativeLayer[];
  /** The distinct rotary position encodings of the layers. */
  ropes: NativeRope[];
  /** The sizes of the layers that are not attention; absent without such layers. */
  recurrent?: NativeRecurrent;
  /** In `q_proj`, a gate follows the query of each head. Its sigmoid multiplies the result of attention. */
  hasOutputGate: boolean;
  /** Size of the vector that each layer has for a token (`per_layer_*` tensors); 0 = none. */
  perLayerInputSize: number;
  /** Each layer multiplies its result by `layers.N.layer_scale`. */
  hasLayerScales: boolean;
  /** The last layer is not of the decoder: it belongs to the MTP head. */
  hasMtp: boolean;
  /** `max_position_embeddings` of config.json. */
  maxPositionEmbeddings: number;
  /** The context length unless another is requested; 0 = `maxPositionEmbeddings`. */
  defaultLength: number;
}

/** `clamped_swish` is the gated unit of gpt-oss. `xielu` needs the tensors `layers.N.xielu.{alpha_p,alpha_n,beta}`. */
export type NativeActivation = 'silu' | 'gelu' | 'gelu_tanh' | 'clamped_swish' | 'relu' | 'tanh' | 'identity' | 'xielu';

/** Tables beside that of tokens: `position_embeddings.weight` and `token_type_embeddings.weight`. 0 rows = none. */
export interface NativeEmbedding {
  numPositions: number;
  /** The row of the first position. */
  positionOffset: number;
  numTokenTypes: number;
  /** Rows of the table that attention adds to the scores, by distance; 0: none. */
  numDistances: number;
  /** The sum has the norm `embed_norm`. */
  hasNorm: boolean;
}

/** What a model returns in place of text. */
export interface NativePooling {
  /**
   * The hidden states that count: that of one token, or those of all. `weighted_mean`: a token weighs as much as its
   * position, from 1. `root_mean`: the sum divided by the square root of the number of tokens.
   */
  kind: 'last' | 'mean' | 'first' | 'max' | 'weighted_mean' | 'root_mean';
  /** Layers that turn the pooled hidden state into the result. */
  head: NativeHeadLayer[];
}

/** Layer N has the tensors `head.N.{weight,bias}` and `head.N.norm.{weight,bias}`. */
export interface NativeHeadLayer {
  outputSize: number;
  activation: NativeActivation;
  /** After the activation. */
  hasNorm: boolean;
  /** Its weights are these rows of the LM head. */
  tokenIds?: Int32Array;
}

export interface NativeLayer {
  mixer: 'attention' | 'delta_net' | 'short_conv' | 'mamba2';
  /** How many of the newest positions, its own included, a query attends to; 0 = all. */
  window: number;
  /** Its rotary position encoding: an index into `ropes`, or -1 for none. */
  rope: number;
  /** Whether its MLP is a mixture of experts. */
  isMoe: boolean;
  /** Sizes of a layer that differs from the model. */
  headDim?: number;
  numKvHeads?: number;
  intermediateSize?: number;
  /** The earlier layer whose keys and values it reads. Absent: it has its own. */
  kvSource?: number;
  /** It has no norm before attention although the other layers do. */
  lacksInputNorm?: boolean;
}

/** A mixture of experts. */
export interface NativeMoe {
  numExperts: number;
  /** Experts of each token. */
  topK: number;
  /**
   * Groups of neighbouring experts; default 1. A token's experts are of the `topGroups` best groups. The score of a
   * group is the sum of its two best.
   */
  numGroups?: number;
  topGroups?: number;
  /** Of one expert. */
  intermediateSize: number;
  /** Of the expert that all tokens have; 0 = none. */
  sharedIntermediateSize: number;
  score: 'softmax' | 'sigmoid';
  /** Whether the scores of a token's experts are divided by their sum. */
  normalizesWeights: boolean;
  /** Factor of these weights. */
  weightScale: number;
  /** Factor of the router's logits. */
  logitScale: number;
  /**
   * The router and the experts have the norms `layers.N.{router,expert}_norm`. The results of the experts and of the
   * shared expert have the norms `layers.N.{expert,shared}_out_norm`.
   */
  hasSeparateNorms: boolean;
}

/** Recurrent layers. Short convolutions have the last two sizes only; the others are 0. */
export interface NativeRecurrent {
  /** Heads of values. */
  numHeads: number;
  /** Groups of heads that share keys and queries (of Mamba 2: B and C). */
  numGroups: number;
  /**
   * Neighbouring heads belong to neighbouring groups, as GGUF files store Qwen3.5: head h belongs to group
   * h % numGroups. Otherwise the heads of a group are neighbours.
   */
  headsAlternate?: boolean;
  /** Of a value. */
  headDim: number;
  /** Of a key. */
  stateSize: number;
  /** Inputs of the convolution, the token's own included. */
  convTaps: number;
  /** Values, keys and queries; of short convolutions, the hidden size. */
  convChannels: number;
}

/** Rotary position encoding. */
export interface NativeRope {
  type: 'default' | 'linear' | 'dynamic' | 'llama3' | 'yarn' | 'longrope';
  theta: number;
  /** Number of rotated dimensions of a head, starting with the first; headDim unless rotation is partial. */
  rotaryDim: number;
  factor: number;
  /** Trained length: `original_max_position_embeddings`, else `max_position_embeddings`. */
  originalMaxPositions: number;
  lowFreqFactor: number;
  highFreqFactor: number;
  betaFast: number;
  betaSlow: number;
  /** Whether the correction range of YaRN is rounded to whole dimensions. */
  truncate: boolean;
  /** Factor on cos and sin (the temperature of YaRN); 1 for other types. */
  attentionFactor: number;
  /**
   * (rotaryDim / 2): divide the frequencies, after any scaling; Infinity = no rotation. GGUF files store the scaling of
   * Llama 3 so.
   */
  frequencyDivisors?: Float32Array;
  /** The same for contexts above the trained length, if they differ (LongRoPE). */
  longFrequencyDivisors?: Float32Array;
  /** b: q is multiplied by 1 + b·ln(1 + floor(position / trained length)); 0 = none. */
  queryScaleGrowth: number;
}

/** Bytes by token id: token `id` is `bytes[offsets[id] .. offsets[id + 1]]`. Ids without a token have no bytes. */
export interface NativeVocab {
  bytes: Uint8Array;
  /** (numTokens + 1). numTokens may be below `vocabSize`; ids without an entry are never sampled. */
  offsets: Uint32Array;
  /**
   * (numTokens): 0 = ordinary; 1 = special, omitted from the text with `skipSpecialTokens`; 2 = marker, always in the
   * text. Grammars accept special tokens and markers only where a literal or `until` spells them.
   */
  special: Uint8Array;
}

/** Options of a load, checked and with every field present. */
export interface NativeEngineOptions {
  /** 'auto', 'cpu', 'cuda', or 'cuda:' with device numbers. */
  device: string;
  tensorParallelSize: number;
  /** CPU threads over all ranks; 0 = the cores that CPU affinity and the control group allow. */
  threads: number;
  pinThreads: boolean;
  /** On CUDA: uses kernels with the same bits for any batch. The CPU backend is always deterministic. */
  deterministic: boolean;
  /** Data type of the packed weights; tensors of another type are converted while packing. */
  weightDtype: NativeDType;
  /** Quantizes the weights at load. int4: the embedding and the LM head have 8 bits. */
  quantization: NativeQuantization;
  /**
   * Activations for bf16 weights; 'auto' = bf16, or f32 for a hidden size below 512. Quantized weights have 8-bit
   * activations unless this is 'f32'.
   */
  computeDtype: 'auto' | 'f32' | 'bf16';
  /** 'auto' = the compute type. */
  kvCacheDtype: 'auto' | NativeCacheDType;
  isa: NativeIsa;
  /** Tokens per KV cache block; 0 = the backend's preference. */
  blockSize: number;
  /** 0 = min(maxNumSeqs × maxModelLen, 25 % of the free memory); on a GPU what gpuMemoryUtilization leaves. */
  kvCacheBytes: number;
  /** Share of a GPU's memory that the engine may use, weights included. Ignored on the CPU. */
  gpuMemoryUtilization: number;
  /** 0 = the trained length, lowered to fit the KV cache; any other value must fit. */
  maxModelLen: number;
  maxNumSeqs: number;
  maxNumBatchedTokens: number;
  /** 0 = no limit. */
  maxStepMs: number;
  maxQueuedRequests: number;
  /** Limit of `NativeStats.grammarCacheBytes`. The addon evicts masks; the caller frees grammars. */
  grammarCacheBytes: number;
  prefixCache: boolean;
  /** Folder of the prefix cache on disk; null = none. */
  prefixCacheDir: string | null;
  /** Limit of what this folder holds. */
  prefixCacheDiskBytes: number;
  /** Depends on the architecture and on the places of the tensors in the files. Empty without `prefixCacheDir`. */
  modelDigest: string;
  /** Whether adapters can be loaded. */
  enableLora: boolean;
  /** Maximum number of loaded adapters. */
  maxLoras: number;
  /** Maximum rank of an adapter, up to 256. */
  maxLoraRank: number;
  /** null = no speculative decoding. */
  speculative: NativeSpeculation | null;
  /** Records {@link NativeStats.profile}. */
  profile: boolean;
}

/**
 * Speculative decoding, by prompt look-up unless there is a draft model or the model has an MTP head. All numbers are
 * 1 to 64.
 */
export interface NativeSpeculation {
  numSpeculativeTokens: number;
  promptLookupMax: number;
  /** At most `promptLookupMax`. */
  promptLookupMin: number;
  /** Proposes what the grammar of a request forces, instead of a look-up. */
  fromGrammar: boolean;
}

/** The draft model of speculative decoding. It has the vocabulary of the model. */
export interface NativeDraftModel {
  files: string[];
  tensors: NativeTensor[];
  spec: NativeModelSpec;
  weightDtype: NativeDType;
  quantization: NativeQuantization;
}

/** What the addon takes from the tokenizer. */
export interface NativeTokenizer {
  vocab: NativeVocab;
  eosTokenIds: Int32Array;
}

/** Everything that the addon needs to load a model. */
export interface NativeLoad {
  files: string[];
  tensors: NativeTensor[];
  spec: NativeModelSpec;
  /** null = {@link NativeLoadControls.setTokenizer} follows. Required with a draft model. */
  tokenizer: NativeTokenizer | null;
  options: NativeEngineOptions;
  /** Only with `options.speculative`; null = none. */
  draft: NativeDraftModel | null;
}

/** Functions of a load that has started. */
export interface NativeLoadControls {
  /** Ends the load with code 'aborted'. */
  cancel: () => void;
  /** The load waits for it once the weights are loaded. Throws 'invalid_argument'. */
  setTokenizer: (tokenizer: NativeTokenizer) => void;
}

/** The resolved options of a loaded engine. */
export interface NativeEngineInfo {
  /** `cpu` or `cuda`. */
  backend: string;
  /** Instruction set of the CPU kernels. */
  isa: string;
  /** CPU threads over all ranks. */
  threads: number;
  /** Number of ranks that each layer is split over. */
  tensorParallelSize: number;
  /** Data type of the weights. */
  weightDtype: NativeDType;
  /** What the weights were quantized to at load. */
  quantization: NativeQuantization;
  /** Data type of the activations. */
  computeDtype: NativeDType;
  /** Data type of the KV cache. */
  kvCacheDtype: NativeCacheDType;
  /** Tokens per KV cache block. */
  blockSize: number;
  /** Number of KV cache blocks of the layers that see the most tokens. */
  numBlocks: number;
  /** Slots for recurrent states: those of running sequences and snapshots. 0 without recurrent layers. */
  numStateSlots: number;
  /** Size of the KV cache, including the state slots and the KV cache of the draft model. */
  kvCacheBytes: number;
  /** Size of the packed weights in bytes, including those of the draft model. */
  weightBytes: number;
  /** Context length in tokens. */
  maxModelLen: number;
  /** Messages worth logging once, such as a lowered context length or a fallback to the CPU. */
  notes: string[];
}

/** Sampling parameters with every field present. `ts/sampling.ts` checks them; the addon checks them again. */
export interface NativeSampling {
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  presencePenalty: number;
  frequencyPenalty: number;
  repetitionPenalty: number;
  /** null = drawn at submit. */
  seed: bigint | null;
  /** 0 = compute the prompt only, for its log-probabilities. */
  maxTokens: number;
  /** A grammar takes precedence: if its text can only end, it ends earlier. */
  minTokens: number;
  ignoreEos: boolean;
  stopTokenIds: Int32Array;
  stop: string[];
  includeStopInOutput: boolean;
  skipSpecialTokens: boolean;
  logitBiasIds: Int32Array;
  logitBiasValues: Float32Array;
  /** null = all. */
  allowedTokenIds: Int32Array | null;
  /** Alternatives per token; -1 = no log-probabilities, 0 = only the sampled token's. */
  logprobs: number;
  /** Alternatives per prompt token; -1 = no log-probabilities, 0 = only the prompt token's. */
  promptLogprobs: number;
  /** Banned token sequences: the last token of a sequence is not sampled after the others. */
  badWords: Int32Array[];
  thinkingBudget: NativeThinkingBudget | null;
}

/**
 * Bounds the tokens between two markers. When the budget is used up, the engine writes the closing marker token by
 * token. If a grammar does not accept the marker yet, the grammar takes precedence.
 */
export interface NativeThinkingBudget {
  /** Maximum number of tokens inside, without the markers, over the whole completion; 0 = closed at once. */
  budget: number;
  /** Opening marker. Empty: only the prompt opens the reasoning. */
  openIds: Int32Array;
  closeIds: Int32Array;
  /** Whether the prompt ends after an opening marker. */
  isInside: boolean;
}

/** One request. */
export interface NativeRequest {
  promptTokenIds: Int32Array;
  /** Number of choices for the prompt (n). */
  numChoices: number;
  sampling: NativeSampling;
  /** Partition of the prefix cache; '' = the default one. */
  cacheSalt: string;
  /** From `loadAdapter`; 0 = no adapter. */
  adapterId: number;
  /** Lower = more urgent; above 0 = background work. */
  priority: number;
  /** Drops one leading space of the completion, for metaspace tokenizers if the decoded prompt is empty. */
  stripLeadingSpace: boolean;
  /** Grammar of the text, compiled by the same engine. */
  grammar?: NativeGrammar | null;
}

/** Log-probability of one token. */
export interface NativeTokenLogprob {
  tokenId: number;
  logprob: number;
  /** 1 = most likely. */
  rank: number;
  top: { tokenId: number; logprob: number }[];
}

/** End of one choice. Counts are tokens. */
export interface NativeFinish {
  reason: 'stop' | 'length' | 'abort' | 'error';
  /** The stop string or stop token id that ended the choice; null for any other end. */
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

/** One input of a model that pools. */
export interface NativePooledRequest {
  promptTokenIds: Int32Array;
  /** Types of the tokens. Absent: 0. */
  tokenTypes?: Int32Array;
  cacheSalt: string;
  /** Lower = more urgent; above 0 = background work. */
  priority: number;
}

/** New tokens and text of one choice. */
export interface NativeEvent {
  /** Request id, as returned by `submit`. */
  id: number;
  /** Index of the choice. */
  index: number;
  textDelta: string;
  tokenIds: number[];
  /** One entry per element of `tokenIds` if `logprobs` ≥ 0. */
  logprobs: NativeTokenLogprob[] | null;
  /** In the first event of a request with `promptLogprobs` ≥ 0. The first entry is null. */
  promptLogprobs: (NativeTokenLogprob | null)[] | null;
  /** The result of a pooled request, in its last event. */
  pooled: Float32Array | null;
  finish: NativeFinish | null;
}

/** The fields of a {@link NativeEvent} that most events leave null. */
export type NativeEventDetails = Pick<NativeEvent, 'logprobs' | 'promptLogprobs' | 'pooled' | 'finish'>;

/**
 * Receives the events of one or more steps (`ts/event-batch.ts`), in few values because each value is a call into
 * JavaScript: the numbers of all events, all their text, and details of the events that have any.
 */
export type NativeEventSink = (words: Int32Array, text: string, details: NativeEventDetails[]) => void;

/** Tokens and sequences of one or more steps, and where their time went, in microseconds. */
export interface StepStats {
  /** Prompt and completion tokens that the model computed. */
  numTokens: number;
  /** Sequences in the batch. */
  numSeqs: number;
  /** Choosing the sequences and their blocks, and preparing and launching the step. */
  scheduleUs: number;
  /** Waiting for the model and the sampling. */
  forwardUs: number;
  /** Detokenizing, stop conditions and freeing blocks. */
  settleUs: number;
}

/**
 * Where the time of the steps has gone since the load. The parts of a step add up to it. In arrays of parts, the entry
 * of part `p` in steps of kind `k` is at `k * parts.length + p`.
 */
export interface StepProfile {
  /** Kinds of steps: `decode`, `prefill` and `mixed`. */
  kinds: string[];
  /** Names of the parts, in the order in which they run. */
  parts: string[];
  /** Numbers that products multiply: `f32`, `bf16` and `int8`. */
  math: string[];
  /** Steps by kind. */
  numSteps: Float64Array;
  /** Tokens that the model computed, by kind of step. */
  numTokens: Float64Array;
  /** Microseconds of the steps by kind. */
  stepUs: Float64Array;
  /** Microseconds by kind and part. */
  partUs: Float64Array;
  /** Of these: what the threads of the part waited for each other, on average over the threads. */
  waitUs: Float64Array;
  /** Bytes of weights and of the KV cache that the parts must read, by kind and part; 0 = not known. CPU only. */
  bytes: Float64Array;
  /** Additions and multiplications of products and attention, by kind and part, for each entry of `math`. CPU only. */
  ops: Float64Array[];
  /** Microseconds in which the engine waited for requests, grammar masks or the disk. They are not part of a step. */
  idleUs: number;
}

/** Counters since the load, and gauges of the current state. */
export interface NativeStats {
  /** Waiting sequences. */
  numWaiting: number;
  /** Running sequences. */
  numRunning: number;
  /** Waiting and running sequences with a priority above 0. */
  numBackground: number;
  /** Prompt tokens of the waiting sequences. */
  queuedPromptTokens: number;
  /** Those of sequences with a priority above 0. */
  queuedBackgroundTokens: number;
  /** All KV cache blocks of the layers that see the most tokens. */
  numBlocks: number;
  /** Blocks that were never used, or were evicted from the prefix cache. */
  numFreeBlocks: number;
  /** Blocks that no sequence uses but the prefix cache holds. */
  numCachedBlocks: number;
  /** Memory of the snapshots of recurrent states in the prefix cache. */
  snapshotBytes: number;
  /** Sequences that continued from such a snapshot so far. */
  numSnapshotHits: number;
  /** Memory of the compiled grammars in use or in the cache, and of their token masks. */
  grammarCacheBytes: number;
  /** Blocks evicted from the prefix cache so far. */
  numEvictions: number;
  /** Preemptions so far. */
  numPreemptions: number;
  /** Steps so far. */
  numSteps: number;
  /** Milliseconds since the last finished step; 0 when idle. A health check can use it as a heartbeat. */
  msSinceLastStep: number;
  /** Prompt tokens so far. */
  promptTokens: number;
  /** Prompt tokens found in the prefix cache so far. */
  cachedTokens: number;
  /** Completion tokens so far. */
  completionTokens: number;
  /** Finished choices by reason. */
  numFinished: {
    /** Ended by an end-of-sequence token, a stop string or a stop token. */
    stop: number;
    /** Ended by `maxTokens` or the context length. */
    length: number;
    /** Aborted by the caller. */
    abort: number;
    /** Failed. */
    error: number;
  };
  /** Speculative decoding: proposals verified so far. */
  numDrafts: number;
  /** Proposed tokens verified so far. */
  numDraftTokens: number;
  /** Proposed tokens accepted so far, by position in the proposal. Empty without speculative decoding. */
  numAcceptedTokens: number[];
  /** Blocks of this model in the prefix cache on disk. */
  numDiskBlocks: number;
  /** What the folder of the prefix cache on disk holds, in bytes. */
  diskBytes: number;
  /** Prompts so far that continue from blocks of the disk. */
  numDiskHits: number;
  /** Prompts so far whose blocks on the disk were computed again, because that takes less time. */
  numDiskDeclined: number;
  /** Prompt tokens loaded from the disk so far. */
  diskCachedTokens: number;
  /** Bytes read from the prefix cache on disk so far. */
  diskBytesRead: number;
  /** Bytes written to it so far. */
  diskBytesWritten: number;
  /** Blocks removed from the disk so far, because of its limit. */
  numDiskEvictions: number;
  /** Blocks that were not written so far, because the disk is slow or full. */
  numDiskSkipped: number;
  /** Damaged blocks found on the disk and removed so far. */
  numDiskDamaged: number;
  /** Why blocks are not written to the disk or not read from it at present, else null. */
  diskProblem: string | null;
  /** Size of the last step, and its times in microseconds. */
  lastStep: StepStats;
  /** The same, added up over all steps so far. */
  allSteps: StepStats;
  /** Where the time of the steps has gone; null without `profile`. */
  profile: StepProfile | null;
  /** Why the engine has failed permanently, else null. */
  failure: string | null;
}

/** Source of a grammar: a GBNF text, a regular expression that the whole text matches, or rules. */
export type NativeGrammarSource =
  /** `prefix` comes before the text that the GBNF grammar describes. It cannot refer to rules. */
  | { kind: 'gbnf'; text: string; prefix?: GrammarExpr }
  | { kind: 'regex'; pattern: string }
  | ({ kind: 'rules' } & Grammar)
  /** Can be compiled once. */
  | { kind: 'parsed'; handle: NativeParsedGrammar };

/** A parsed grammar that any thread of the process can compile. It can be sent between threads. */
export type NativeParsedGrammar = number;

/** A compiled grammar. */
export interface NativeGrammar {
  /** Memory in bytes, without the token masks, which share one bounded cache. */
  readonly sizeBytes: number;
  /** Whether a sequence or a matcher uses it. */
  isInUse(): boolean;
  /** Frees the memory when nothing uses it any more. Afterwards only the size may be read. */
  free(): void;
  /** Creates a matcher at the start of a text. */
  matcher(): NativeGrammarMatcher;
}

/** Matches one text against a grammar, byte by byte. */
export interface NativeGrammarMatcher {
  /** Consumes the bytes. Returns false and consumes nothing if the grammar does not allow them. */
  accept(bytes: Uint8Array): boolean;
  /** Returns the bytes that may come next, ascending. */
  nextBytes(): number[];
  /** Returns those next bytes that start a shortest path to the end. */
  closingBytes(): number[];
  canEnd(): boolean;
  /** Returns the minimum number of bytes until the text may end. */
  bytesToEnd(): number;
}

/** The factors of one projection of an adapter: it gives W·x + scale·B·(A·x). */
export interface NativeAdapterModule {
  /** -1 = outside of the layers. */
  layer: number;
  /**
   * Canonical name: `q_proj`, `k_proj`, `v_proj`, `qkv_proj`, `o_proj`, `gate_proj`, `up_proj`, … Of experts
   * `experts.N.gate_proj`, or `experts.gate_up_proj` for all of them. Outside of the layers `embed_tokens` and
   * `lm_head`.
   */
  projection: string;
  /** (rank, inputs). Of all experts (experts * rank, inputs), of the embedding (inputs, rank). */
  a: NativeTensor;
  /** (outputs, rank). Of all experts (outputs, rank * experts). */
  b: NativeTensor;
  scale: number;
}

/** A LoRA adapter. The `file` of its tensors is an index into `files`. */
export interface NativeAdapterSource {
  files: string[];
  modules: NativeAdapterModule[];
}

/** A loaded engine. */
export interface NativeEngine {
  readonly info: NativeEngineInfo;
  /** Returns the request id. Throws an Error with `code`. */
  submit(request: NativeRequest): number;
  /**
   * As `submit`, for a model that pools, and for several requests at once, which one step can then take. Returns the id
   * of each one, or the Error of one that was refused. The only event of a request is its last one.
   */
  pool(requests: readonly NativePooledRequest[]): (number | Error)[];
  /**
   * Compiles on a pool thread, for requests to this engine. Rejects with `invalid_argument`, the fault and its place.
   */
  compileGrammar(source: NativeGrammarSource): Promise<NativeGrammar>;
  /** Ends every choice with reason 'abort'. Ignores unknown and finished ids. */
  abort(id: number): void;
  /** Ends one choice with reason 'stop'. Ignores a finished one. */
  stop(id: number, index: number): void;
  stats(): NativeStats;
  /** Loads an adapter on a pool thread while the engine works. Resolves with its id, which is never used again. */
  loadAdapter(source: NativeAdapterSource): Promise<number>;
  /** Requests cannot name the adapter any more. Its memory is freed when the last sequence that uses it has ended. */
  unloadAdapter(id: number): void;
  /** Ends open requests with error engine_closed, then joins the threads. Idempotent. */
  close(): Promise<void>;
}

/** The fastest rates that the tests of the machine reached. */
export interface NativeLimits {
  machine: string;
  threads: number;
  /** Memory reads, with several patterns. */
  reads: { pattern: string; gbPerS: number }[];
  /** Products of 8 bits. 0 on a machine without AVX2. */
  int8GopPerS: number;
  /** 0 on a machine without the instruction (AVX512-BF16). */
  bf16GflopPerS: number;
  /** 0 on a machine without AMX, or without the permission to use it. */
  amxBf16GflopPerS: number;
  amxInt8GopPerS: number;
  /** 0 on a machine without AVX2. */
  f32GflopPerS: number;
}

/** Options of a benchmark of the ops, with every field present. */
export interface NativeOpsOptions {
  /** Rows of the steps, 1 to 512: up to 64 sequences that each decode one token, above that one prompt. */
  rows: number[];
  dtype: NativeDType;
  quantization: NativeQuantization;
  /** `auto`: the type of the weights. */
  kvCacheDtype: 'auto' | 'int8';
  isa: string;
  /** 0 = all that this process may use. */
  threads: number;
  /** Tokens in the KV cache of each decoded sequence. */
  context: number;
  /** Each figure is the median of this many steps. */
  repeats: number;
  layers: number;
  vocabSize: number;
  /** Bytes that each test of the read rate reads. */
  readBytes: number;
}

/** The ops of a step with one number of rows. The last one is the step as a whole. */
export interface NativeOpsResult {
  rows: number;
  /** The limits that the shares refer to. */
  readGbPerS: number;
  peakGflopPerS: number;
  /** `limitShare`: the least possible time over the time, at most 1. */
  ops: { op: string; ms: number; gbPerS: number; gflopPerS: number; limitShare: number }[];
}

export interface NativeOpsRun {
  machine: string;
  isa: string;
  threads: number;
  loadSeconds: number;
  packedBytes: number;
}

/** Exports of the addon. */
export interface NativeAddon {
  readonly version: string;
  /** Instruction sets that this machine can run, best first. */
  readonly isas: string[];
  /** Reads a source, for a `compileGrammar` in any thread. Throws `invalid_argument` for a malformed one. */
  parseGrammar(source: NativeGrammarSource): NativeParsedGrammar;
  /** Compiles on a pool thread, for matching bytes. Rejects with `invalid_argument`, the fault and its place. */
  compileGrammar(source: NativeGrammarSource): Promise<NativeGrammar>;
  /**
   * Reports a change of the native memory, in bytes, that JavaScript objects hold. V8 then schedules garbage collection
   * in time.
   */
  adjustExternalMemory(change: number): void;
  /** Returns free memory of the allocator to the system, on a pool thread. */
  trimMemory(): Promise<void>;
  /** Returns the bytes that this process can still allocate: on the machine and in its control group. */
  availableMemoryBytes(): number;
  /**
   * Takes the exclusive lock of flock(2) on an open file. Returns false if another open file has it. The lock ends when
   * the file is closed, so also when the process ends. Throws 'io_error'.
   */
  tryLockFile(descriptor: number): boolean;
  /**
   * Quantizes rows of a matrix of a file, on threads. Rejects with 'invalid_argument', 'invalid_model' for NaN, Inf or
   * values that are too large, or 'io_error'.
   */
  quantizeRows(rows: NativeQuantizeRows): Promise<NativeQuantizedRows>;
  /** Returns the columns that share a scale in a matrix that is quantized at load. */
  defaultGroupSize(bits: number, cols: number): number;
  /** Blocks the calling thread. Throws 'invalid_argument' or 'out_of_memory'. */
  benchmarkLimits(options: { threads: number; repeats: number; readBytes: number }): NativeLimits;
  /** Blocks the calling thread. Calls `onResult` after each number of rows. Throws as `benchmarkLimits`. */
  benchmarkOps(options: NativeOpsOptions, onResult: (result: NativeOpsResult) => void): NativeOpsRun;
  /**
   * Loads a model on its own thread. `onProgress` gets the bytes done and in total, `onEvents` one call per step.
   * Rejects with an Error that has `code`.
   */
  load(
    load: NativeLoad,
    onProgress: (done: number, total: number) => void,
    onEvents: NativeEventSink,
    onStart: (controls: NativeLoadControls) => void,
  ): Promise<NativeEngine>;
}

/** Values of `code` in errors of the addon. */
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
