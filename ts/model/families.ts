import { CapstanError } from '../errors';
import {
  alternating,
  alternatingRopes,
  everyLayer,
  exaone4Attention,
  qwenAttention,
  readWindow,
  smollm3Attention,
} from './attention-layers';
import type { ExpertTensors, Family, ModelFeatures, SpecChanges } from './family';
import type { JsonReader } from './json-file';
import { gptOssMoe, mixtralMoe, olmoeMoe, qwenMoe } from './moe';

const NO_BIASES: ModelFeatures = { qkvBias: false, outputBias: false, mlpBias: false };

/** Norms before attention and the MLP and after each. */
const SANDWICH: Pick<SpecChanges, 'norms'> = {
  norms: { input: true, attentionOut: true, mlp: true, mlpOut: true },
};
/** Norms of the results of attention and the MLP only. */
const AFTER_ONLY: Pick<SpecChanges, 'norms'> = {
  norms: { input: false, attentionOut: true, mlp: false, mlpOut: true },
};
const GEMMA_NAMES = { mlp_norm: 'pre_feedforward_layernorm' };

const QWEN_EXPERTS: ExpertTensors = {
  router: 'mlp.gate',
  each: { gate: 'mlp.experts.*.gate_proj', up: 'mlp.experts.*.up_proj', down: 'mlp.experts.*.down_proj' },
};

