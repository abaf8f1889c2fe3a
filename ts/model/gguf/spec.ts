import type { NativeModelSpec, NativeRope } from '../../addon-types';
import { CapstanError } from '../../errors';
import type { ModelFeatures } from '../family';
import { JsonReader } from '../json-file';
import { MAX_LAYERS, PLAIN_DECODER } from '../config';
import { ARCHITECTURES, type GgufArchitecture } from './architectures';
import type { GgufFiles } from './files';

const ROPE_TYPES = ['none', 'linear', 'yarn'];
/** Default of llama.cpp. */
const DEFAULT_ROPE_THETA = 10_000;

/** @throws CapstanError `unsupported_model` that names the architecture and the supported ones. */
export function findArchitecture(metadata: JsonReader): GgufArchitecture {
  const type = metadata.string('general.type', 'model');
  if (type !== 'model') throw unsupported(metadata, 'general.type', 'model', type);
  const name = metadata.string('general.architecture');
  const architecture = ARCHITECTURES.find((row) => row.name === name);
  if (architecture !== undefined) return architecture;
  const supported = ARCHITECTURES.map((row) => row.name).join(', ');
  throw unsupported(metadata, 'general.architecture', `one of the architectures ${supported}`, name);
}

/** Reads the spec from the metadata, and what the tensors say: the vocabulary's size and whether the head is tied. */
export function readGgufSpec(
  metadata: JsonReader,
  architecture: GgufArchitecture,
  { tensors }: Pick<GgufFiles, 'tensors'>,
): NativeModelSpec {
  const arch = architecture.name;
  const key = (name: string) => `${arch}.${name}`;
  refuseUnknownMath(metadata, arch);
  const hiddenSize = metadata.positiveInt(key('embedding_length'));
  const numLayers = metadata.positiveInt(key('block_count'), undefined, MAX_LAYERS);
  const numHeads = perLayerInt(metadata, key('attention.head_count'));
  const numKvHeads = perLayerInt(metadata, key('attention.head_count_kv'), numHeads);
  if (numHeads % numKvHeads !== 0)
    throw metadata.mismatch(key('attention.head_count_kv'), `a divisor of the ${numHeads} heads`, numKvHeads);
  const headDim = metadata.positiveInt(key('attention.key_length'), hiddenSize / numHeads);
  if (headDim % 2 !== 0) throw metadata.mismatch(key('attention.key_length'), 'an even number of dimensions', headDim);
  const valueDim = metadata.positiveInt(key('attention.value_length'), headDim);
  if (valueDim !== headDim)
    throw unsupported(metadata, key('attention.value_length'), `${headDim}, as for keys`, valueDim);
  const maxPositionEmbeddings = metadata.positiveInt(key('context_length'));
  return {
    ...PLAIN_DECODER,
    qkNorm: tensors.has('blk.0.attn_q_norm.weight') ? 'head' : 'none',
    vocabSize: tensors.get('token_embd.weight')?.shape[0] ?? metadata.positiveInt(key('vocab_size')),
    hiddenSize,
    intermediateSize: perLayerInt(metadata, key('feed_forward_length')),
    numHeads,
    numKvHeads,
    headDim,
    rmsNormEps: metadata.positiveNumber(key('attention.layer_norm_rms_epsilon')),
    hiddenAct: 'silu',
    tieWordEmbeddings: !tensors.has('output.weight'),
    attentionScale: 1 / Math.sqrt(headDim),
    layers: readWindows(metadata, arch, numLayers).map((window) => ({
      mixer: 'attention',
      window,
      rope: 0,
      isMoe: false,
    })),
    ropes: [readGgufRope(metadata, architecture, headDim, maxPositionEmbeddings)],
    maxPositionEmbeddings,
  };
}

/** GGUF has no keys for optional tensors: a model has what its first layer has. */
export function readFeatures({ tensors }: Pick<GgufFiles, 'tensors'>): ModelFeatures {
  return {
    qkvBias: tensors.has('blk.0.attn_q.bias'),
    outputBias: tensors.has('blk.0.attn_output.bias'),
    mlpBias: tensors.has('blk.0.ffn_gate.bias'),
  };
}

/** Keys that change what a model computes, in files of the supported architectures, and the value without effect. */
const NEUTRAL_VALUES: Readonly<Record<string, unknown>> = {
  expert_count: 0,
  'attention.causal': true,
  'attention.clamp_kqv': 0,
  'attention.scale': 0,
  'attention.temperature_scale': 0,
  logit_scale: 0,
  residual_scale: 0,
  embedding_scale: 0,
  attn_logit_softcapping: 0,
  final_logit_softcapping: 0,
  pooling_type: 0,
};

function refuseUnknownMath(metadata: JsonReader, arch: string): void {
  for (const [name, neutral] of Object.entries(NEUTRAL_VALUES)) {
    const value = metadata.raw(`${arch}.${name}`);
    if (value === undefined || value === neutral) continue;
    const what = name === 'expert_count' ? 'a dense model (mixture of experts is not supported yet)' : String(neutral);
    throw unsupported(metadata, `${arch}.${name}`, what, value);
  }
}

