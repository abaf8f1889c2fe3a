import { totalmem } from 'node:os';
import type { NativeCacheDType, NativeDType, NativeModelSpec, NativeQuantization } from '../addon-types';
import { readKnownConfig } from '../model/config';
import { canLoadQuantization, SUPPORTED_TENSOR_TYPES } from '../model/gguf/tensor-types';
import { requiredTensors } from '../model/tensors';
import { parseJsonObject } from '../model/json-file';
import type { Quantization, WeightScheme } from '../model/quantization';
import { type SpeculativeOptions, usesMtpHead } from '../speculation';

/** Whether a model fits the memory of this machine. Estimates; on the CPU only. */
export interface ModelFit {
  /** Memory of the weights, with the requested quantization, including those of a draft model. */
  weightBytes: number;
  /** Memory of the KV cache for one sequence of `contextLength` tokens. 0 if the repository has no config.json. */
  kvCacheBytes: number;
  /** `maxModelLen`, else the model's context length, at most 4,096. */
  contextLength: number;
  /** Memory that this process can still allocate. */
  availableBytes: number;
  /** Memory of the machine or of the container. */
  machineBytes: number;
  /** `tight`: only if other programs end. `too_large`: not on this machine. */
  verdict: 'fits' | 'tight' | 'too_large';
  /** What would fit instead: a GGUF quantization of the repository, or a value of the option `quantization`. */
  suggestion:
    | {
        /** Name of a GGUF quantization of the repository. */
        variant: string;
      }
    | {
        /** Value of the option `quantization`. */
        quantization: 'int8' | 'int4';
      }
    | null;
}

/** The options of `Engine.load` that change how much memory a model takes. */
export interface FitOptions {
  /** As in {@link EngineOptions}. Default: `'auto'`. */
  device?: string;
  /** Context length in tokens. Default: the model's, at most 4,096. */
  maxModelLen?: number;
  /** As in {@link EngineOptions}. Default: `'none'`. */
  quantization?: NativeQuantization;
  /** As in {@link EngineOptions}. Default: `'auto'`. */
  dtype?: 'auto' | NativeDType;
  /** As in {@link EngineOptions}. Default: `'auto'`. */
  computeDtype?: 'auto' | 'f32' | 'bf16';
  /** As in {@link EngineOptions}. Default: `'auto'`. */
  kvCacheDtype?: 'auto' | NativeCacheDType;
  /** Size of the KV cache in bytes. Default: that of one sequence of `maxModelLen` tokens. */
  kvCacheBytes?: number;
  /** As in {@link EngineOptions}. Default: none. */
  speculative?: SpeculativeOptions;
  /** Memory of the weights of a draft model. Default: 0. */
  draftBytes?: number;
}

/** What an estimate is made from. */
export interface FitInput {
  /** Text of config.json, if the repository has it. */
  config: string | undefined;
  /** Size of the files with weights. */
  fileBytes: number;
  format: 'safetensors' | 'gguf';
  /** The GGUF quantization of the files with weights, if they name it. */
  quantization?: string | null;
  /** The GGUF quantizations of the repository and their sizes. */
  quantizations: readonly { name: string; bytes: number }[];
  options: FitOptions;
  availableBytes: number;
}

/** Context that is shown unless `maxModelLen` is set. The engine lowers the context of a model until it fits. */
const DEFAULT_CONTEXT = 4_096;
/** The engine takes at most this share of the free memory for the KV cache, unless `kvCacheBytes` is set. */
const KV_CACHE_SHARE = 4;
const MIN_BF16_HIDDEN = 512;
/** Tokens of a KV block on the CPU. */
const BLOCK_SIZE = 16;
/** Bits per weight: scales included. The embedding and the LM head keep 8 bits. */
const INT8_BITS = 8.125;
const INT4_BITS = 4.25;
/** In the file. The scales are few. */
const FP8_BITS = 8;
/** Columns that share a scale in memory, at most, for weights that are quantized in the file. */
const MAX_GROUP = 64;
const DTYPE_BYTES = { f32: 4, f16: 2, bf16: 2, int8: 1, fp8: 1 } as const;
/** The scale of the keys, or of the values, of a token and KV head. */
const CODE_SCALE_BYTES = { int8: 4 } as Readonly<Partial<Record<keyof typeof DTYPE_BYTES, number>>>;
const STORED_TYPES: Readonly<Record<string, keyof typeof DTYPE_BYTES>> = {
  float32: 'f32',
  float16: 'f16',
  bfloat16: 'bf16',
};

/**
 * Bytes in memory for each byte of a GGUF file, by the start of the quantization's name. Q2_K takes 5.125 bits in
 * memory and 2.625 in the file, Q3_K 4.5625 and 3.4375.
 */
const GGUF_GROWTH: Readonly<Record<string, number>> = { Q2_K: 1.95, Q3_K: 1.33 };
const OTHER_GGUF_GROWTH = 1.03;

