/** What several rows of the family table have in common. */
import type { ExpertTensors, Family, ModelFeatures, SpecChanges } from './family';
import type { JsonReader } from './json-file';

export const NO_BIASES: ModelFeatures = { qkvBias: false, outputBias: false, mlpBias: false };

/** Norms before attention and the MLP and after each. */
export const SANDWICH: Pick<SpecChanges, 'norms'> = {
  norms: { input: true, attentionOut: true, mlp: true, mlpOut: true, isOfSum: false },
};
/** Norms of the results of attention and the MLP only. */
export const AFTER_ONLY: Pick<SpecChanges, 'norms'> = {
  norms: { input: false, attentionOut: true, mlp: false, mlpOut: true, isOfSum: false },
};
export const QWEN_EXPERTS: ExpertTensors = {
  router: 'mlp.gate',
  each: { gate: 'mlp.experts.*.gate_proj', up: 'mlp.experts.*.up_proj', down: 'mlp.experts.*.down_proj' },
};

/** The modules of GraniteMoe in transformers 5. */
export const GRANITE_EXPERTS = { router: 'block_sparse_moe.router', experts: 'block_sparse_moe.experts' };

export function llamaBiases(config: JsonReader): ModelFeatures {
  return { ...attentionBias(config), mlpBias: config.boolean('mlp_bias', false) };
}

export function attentionBias(config: JsonReader): ModelFeatures {
  const hasBias = config.boolean('attention_bias', false);
  return { qkvBias: hasBias, outputBias: hasBias, mlpBias: false };
}

/** null means no cap. */
export function softCap(config: JsonReader, key: string, fallback: number): number {
  if (config.isNull(key)) return 0;
  return config.raw(key) === undefined && fallback === 0 ? 0 : config.positiveNumber(key, fallback);
}

export function gemma(config: JsonReader, hiddenSize: number): SpecChanges {
  return {
    ...SANDWICH,
    embeddingScale: Math.sqrt(hiddenSize),
    attentionScale: 1 / Math.sqrt(config.positiveNumber('query_pre_attn_scalar', 256)),
    normOffset: 1,
  };
}

export function granite(config: JsonReader): SpecChanges {
  return {
    embeddingScale: config.positiveNumber('embedding_multiplier', 1),
    residualScale: config.positiveNumber('residual_multiplier', 1),
    attentionScale: config.positiveNumber('attention_multiplier', 1),
    logitScale: 1 / config.positiveNumber('logits_scaling', 1),
  };
}

/** GLM-4, with norms before attention and the MLP alone or with norms after them too. */
export const GLM: Pick<Family, 'defaults' | 'features'> = {
  defaults: {
    numLayers: 40,
    vocabSize: 151552,
    intermediateSize: 13696,
    numKvHeads: 2,
    headDim: 128,
    rmsNormEps: 0.00000015625,
    maxPositionEmbeddings: 131072,
    partialRotaryFactor: 0.5,
    eosTokenId: [151329, 151336, 151338],
  },
  features: (config) => ({
    ...NO_BIASES,
    qkvBias: config.boolean('attention_bias', true),
    isGateUpFused: true,
    isRopeInterleaved: true,
  }),
};
