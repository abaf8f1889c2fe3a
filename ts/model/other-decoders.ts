/** Decoders that differ from those of `families.ts` in sizes, names and switches only. */
import { CapstanError } from '../errors';
import { alternating, everyLayer, qwenAttention, readWindow, windowsFrom } from './attention-layers';
import type { Family } from './family';
import {
  AFTER_ONLY,
  attentionBias,
  gemma,
  GLM,
  granite,
  llamaBiases,
  NO_BIASES,
  GRANITE_EXPERTS,
  QWEN_EXPERTS,
  softCap,
} from './family-parts';
import type { JsonReader } from './json-file';
import { dots1Moe, flexOlmoMoe, graniteSharedMoe, miniMaxM2Moe } from './moe';

export const OTHER_DECODERS: readonly Family[] = [
  {
    modelType: 'gemma',
    architecture: 'GemmaForCausalLM',
    defaults: {
      hiddenAct: 'gelu_pytorch_tanh',
      hiddenSize: 3072,
      numLayers: 28,
      numHeads: 16,
      vocabSize: 256000,
      intermediateSize: 24576,
      headDim: 256,
      maxPositionEmbeddings: 8192,
      isTied: true,
      eosTokenId: 1,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    // Its files name the exact function, but mean the approximation.
    changes: (config, { hiddenSize }) => ({
      embeddingScale: Math.sqrt(hiddenSize),
      normOffset: 1,
      ...(config.string('hidden_activation', 'gelu') === 'gelu' ? { hiddenAct: 'gelu_tanh' } : {}),
    }),
    keys: { hidden_activation: 'hidden_act' },
  },
  {
    modelType: 'vaultgemma',
    architecture: 'VaultGemmaForCausalLM',
    defaults: {
      hiddenAct: 'gelu_pytorch_tanh',
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
      norms: { input: true, attentionOut: false, mlp: true, mlpOut: false, isOfSum: false },
      attentionSoftCap: softCap(config, 'attn_logit_softcapping', 50),
      logitSoftCap: softCap(config, 'final_logit_softcapping', 30),
    }),
    names: { mlp_norm: 'pre_feedforward_layernorm' },
  },
  {
    modelType: 'ministral',
    architecture: 'MinistralForCausalLM',
    defaults: {
      vocabSize: 32000,
      intermediateSize: 14336,
      numKvHeads: 8,
      maxPositionEmbeddings: 131072,
      eosTokenId: 2,
    },
    features: () => NO_BIASES,
    attention: (config, numLayers) => alternating(config, numLayers, Infinity),
  },
  {
    modelType: 'cwm',
    architecture: 'CwmForCausalLM',
    defaults: {
      hiddenSize: 6144,
      numLayers: 64,
      numHeads: 48,
      vocabSize: 128256,
      intermediateSize: 21504,
      numKvHeads: 8,
      headDim: 128,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 131072,
      ropeTheta: 1e6,
      ropeParameters: {
        rope_type: 'llama3',
        rope_theta: 1e6,
        factor: 16,
        original_max_position_embeddings: 8192,
        low_freq_factor: 1,
        high_freq_factor: 4,
      },
      eosTokenId: [128001, 128008, 128009],
    },
    features: (config) => ({ ...NO_BIASES, mlpBias: config.boolean('mlp_bias', false) }),
    attention: (config, numLayers) => windowsFrom(config, numLayers, (layer) => layer % 4 !== 0, 8192),
  },
  {
    modelType: 'glm',
    architecture: 'GlmForCausalLM',
    ...GLM,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
  },
  {
    modelType: 'helium',
    architecture: 'HeliumForCausalLM',
    defaults: {
      hiddenSize: 2560,
      numLayers: 24,
      numHeads: 20,
      vocabSize: 48000,
      intermediateSize: 7040,
      numKvHeads: 20,
      headDim: 128,
      rmsNormEps: 1e-8,
      maxPositionEmbeddings: 4096,
      ropeTheta: 100_000,
      eosTokenId: 2,
    },
    features: (config) => ({ ...llamaBiases(config), outputBias: false, isRopeInterleaved: true }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
  },
  {
    // Command R: attention and the MLP read the same norm of the hidden states.
    modelType: 'cohere',
    architecture: 'CohereForCausalLM',
    defaults: {
      hiddenSize: 8192,
      numLayers: 40,
      numHeads: 64,
      vocabSize: 256000,
      intermediateSize: 22528,
      maxPositionEmbeddings: 8192,
      ropeTheta: 500_000,
      isTied: true,
      eosTokenId: 255001,
    },
    features: (config) => ({ ...attentionBias(config), isRopeInterleaved: true }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: (config) => {
      demandFalse(config, 'use_qk_norm');
      return {
        normKind: 'layer',
        rmsNormEps: config.positiveNumber('layer_norm_eps', 1e-5),
        isParallel: true,
        logitScale: config.positiveNumber('logit_scale', 0.0625),
      };
    },
    names: { mlp_norm: 'input_layernorm' },
  },
  {
    modelType: 'starcoder2',
    architecture: 'Starcoder2ForCausalLM',
    defaults: {
      hiddenSize: 3072,
      numLayers: 30,
      numHeads: 24,
      vocabSize: 49152,
      intermediateSize: 12288,
      numKvHeads: 2,
      hiddenAct: 'gelu_pytorch_tanh',
      maxPositionEmbeddings: 4096,
      isTied: true,
      eosTokenId: 50256,
    },
    features: (config) => {
      const hasBias = config.boolean('use_bias', true);
      return { qkvBias: hasBias, outputBias: hasBias, mlpBias: hasBias, hasNormBias: true };
    },
    attention: (config, numLayers) => everyLayer(readWindow(config, 0), numLayers),
    changes: (config) => ({
      normKind: 'layer',
      rmsNormEps: config.positiveNumber('norm_epsilon', 1e-5),
      hasGatedMlp: false,
    }),
    names: { up_proj: 'mlp.c_fc', down_proj: 'mlp.c_proj' },
  },
  {
    modelType: 'stablelm',
    architecture: 'StableLmForCausalLM',
    defaults: {
      hiddenSize: 2560,
      vocabSize: 50304,
      intermediateSize: 6912,
      numKvHeads: 32,
      maxPositionEmbeddings: 4096,
      partialRotaryFactor: 0.25,
      eosTokenId: 0,
    },
    features: (config) => ({ ...NO_BIASES, qkvBias: config.boolean('use_qkv_bias', false), hasNormBias: true }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: (config) => {
      for (const key of ['qk_layernorm', 'use_parallel_residual']) demandFalse(config, key);
      return { normKind: 'layer', rmsNormEps: config.positiveNumber('layer_norm_eps', 1e-5) };
    },
  },
  {
    modelType: 'granitemoeshared',
    architecture: 'GraniteMoeSharedForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: (config) => ({
      ...attentionBias(config),
      experts: {
        router: 'block_sparse_moe.router.layer',
        inTransformers: GRANITE_EXPERTS,
        stacked: {
          gateUp: 'block_sparse_moe.input_linear.weight',
          down: 'block_sparse_moe.output_linear.weight',
        },
        shared: { gateUp: 'shared_mlp.input_linear', down: 'shared_mlp.output_linear' },
      },
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: granite,
    moe: graniteSharedMoe,
  },
  {
    modelType: 'flex_olmo',
    architecture: 'FlexOlmoForCausalLM',
    defaults: {
      vocabSize: 100352,
      intermediateSize: 11008,
      maxPositionEmbeddings: 4096,
      ropeTheta: 500_000,
      eosTokenId: 100257,
    },
    features: (config) => ({ ...attentionBias(config), experts: QWEN_EXPERTS }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ ...AFTER_ONLY, qkNorm: 'all_heads' }),
    moe: flexOlmoMoe,
  },
  {
    modelType: 'dots1',
    architecture: 'Dots1ForCausalLM',
    defaults: {
      hiddenSize: 4608,
      numLayers: 62,
      vocabSize: 152064,
      intermediateSize: 10944,
      numKvHeads: 32,
      maxPositionEmbeddings: 2048,
      eosTokenId: null,
    },
    features: (config) => ({
      ...attentionBias(config),
      experts: {
        ...QWEN_EXPERTS,
        selectionBias: 'mlp.gate.e_score_correction_bias',
        shared: {
          gate: 'mlp.shared_experts.gate_proj',
          up: 'mlp.shared_experts.up_proj',
          down: 'mlp.shared_experts.down_proj',
        },
      },
    }),
    attention: (config, numLayers) => {
      const firstWindowed = config.nonNegativeInt('max_window_layers', 62);
      return windowsFrom(config, numLayers, (layer) => layer >= firstWindowed, 4096);
    },
    changes: () => ({ qkNorm: 'head' }),
    moe: dots1Moe,
  },
  {
    modelType: 'minimax_m2',
    architecture: 'MiniMaxM2ForCausalLM',
    defaults: {
      hiddenSize: 3072,
      numLayers: 62,
      numHeads: 48,
      vocabSize: 200064,
      intermediateSize: 1536,
      numKvHeads: 8,
      headDim: 128,
      maxPositionEmbeddings: 196608,
      ropeTheta: 5e6,
      eosTokenId: 200020,
    },
    features: () => ({
      ...NO_BIASES,
      experts: {
        router: 'block_sparse_moe.gate',
        inTransformers: { router: 'mlp.gate', experts: 'mlp.experts' },
        selectionBias: 'block_sparse_moe.e_score_correction_bias',
        each: {
          gate: 'block_sparse_moe.experts.*.w1',
          up: 'block_sparse_moe.experts.*.w3',
          down: 'block_sparse_moe.experts.*.w2',
        },
      },
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ qkNorm: 'all_heads' }),
    moe: miniMaxM2Moe,
  },
  qwen2Vl('qwen2_vl_text', 'Qwen2VLForConditionalGeneration'),
  qwen2Vl('qwen2_5_vl_text', 'Qwen2_5_VLForConditionalGeneration'),
  {
    modelType: 'qwen3_vl_text',
    architecture: 'Qwen3VLForConditionalGeneration',
    defaults: {
      vocabSize: 151936,
      intermediateSize: 22016,
      numKvHeads: 32,
      headDim: 128,
      maxPositionEmbeddings: 128_000,
      ropeTheta: 500_000,
      eosTokenId: null,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ qkNorm: 'head' }),
  },
];

/** The text part of Qwen2-VL and Qwen2.5-VL. */
function qwen2Vl(modelType: string, architecture: string): Family {
  return {
    modelType,
    architecture,
    defaults: {
      hiddenSize: 8192,
      numLayers: 80,
      numHeads: 64,
      vocabSize: 152064,
      intermediateSize: 29568,
      numKvHeads: 8,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 32768,
      ropeTheta: 1e6,
      eosTokenId: 151645,
    },
    features: () => ({ ...NO_BIASES, qkvBias: true }),
    attention: qwenAttention,
  };
}

function demandFalse(config: JsonReader, key: string): void {
  if (config.boolean(key, false))
    throw CapstanError.mismatch('unsupported_model', `config.json: ${key}`, 'false', true);
}