/** Returns undefined for a GPU: its memory is not measured here. */
export function estimateFit(input: FitInput): ModelFit | undefined {
  const { options, format, config, fileBytes, quantizations, availableBytes } = input;
  if (options.device !== undefined && !['auto', 'cpu'].includes(options.device)) return undefined;
  const shape = config === undefined ? undefined : readShape(config, fileBytes, usesMtpHead(options));
  const contextLength =
    options.maxModelLen ?? Math.min(shape?.spec.maxPositionEmbeddings ?? DEFAULT_CONTEXT, DEFAULT_CONTEXT);
  const kvCacheBytes = shape === undefined ? 0 : kvBytes(shape, options, contextLength);
  const isShared = options.maxModelLen !== undefined && options.kvCacheBytes === undefined;
  const reserved = kvCacheBytes * (isShared ? KV_CACHE_SHARE : 1);
  const draftBytes = options.draftBytes ?? 0;
  const fits = (bytes: number): boolean => bytes + draftBytes + reserved <= availableBytes;
  const requested = options.quantization ?? 'none';
  const ownBytes = weightsOf(input, shape, requested);
  const weightBytes = ownBytes + draftBytes;
  const machineBytes = Math.min(totalmem(), process.constrainedMemory() || Infinity);
  const otherwise = weightBytes + kvCacheBytes <= machineBytes ? 'tight' : 'too_large';
  const ofGguf = (name: string, bytes: number): number =>
    weightsOf({ format: 'gguf', fileBytes: bytes, quantization: name, options }, shape, requested);
  const largest = [...quantizations]
    .sort((a, b) => b.bytes - a.bytes)
    .find(({ name, bytes }) => canLoadQuantization(name) && fits(ofGguf(name, bytes)));
  const smaller = (['int8', 'int4'] as const).find((name) => fits(weightsOf(input, shape, name)));
  const instead = format === 'gguf' ? largest && { variant: largest.name } : smaller && { quantization: smaller };
  return {
    weightBytes,
    kvCacheBytes,
    contextLength,
    availableBytes,
    machineBytes,
    verdict: fits(ownBytes) ? 'fits' : otherwise,
    suggestion: fits(ownBytes) ? null : (instead ?? null),
  };
}

/** What the memory of a model on the CPU depends on, besides the options. */
export interface Shape {
  spec: NativeModelSpec;
  stored: keyof typeof DTYPE_BYTES;
  numWeights: number;
  quantization: Quantization | undefined;
}

/** Returns undefined for a model that the engine does not run. */
function readShape(text: string, fileBytes: number, mtp: boolean): Shape | undefined {
  const config = readKnownConfig(text, { mtp });
  if (config === undefined) return undefined;
  const { spec, features, family, quantization } = config;
  const json = parseJsonObject(text, 'config.json');
  const dtype = json.torch_dtype ?? json.dtype;
  const stored = (typeof dtype === 'string' ? STORED_TYPES[dtype] : undefined) ?? 'bf16';
  if (quantization === undefined) return { spec, stored, numWeights: fileBytes / DTYPE_BYTES[stored], quantization };
  const sizes = requiredTensors(spec, features, family).map(({ shape }) =>
    shape.reduce((product, size) => product * size, 1),
  );
  // Quantized weights count as bf16, whatever the type of the others.
  return { spec, stored: 'bf16', numWeights: sizes.reduce((sum, size) => sum + size, 0), quantization };
}

/** Returns the bits of a weight in the file, with its share of a scale and a zero point. */
function storedBits({ layout, bits, groupCols }: WeightScheme): number {
  if (layout === 'fp4' || layout === 'fp4_e4m3') return bits + 8 / groupCols;
  return bits + (16 + bits) / groupCols;
}

/** Returns the bytes in memory for each byte of a file. Codes of fewer than 4 bits take 4. */
function memoryGrowth(scheme: WeightScheme): number {
  const { layout, bits, groupCols } = scheme;
  if (layout === 'fp4' || layout === 'fp4_e4m3') return 1;
  const scaleBits = layout === 'rows' || layout.startsWith('int8') ? 32 : 16;
  const inMemory = Math.max(bits, 4) + (scaleBits + 8) / Math.min(groupCols, MAX_GROUP);
  return inMemory / storedBits(scheme);
}

/**
 * Returns the memory of quantized weights. FP8 weights are decoded. Beside weights in fewer bits, the size of the file
 * says how many there are, if the embedding and the LM head have 16 bits.
 *
 * @param decodedBytes Of a decoded weight.
 */
function quantizedBytes(
  fileBytes: number,
  shape: Shape,
  schemes: readonly WeightScheme[],
  decodedBytes: number,
): number {
  const kept = schemes.filter(({ layout }) => layout !== 'fp8');
  const keptGrowth = Math.max(...kept.map(memoryGrowth));
  if (kept.length === schemes.length) return fileBytes * keptGrowth;
  const numEmbedded = embeddedWeights(shape);
  const numLinear = shape.numWeights - numEmbedded;
  const fewestBits = Math.min(...kept.map(storedBits));
  const linearBits = 8 * fileBytes - 16 * numEmbedded;
  const share = fewestBits < FP8_BITS ? (linearBits / numLinear - fewestBits) / (FP8_BITS - fewestBits) : 1;
  const numDecoded = numLinear * Math.min(Math.max(share, 0), 1);
  const keptBytes = ((numLinear - numDecoded) * fewestBits * keptGrowth) / 8;
  return 2 * numEmbedded + numDecoded * decodedBytes + keptBytes;
}

