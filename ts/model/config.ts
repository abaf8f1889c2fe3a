import type { NativeLayer, NativeModelSpec, NativeMoe } from '../addon-types';
import { CapstanError } from '../errors';
import type { ModelTask } from '../pooling';
import type { SamplingDefaults } from '../sampling';
import { activationOf } from './activations';
import { findFamily, textConfig } from './find-family';
import { type Family, type ModelFeatures, SHARED_DEFAULTS } from './family';
import { type JsonObject, JsonReader, parseJsonObject } from './json-file';
import { withMtpHead } from './mtp';
import { type PoolingPlan, planPooling, pooledSpec } from './pooling-plan';
import { type Quantization, readQuantization } from './quantization';
import { readRope, readRopePerLayerType } from './rope';
import type { SentenceTransformers } from './sentence-transformers';

/** The content of config.json and generation_config.json that the engine needs. */
export interface ModelConfig {
  family: Family;
  spec: NativeModelSpec;
  features: ModelFeatures;
  /** What the model returns in place of text; undefined: it generates text. */
  pooling?: PoolingPlan;
  /** Of the weights of a model directory; undefined: none. */
  quantization?: Quantization;
  /** The union of the lists of both files. */
  eosTokenIds: number[];
  samplingDefaults: SamplingDefaults;
}

export const MAX_LAYERS = 4096;
/** Limits the list of tensors. The largest models have 24,000. */
const MAX_ALL_EXPERTS = 2 ** 18;

/** @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key. */
export function readModelConfig(
  configJson: JsonObject,
  generationJson: JsonObject | undefined,
  {
    task = 'auto',
    files,
    mtp = false,
  }: { task?: 'auto' | ModelTask; files?: SentenceTransformers; mtp?: boolean } = {},
): ModelConfig {
  const text = textConfig(configJson);
  const outer = new JsonReader(text, 'config.json');
  const generation = new JsonReader(generationJson ?? {}, 'generation_config.json');
  const family = findFamily(outer);
  const config = new JsonReader({ ...withUsualKeys(text, family), model_type: family.modelType }, 'config.json');
  const quantization = readQuantization(config);
  const decoder = readSpec(config, family);
  const spec = mtp ? withMtpHead(decoder, config, family) : decoder;
  const pooling = planPooling(task, config, family, spec, files);
  return {
    family,
    spec: pooling === undefined ? spec : pooledSpec(spec, pooling),
    ...(pooling === undefined ? {} : { pooling }),
    features: family.features(config),
    ...(quantization === undefined ? {} : { quantization }),
    eosTokenIds: readEosTokenIds(config, generation, family, spec.vocabSize),
    samplingDefaults: readSamplingDefaults(generation),
  };
}

function withUsualKeys(config: JsonObject, { keys = {} }: Family): JsonObject {
  const renamed = Object.entries(keys).filter(([, own]) => config[own] !== undefined);
  return { ...config, ...Object.fromEntries(renamed.map(([usual, own]) => [usual, config[own]])) };
}

/** Reads the text of a config.json. Returns undefined for a model that the engine does not run. */
export function readKnownConfig(text: string, options: { mtp?: boolean } = {}): ModelConfig | undefined {
  try {
    return readModelConfig(parseJsonObject(text, 'config.json'), undefined, options);
  } catch (error) {
    if (error instanceof CapstanError) return undefined;
    throw error;
  }
}

/** The parts of a spec in which Llama is neutral. */
export const PLAIN_DECODER = {
  attentionSoftCap: 0,
  qkNorm: 'none',
  rotatesBeforeQkNorm: false,
  hasVNorm: false,
  norms: { input: true, attentionOut: false, mlp: true, mlpOut: false, isOfSum: false },
  normKind: 'rms',
  hasFinalNorm: true,
  hasGatedMlp: true,
  isParallel: false,
  isCausal: true,
  defaultLength: 0,
  normOffset: 0,
  hasSinks: false,
  hasOutputGate: false,
  embeddingScale: 1,
  residualScale: 1,
  logitScale: 1,
  logitSoftCap: 0,
  perLayerInputSize: 0,
  hasLayerScales: false,
  hasMtp: false,
} as const;