/** Some files give one number per layer. Only equal ones are supported. */
function perLayerInt(metadata: JsonReader, key: string, fallback?: number): number {
  const value = metadata.raw(key);
  if (!ArrayBuffer.isView(value)) return metadata.positiveInt(key, fallback);
  const numbers = new Set(Array.from(value as Int32Array, Number));
  const [first] = numbers;
  if (numbers.size !== 1) throw unsupported(metadata, key, 'the same number for all layers', value);
  return new JsonReader({ [key]: first }, metadata.where).positiveInt(key);
}

function readWindows(metadata: JsonReader, arch: string, numLayers: number): number[] {
  const window = metadata.nonNegativeInt(`${arch}.attention.sliding_window`, 0);
  const patternKey = `${arch}.attention.sliding_window_pattern`;
  const pattern = metadata.raw(patternKey);
  if (window === 0 || pattern === undefined) return Array.from({ length: numLayers }, () => window);
  if (!Array.isArray(pattern) || pattern.length !== numLayers || !pattern.every((value) => typeof value === 'boolean'))
    throw unsupported(metadata, patternKey, `${numLayers} values of true or false`, pattern);
  return Array.from(pattern, (isWindowed) => (isWindowed ? window : 0));
}

function readGgufRope(
  metadata: JsonReader,
  { name: arch, interleavesHeads }: GgufArchitecture,
  headDim: number,
  maxPositionEmbeddings: number,
): NativeRope {
  const key = (name: string) => `${arch}.rope.${name}`;
  const factor = readRopeFactor(metadata, key);
  const type = metadata.string(key('scaling.type'), factor === undefined ? 'none' : 'linear');
  if (!ROPE_TYPES.includes(type))
    throw unsupported(metadata, key('scaling.type'), `one of ${ROPE_TYPES.join(', ')}`, type);
  const rotaryDim = metadata.positiveInt(key('dimension_count'), headDim);
  if (rotaryDim > headDim || rotaryDim % 2 !== 0)
    throw metadata.mismatch(key('dimension_count'), `an even number of at most ${headDim}`, rotaryDim);
  if (interleavesHeads && rotaryDim !== headDim)
    throw unsupported(metadata, key('dimension_count'), `all ${headDim} dimensions of a head`, rotaryDim);
  const isScaled = type !== 'none' && factor !== undefined && factor !== 1;
  return {
    type: isScaled ? (type as 'linear' | 'yarn') : 'default',
    theta: metadata.positiveNumber(key('freq_base'), DEFAULT_ROPE_THETA),
    rotaryDim,
    factor: isScaled ? factor : 1,
    originalMaxPositions: originalLength(metadata, key, isScaled ? type : 'none', maxPositionEmbeddings),
    lowFreqFactor: 1,
    highFreqFactor: 1,
    betaFast: metadata.positiveNumber(key('scaling.yarn_beta_fast'), 32),
    betaSlow: metadata.positiveNumber(key('scaling.yarn_beta_slow'), 1),
    truncate: true,
    attentionFactor: isScaled && type === 'yarn' ? yarnAttentionFactor(metadata, key, factor) : 1,
    queryScaleGrowth: 0,
  };
}

/** Old files have `rope.scale_linear`. */
function readRopeFactor(metadata: JsonReader, key: (name: string) => string): number | undefined {
  const name = [key('scaling.factor'), key('scale_linear')].find((candidate) => metadata.has(candidate));
  return name === undefined || metadata.raw(name) === 0 ? undefined : metadata.positiveNumber(name);
}

/** Linear scaling stretches the trained length to `context_length`, YaRN its `original_context_length`. */
function originalLength(
  metadata: JsonReader,
  key: (name: string) => string,
  type: string,
  maxPositionEmbeddings: number,
): number {
  return type === 'yarn'
    ? metadata.positiveInt(key('scaling.original_context_length'), maxPositionEmbeddings)
    : maxPositionEmbeddings;
}

/**
 * The temperature of YaRN: 0.1·ln(s)+1 unless the file has another one, times `attn_factor`. `yarn_log_multiplier` is
 * `mscale_all_dim` of DeepSeek.
 */
function yarnAttentionFactor(metadata: JsonReader, key: (name: string) => string, factor: number): number {
  const extrapolation = metadata.raw(key('scaling.yarn_ext_factor')) ?? 1;
  if (extrapolation !== 1) throw unsupported(metadata, key('scaling.yarn_ext_factor'), '1', extrapolation);
  const scale = (weight: number) => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  const multiplier = metadata.raw(key('scaling.yarn_log_multiplier')) ?? 0;
  const usual = multiplier === 0 ? scale(1) : scale(1) / scale(Number(multiplier));
  return (
    metadata.positiveNumber(key('scaling.attn_factor'), 1) *
    metadata.positiveNumber(key('scaling.yarn_attn_factor'), usual)
  );
}

function unsupported(metadata: JsonReader, key: string, expected: string, received: unknown): CapstanError {
  const { message, ...details } = metadata.mismatch(key, expected, received);
  return new CapstanError('unsupported_model', message, { param: key, expected, received: details.received });
}