/** Returns the number of weights of the embedding and the LM head. */
function embeddedWeights({ spec, numWeights }: Shape): number {
  return Math.min(numWeights, spec.vocabSize * spec.hiddenSize * (spec.tieWordEmbeddings ? 1 : 2));
}

/** Returns the memory of the weights of GGUF files. */
function ggufBytes(fileBytes: number, quantization: string | null | undefined): number {
  const name = quantization?.replace(/^UD-/, '') ?? '';
  const known = Object.keys(GGUF_GROWTH).find((start) => name.startsWith(start));
  return Math.ceil(fileBytes * (known === undefined ? OTHER_GGUF_GROWTH : GGUF_GROWTH[known]));
}

/** Returns the number of weights in GGUF files, or undefined if the name of the quantization does not say it. */
function ggufWeights(fileBytes: number, quantization: string | null | undefined): number | undefined {
  const name = quantization?.replace(/^UD-/, '').replace(/^FP/, 'F') ?? '';
  const type = SUPPORTED_TENSOR_TYPES.find((row) => name === row.name || name.startsWith(`${row.name}_`));
  return type === undefined ? undefined : (fileBytes / type.bytes) * type.size;
}

/** Returns the memory of the weights. */
export function weightsOf(
  input: Pick<FitInput, 'format' | 'fileBytes' | 'options' | 'quantization'>,
  shape: Shape | undefined,
  quantization: string,
): number {
  const { format, fileBytes, options } = input;
  if (format === 'gguf') {
    const numWeights = quantization === 'none' ? undefined : ggufWeights(fileBytes, input.quantization);
    if (numWeights === undefined) return ggufBytes(fileBytes, input.quantization);
    return quantizedAtLoad(numWeights, shape === undefined ? 0 : embeddedWeights(shape), quantization);
  }
  if (shape === undefined) return fileBytes;
  const { stored, numWeights } = shape;
  if (quantization === 'none') {
    const { dtype = 'auto' } = options;
    const decodedBytes = DTYPE_BYTES[dtype === 'auto' ? stored : dtype];
    if (shape.quantization !== undefined && !shape.quantization.isDecoded)
      return Math.ceil(quantizedBytes(fileBytes, shape, shape.quantization.schemes, decodedBytes));
    return numWeights * decodedBytes;
  }
  return quantizedAtLoad(numWeights, embeddedWeights(shape), quantization);
}

function quantizedAtLoad(numWeights: number, numEmbedded: number, quantization: string): number {
  const layerBits = quantization === 'int8' ? INT8_BITS : INT4_BITS;
  return Math.ceil((numEmbedded * INT8_BITS + (numWeights - numEmbedded) * layerBits) / 8);
}

/**
 * Keys and values of attention, of the window only in layers that have one, the states of recurrent layers, and with an
 * MTP head a hidden state per block.
 */
export function kvBytes(shape: Shape, options: FitOptions, contextLength: number): number {
  const { layers, numKvHeads, headDim, hiddenSize, hasMtp, recurrent } = shape.spec;
  const { kvCacheDtype = 'auto' } = options;
  const dtype = kvCacheDtype === 'auto' ? computeType(shape, options) : kvCacheDtype;
  const tokensOf = (window: number): number => (window > 0 ? Math.min(window, contextLength) : contextLength);
  const tokens = layers.reduce((sum, { mixer, window }) => sum + (mixer === 'attention' ? tokensOf(window) : 0), 0);
  const hidden = hasMtp ? Math.ceil(contextLength / BLOCK_SIZE) * hiddenSize * DTYPE_BYTES.f32 : 0;
  const headBytes = headDim * DTYPE_BYTES[dtype] + (CODE_SCALE_BYTES[dtype] ?? 0);
  const kept = 2 * tokens * numKvHeads * headBytes + hidden;
  if (recurrent === undefined) return kept;
  const { numHeads, stateSize, convTaps, convChannels } = recurrent;
  const state = numHeads * recurrent.headDim * stateSize + (convTaps - 1) * convChannels;
  const numRecurrent = layers.filter(({ mixer }) => mixer !== 'attention').length;
  return kept + numRecurrent * state * DTYPE_BYTES.f32;
}

/** The type that the CPU computes in. */
function computeType({ spec, stored }: Shape, { computeDtype = 'auto' }: FitOptions): 'f32' | 'bf16' {
  if (computeDtype !== 'auto') return computeDtype;
  return stored === 'bf16' && spec.hiddenSize >= MIN_BF16_HIDDEN ? 'bf16' : 'f32';
}