function readSpec(config: JsonReader, family: Family): NativeModelSpec {
  const defaults = { ...SHARED_DEFAULTS, ...family.defaults };
  const hiddenSize = config.positiveInt('hidden_size', defaults.hiddenSize);
  const numLayers = config.positiveInt('num_hidden_layers', defaults.numLayers, MAX_LAYERS);
  const numHeads = config.positiveInt('num_attention_heads', defaults.numHeads);
  const headDim = readHeadDim(config, hiddenSize, numHeads, defaults.headDim);
  const maxPositionEmbeddings = config.positiveInt('max_position_embeddings', defaults.maxPositionEmbeddings);
  const attention = family.attention(config, numLayers);
  const { layers: isMoe, ...moe } = family.moe?.(config, hiddenSize) ?? { layers: () => false, numExperts: 0 };
  const recurrent = family.recurrent?.(config, numLayers, hiddenSize);
  const alike = attention.map((layer, i): NativeLayer => {
    if (recurrent?.isRecurrent[i]) return { mixer: recurrent.mixer, window: 0, rope: -1, isMoe: isMoe(i) };
    return { mixer: 'attention', ...layer, isMoe: isMoe(i) };
  });
  const intermediateSize = config.positiveInt('intermediate_size', defaults.intermediateSize);
  const layers = family.layers?.(config, alike, { intermediateSize }) ?? alike;
  checkKvHeads(config, numHeads, layers);
  const { slidingRopeTheta } = family;
  const numExperts = layers.filter((layer) => layer.isMoe).length * moe.numExperts;
  if (numExperts > MAX_ALL_EXPERTS)
    throw config.mismatch('num_experts', `at most ${MAX_ALL_EXPERTS} experts in all layers`, numExperts);
  const ropes =
    slidingRopeTheta === undefined
      ? [readRope(config, headDim, maxPositionEmbeddings, defaults)]
      : readRopePerLayerType(
          config,
          { full: layers.find(({ rope }) => rope === 0)?.headDim ?? headDim, sliding: headDim },
          maxPositionEmbeddings,
          { ...defaults, slidingRopeTheta },
        );
  const hasRope = family.hasRope ?? true;
  return {
    ...PLAIN_DECODER,
    vocabSize: config.positiveInt('vocab_size', defaults.vocabSize),
    hiddenSize,
    intermediateSize,
    numHeads,
    numKvHeads: readNumKvHeads(config, numHeads, defaults.numKvHeads),
    headDim,
    rmsNormEps: config.positiveNumber('rms_norm_eps', defaults.rmsNormEps),
    hiddenAct: readActivation(config, defaults.hiddenAct),
    tieWordEmbeddings: config.boolean('tie_word_embeddings', defaults.isTied ?? false),
    attentionScale: 1 / Math.sqrt(headDim),
    layers,
    ropes: hasRope ? ropes : [],
    maxPositionEmbeddings,
    ...family.changes?.(config, { hiddenSize, headDim }),
    ...(recurrent?.isRecurrent.includes(true) ? { recurrent: recurrent.sizes } : {}),
    ...(layers.some((layer) => layer.isMoe) ? { moe: moe as NativeMoe } : {}),
  };
}

function readHeadDim(
  config: JsonReader,
  hiddenSize: number,
  numHeads: number,
  classDefault: number | undefined,
): number {
  const isComputed = classDefault === undefined || config.isNull('head_dim');
  const headDim = config.positiveInt('head_dim', isComputed ? hiddenSize / numHeads : classDefault);
  if (headDim % 2 !== 0) throw config.mismatch('head_dim', 'an even number of dimensions', headDim);
  return headDim;
}

function readNumKvHeads(config: JsonReader, numHeads: number, classDefault: number | undefined): number {
  const fallback = config.isNull('num_key_value_heads') ? numHeads : (classDefault ?? numHeads);
  const numKvHeads = config.positiveInt('num_key_value_heads', fallback);
  if (numHeads % numKvHeads !== 0)
    throw config.mismatch('num_key_value_heads', `a divisor of num_attention_heads (${numHeads})`, numKvHeads);
  return numKvHeads;
}

function checkKvHeads(config: JsonReader, numHeads: number, layers: readonly NativeLayer[]): void {
  const wrong = layers.find(({ numKvHeads }) => numKvHeads !== undefined && numHeads % numKvHeads !== 0);
  if (wrong !== undefined)
    throw config.mismatch(
      'num_global_key_value_heads',
      `a divisor of num_attention_heads (${numHeads})`,
      wrong.numKvHeads,
    );
}

function readActivation(config: JsonReader, classDefault: string): NativeModelSpec['hiddenAct'] {
  // The classes of Gemma and ModernBERT have another name for it.
  const key = /^(gemma|modernbert)/.test(config.string('model_type', '')) ? 'hidden_activation' : 'hidden_act';
  if (config.string(key, classDefault) === 'xielu' && classDefault === 'xielu') return 'xielu';
  return activationOf(config, key, classDefault);
}

function readEosTokenIds(
  config: JsonReader,
  generation: JsonReader,
  { defaults }: Family,
  vocabSize: number,
): number[] {
  const stated = [...generation.tokenIds('eos_token_id'), ...config.tokenIds('eos_token_id')];
  const ids = stated.length === 0 && defaults.eosTokenId !== null ? [defaults.eosTokenId].flat() : stated;
  return [...new Set(ids)].filter((id) => id < vocabSize);
}

/** `do_sample: false` means greedy, even with a temperature. */
function readSamplingDefaults(generation: JsonReader): SamplingDefaults {
  const isGreedy = generation.raw('do_sample') === false || generation.raw('temperature') === 0;
  if (isGreedy) return { temperature: 0, ...readRepetitionPenalty(generation) };
  return {
    ...(generation.raw('temperature') === undefined ? {} : { temperature: generation.positiveNumber('temperature') }),
    ...(generation.raw('top_p') === undefined ? {} : { topP: Math.min(generation.positiveNumber('top_p'), 1) }),
    ...(generation.raw('top_k') === undefined ? {} : { topK: readTopK(generation) }),
    ...readRepetitionPenalty(generation),
  };
}

/** -1 (vLLM) and 0 (transformers) both mean all tokens. */
function readTopK(generation: JsonReader): number {
  return generation.raw('top_k') === -1 ? 0 : generation.nonNegativeInt('top_k');
}

function readRepetitionPenalty(generation: JsonReader): SamplingDefaults {
  return generation.raw('repetition_penalty') === undefined
    ? {}
    : { repetitionPenalty: generation.positiveNumber('repetition_penalty') };
}