export const FAMILIES: readonly Family[] = [
  {
    modelType: 'llama',
    architecture: 'LlamaForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: llamaBiases,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
  },
  {
    modelType: 'mistral',
    architecture: 'MistralForCausalLM',
    defaults: {
      vocabSize: 32000,
      intermediateSize: 14336,
      numKvHeads: 8,
      maxPositionEmbeddings: 131072,
      eosTokenId: 2,
    },
    features: () => NO_BIASES,
    attention: (config, numLayers) => everyLayer(readWindow(config), numLayers),
  },
  {
    modelType: 'ministral3',
    architecture: 'Ministral3ForCausalLM',
    defaults: {
      numLayers: 34,
      vocabSize: 131072,
      intermediateSize: 14336,
      numKvHeads: 8,
      headDim: 128,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 262144,
      ropeTheta: 1e6,
      eosTokenId: 2,
    },
    features: () => NO_BIASES,
    attention: (config, numLayers) => everyLayer(readWindow(config, 0), numLayers),
  },
  {
    modelType: 'qwen2',
    architecture: 'Qwen2ForCausalLM',
    defaults: {
      vocabSize: 151936,
      intermediateSize: 22016,
      numKvHeads: 32,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: () => ({ ...NO_BIASES, qkvBias: true }),
    attention: qwenAttention,
  },
  {
    modelType: 'qwen3',
    architecture: 'Qwen3ForCausalLM',
    defaults: {
      vocabSize: 151936,
      intermediateSize: 22016,
      numKvHeads: 32,
      headDim: 128,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: attentionBias,
    attention: qwenAttention,
    changes: () => ({ qkNorm: 'head' }),
  },
  {
    modelType: 'qwen2_moe',
    architecture: 'Qwen2MoeForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 24,
      numHeads: 16,
      vocabSize: 151936,
      intermediateSize: 5632,
      numKvHeads: 16,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: (config) => ({
      ...NO_BIASES,
      qkvBias: config.boolean('qkv_bias', true),
      experts: {
        ...QWEN_EXPERTS,
        shared: {
          gate: 'mlp.shared_expert.gate_proj',
          up: 'mlp.shared_expert.up_proj',
          down: 'mlp.shared_expert.down_proj',
        },
        sharedGate: 'mlp.shared_expert_gate',
      },
    }),
    attention: (config, numLayers) => {
      const usesWindow = config.boolean('use_sliding_window', false);
      return usesWindow ? alternating(config, numLayers, 2) : everyLayer(0, numLayers);
    },
    moe: (config) => qwenMoe(config, { experts: 60, topK: 4, intermediateSize: 1408, sharedIntermediateSize: 5632 }),
  },
  {
    modelType: 'qwen3_moe',
    architecture: 'Qwen3MoeForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 24,
      vocabSize: 151936,
      intermediateSize: 6144,
      numKvHeads: 4,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: (config) => ({ ...attentionBias(config), experts: QWEN_EXPERTS }),
    attention: (config, numLayers) => {
      const window = config.boolean('use_sliding_window', false) ? readWindow(config) : 0;
      return everyLayer(window, numLayers);
    },
    changes: () => ({ qkNorm: 'head' }),
    moe: (config) => qwenMoe(config, { experts: 128, topK: 8, intermediateSize: 768, sharedIntermediateSize: 0 }),
  },
  {
    modelType: 'mixtral',
    architecture: 'MixtralForCausalLM',
    defaults: {
      vocabSize: 32000,
      intermediateSize: 14336,
      numKvHeads: 8,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 131072,
      ropeTheta: 1e6,
      eosTokenId: 2,
    },
    features: () => ({
      ...NO_BIASES,
      experts: {
        router: 'block_sparse_moe.gate',
        each: {
          gate: 'block_sparse_moe.experts.*.w1',
          up: 'block_sparse_moe.experts.*.w3',
          down: 'block_sparse_moe.experts.*.w2',
        },
      },
    }),
    attention: (config, numLayers) => everyLayer(readWindow(config, 0), numLayers),
    moe: (config) => mixtralMoe(config, 14336),
  },
  {
    modelType: 'olmoe',
    architecture: 'OlmoeForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 16,
      numHeads: 16,
      vocabSize: 50304,
      intermediateSize: 2048,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 4096,
      eosTokenId: 50279,
    },
    features: (config) => ({ ...attentionBias(config), experts: QWEN_EXPERTS }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: (config) => {
      if (config.raw('clip_qkv') !== undefined) throw config.mismatch('clip_qkv', 'null', config.raw('clip_qkv'));
      return { qkNorm: 'all_heads' };
    },
    moe: olmoeMoe,
  },
  {
    modelType: 'gpt_oss',
    architecture: 'GptOssForCausalLM',
    defaults: {
      hiddenSize: 2880,
      numLayers: 36,
      numHeads: 64,
      vocabSize: 201088,
      intermediateSize: 2880,
      numKvHeads: 8,
      headDim: 64,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 131072,
      ropeTheta: 150_000,
      eosTokenId: null,
    },
    features: (config) => {
      const hasBias = config.boolean('attention_bias', true);
      return {
        qkvBias: hasBias,
        outputBias: hasBias,
        mlpBias: false,
        experts: {
          router: 'mlp.router',
          hasRouterBias: true,
          stacked: {
            gateUp: 'mlp.experts.gate_up_proj',
            down: 'mlp.experts.down_proj',
            gateUpBias: 'mlp.experts.gate_up_proj_bias',
            downBias: 'mlp.experts.down_proj_bias',
            isInterleaved: true,
            isTransposed: true,
          },
        },
      };
    },
    attention: (config, numLayers) => alternating(config, numLayers, 2, 128),
    changes: (config) => {
      for (const [key, value] of [
        ['swiglu_alpha', 1.702],
        ['swiglu_limit', 7],
      ] as const)
        if (config.raw(key) !== undefined && config.raw(key) !== value)
          throw config.mismatch(key, String(value), config.raw(key));
      return { hiddenAct: 'clamped_swish', hasSinks: true };
    },
    moe: (config) => gptOssMoe(config, 2880),
  },
  {
    modelType: 'gemma2',
    architecture: 'Gemma2ForCausalLM',
    defaults: {
      hiddenSize: 2304,
      numLayers: 26,
      numHeads: 8,
      vocabSize: 256000,
      intermediateSize: 9216,
      numKvHeads: 4,
      headDim: 256,
      maxPositionEmbeddings: 8192,
      isTied: true,
      eosTokenId: 1,
    },
    features: attentionBias,
    attention: (config, numLayers) => alternating(config, numLayers, 2),
    changes: (config, { hiddenSize }) => ({
      ...gemma(config, hiddenSize),
      attentionSoftCap: softCap(config, 'attn_logit_softcapping', 50),
      logitSoftCap: softCap(config, 'final_logit_softcapping', 30),
    }),
    names: GEMMA_NAMES,
  },
  {
    modelType: 'gemma3_text',
    architecture: 'Gemma3ForCausalLM',
    defaults: {
      hiddenSize: 2304,
      numLayers: 26,
      numHeads: 8,
      vocabSize: 262208,
      intermediateSize: 9216,
      numKvHeads: 4,
      headDim: 256,
      maxPositionEmbeddings: 131072,
      ropeTheta: 1e6,
      isTied: true,
      eosTokenId: 1,
    },
    features: attentionBias,
    attention: (config, numLayers) =>
      alternatingRopes(config, numLayers, config.positiveInt('sliding_window_pattern', 6)),
    slidingRopeTheta: 10_000,
    changes: (config, { hiddenSize }) => ({
      ...gemma(config, hiddenSize),
      qkNorm: 'head',
      attentionSoftCap: softCap(config, 'attn_logit_softcapping', 0),
      logitSoftCap: softCap(config, 'final_logit_softcapping', 0),
    }),
    names: GEMMA_NAMES,
  },
  {
    modelType: 'phi3',
    architecture: 'Phi3ForCausalLM',
    defaults: {
      hiddenSize: 3072,
      vocabSize: 32064,
      intermediateSize: 8192,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 4096,
      eosTokenId: 32000,
    },
    features: () => ({ ...NO_BIASES, isQkvFused: true, isGateUpFused: true }),
    attention: (config, numLayers) => everyLayer(readWindow(config, 0), numLayers),
  },
  {
    modelType: 'smollm3',
    architecture: 'SmolLM3ForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 36,
      numHeads: 16,
      vocabSize: 128256,
      intermediateSize: 11008,
      numKvHeads: 4,
      maxPositionEmbeddings: 32768,
      ropeTheta: 2e6,
      isTied: true,
      eosTokenId: 128001,
    },
    features: llamaBiases,
    attention: smollm3Attention,
  },
  {
    modelType: 'granite',
    architecture: 'GraniteForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: llamaBiases,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: granite,
  },
  {
    modelType: 'granitemoe',
    architecture: 'GraniteMoeForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: (config) => ({
      ...attentionBias(config),
      experts: {
        router: 'block_sparse_moe.router.layer',
        stacked: {
          gateUp: 'block_sparse_moe.input_linear.weight',
          down: 'block_sparse_moe.output_linear.weight',
        },
      },
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: granite,
    moe: (config) => mixtralMoe(config, 11008),
  },
  {
    modelType: 'olmo2',
    architecture: 'Olmo2ForCausalLM',
    defaults: {
      vocabSize: 50304,
      intermediateSize: 11008,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 2048,
      eosTokenId: 50279,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ ...AFTER_ONLY, qkNorm: 'all_heads' }),
  },
  {
    modelType: 'olmo3',
    architecture: 'Olmo3ForCausalLM',
    defaults: {
      vocabSize: 50304,
      intermediateSize: 11008,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 2048,
      ropeTheta: 500_000,
      eosTokenId: 50279,
    },
    features: attentionBias,
    attention: (config, numLayers) => alternatingRopes(config, numLayers, 4),
    slidingRopeTheta: 500_000,
    changes: () => ({ ...AFTER_ONLY, qkNorm: 'all_heads' }),
  },
  {
    modelType: 'exaone4',
    architecture: 'Exaone4ForCausalLM',
    defaults: {
      vocabSize: 102400,
      intermediateSize: 16384,
      numKvHeads: 32,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 2048,
      eosTokenId: 2,
    },
    features: () => NO_BIASES,
    attention: exaone4Attention,
    changes: () => ({ ...AFTER_ONLY, qkNorm: 'head' }),
  },
  {
    modelType: 'glm4',
    architecture: 'Glm4ForCausalLM',
    defaults: {
      numLayers: 40,
      vocabSize: 151552,
      intermediateSize: 13696,
      numKvHeads: 2,
      headDim: 128,
      rmsNormEps: 0.00000015625,
      maxPositionEmbeddings: 131072,
      partialRotaryFactor: 0.5,
      eosTokenId: 151329,
    },
    features: (config) => ({
      ...NO_BIASES,
      qkvBias: config.boolean('attention_bias', true),
      isGateUpFused: true,
      isRopeInterleaved: true,
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => SANDWICH,
    names: { attention_out_norm: 'post_self_attn_layernorm', mlp_out_norm: 'post_mlp_layernorm' },
  },
  {
    modelType: 'seed_oss',
    architecture: 'SeedOssForCausalLM',
    defaults: {
      numLayers: 64,
      numHeads: 80,
      vocabSize: 155136,
      intermediateSize: 27648,
      numKvHeads: 8,
      headDim: 128,
      maxPositionEmbeddings: 524288,
      eosTokenId: 2,
    },
    features: (config) => ({
      qkvBias: config.boolean('attention_bias', true),
      outputBias: config.boolean('attention_out_bias', false),
      mlpBias: config.boolean('mlp_bias', false),
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
  },
  {
    modelType: 'hunyuan_v1_dense',
    architecture: 'HunYuanDenseV1ForCausalLM',
    defaults: {
      vocabSize: 290943,
      intermediateSize: 11008,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 2048,
      eosTokenId: 2,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ qkNorm: 'head', rotatesBeforeQkNorm: true }),
    names: { q_norm: 'self_attn.query_layernorm', k_norm: 'self_attn.key_layernorm' },
  },
  {
    modelType: 'ernie4_5',
    architecture: 'Ernie4_5ForCausalLM',
    defaults: {
      hiddenSize: 1024,
      numLayers: 18,
      numHeads: 16,
      vocabSize: 103424,
      intermediateSize: 3072,
      numKvHeads: 2,
      headDim: 128,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 131072,
      ropeTheta: 500_000,
      isTied: true,
      eosTokenId: 2,
    },
    features: (config) => {
      const hasBias = config.boolean('use_bias', false);
      return { qkvBias: hasBias, outputBias: hasBias, mlpBias: hasBias, isRopeInterleaved: true };
    },
    attention: (_config, numLayers) => everyLayer(0, numLayers),
  },
];

/** Families that are not supported yet, by the start of their model type. */
const LATER_FAMILIES: readonly [prefix: string, description: string][] = [
  ['qwen3_next', 'gated delta net'],
  ['qwen3_5', 'gated delta net'],
  ['gemma3n', 'per-layer inputs'],
  ['gemma4', 'per-layer inputs and shared keys'],
  ['gemma', 'the first Gemma'],
  ['deepseek', 'multi-head latent attention'],
  ['phi', 'Phi before Phi-3, or its mixture of experts'],
];

/** @throws CapstanError `unsupported_model` that names the architecture and the supported ones. */
export function findFamily(config: JsonReader): Family {
  const modelType = config.string('model_type', '');
  const architectures = config.raw('architectures');
  const architecture = Array.isArray(architectures) && architectures.length > 0 ? String(architectures[0]) : undefined;
  const family = FAMILIES.find((row) =>
    modelType === '' ? row.architecture === architecture : row.modelType === modelType,
  );
  const name = architecture ?? (modelType === '' ? 'a model without model_type and architectures' : modelType);
  if (family === undefined) {
    const later = LATER_FAMILIES.find(([prefix]) => modelType.startsWith(prefix));
    throw unsupported(later === undefined ? name : `${name} (${later[1]}, not supported yet)`);
  }
  // Refuse other heads (classification, reward): only language model heads are loaded.
  if (architecture !== undefined && architecture !== family.architecture && !architecture.endsWith('Model'))
    throw unsupported(name);
  return family;
}

/** Returns the family of a model type that is in the table. */
export function familyOf(modelType: string): Family {
  return FAMILIES.find((row) => row.modelType === modelType)!;
}

function unsupported(received: string): CapstanError {
  const expected = FAMILIES.map((row) => row.architecture).join(', ');
  return new CapstanError(
    'unsupported_model',
    `config.json: expected one of the architectures ${expected}, got ${received}`,
    { param: 'architectures', expected, received },
  );
}

function llamaBiases(config: JsonReader): ModelFeatures {
  return { ...attentionBias(config), mlpBias: config.boolean('mlp_bias', false) };
}

function attentionBias(config: JsonReader): ModelFeatures {
  const hasBias = config.boolean('attention_bias', false);
  return { qkvBias: hasBias, outputBias: hasBias, mlpBias: false };
}

/** null means no cap. */
function softCap(config: JsonReader, key: string, fallback: number): number {
  if (config.isNull(key)) return 0;
  return config.raw(key) === undefined && fallback === 0 ? 0 : config.positiveNumber(key, fallback);
}

function gemma(config: JsonReader, hiddenSize: number): SpecChanges {
  return {
    ...SANDWICH,
    embeddingScale: Math.sqrt(hiddenSize),
    attentionScale: 1 / Math.sqrt(config.positiveNumber('query_pre_attn_scalar', 256)),
    normOffset: 1,
  };
}

function granite(config: JsonReader): SpecChanges {
  return {
    embeddingScale: config.positiveNumber('embedding_multiplier', 1),
    residualScale: config.positiveNumber('residual_multiplier', 1),
    attentionScale: config.positiveNumber('attention_multiplier', 1),
    logitScale: 1 / config.positiveNumber('logits_scaling', 1),
  };
}
