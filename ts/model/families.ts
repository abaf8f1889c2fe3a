import {
  alternating,
  alternatingRopes,
  cohere2Attention,
  everyLayer,
  exaone4Attention,
  qwen2MoeAttention,
  qwenAttention,
  readWindow,
  smollm3Attention,
} from './attention-layers';
import { ENCODERS } from './encoders';
import type { Family, FamilyDefaults, SpecChanges } from './family';
import type { JsonReader } from './json-file';
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
  SANDWICH,
  softCap,
} from './family-parts';
import { OTHER_DECODERS } from './other-decoders';
import { GEMMA4_EXPERTS, gemma4, gemma4Attention, gemma4Layers, hasEqualKeysAndValues } from './gemma4';
import { gemma4Moe, glm4Moe, gptOssMoe, graniteHybridMoe, lfm2Moe, mixtralMoe, olmoeMoe, qwenMoe } from './moe';
import { graniteMamba, lfm2ShortConv, qwenDeltaNet } from './recurrent';

const GEMMA_NAMES = { mlp_norm: 'pre_feedforward_layernorm' };

const LFM2_NAMES = {
  norm: 'embedding_norm',
  input_norm: 'operator_norm',
  mlp_norm: 'ffn_norm',
  q_norm: 'self_attn.q_layernorm',
  k_norm: 'self_attn.k_layernorm',
  o_proj: 'self_attn.out_proj',
  gate_proj: 'feed_forward.w1',
  up_proj: 'feed_forward.w3',
  down_proj: 'feed_forward.w2',
  in_proj: 'conv.in_proj',
  conv: 'conv.conv',
  out_proj: 'conv.out_proj',
};
const GRANITE_HYBRID_NAMES = {
  gate_up_proj: 'shared_mlp.input_linear',
  down_proj: 'shared_mlp.output_linear',
  in_proj: 'mamba.in_proj',
  conv: 'mamba.conv1d',
  a_log: 'mamba.A_log',
  dt_bias: 'mamba.dt_bias',
  skip: 'mamba.D',
  mixer_norm: 'mamba.norm',
  out_proj: 'mamba.out_proj',
};
const QWEN_SHARED_EXPERT = {
  shared: {
    gate: 'mlp.shared_expert.gate_proj',
    up: 'mlp.shared_expert.up_proj',
    down: 'mlp.shared_expert.down_proj',
  },
  sharedGate: 'mlp.shared_expert_gate',
};

const GEMMA3_DEFAULTS: FamilyDefaults = {
  hiddenAct: 'gelu_pytorch_tanh',
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
      ropeParameters: {
        rope_type: 'yarn',
        rope_theta: 1e6,
        factor: 16,
        original_max_position_embeddings: 16384,
        mscale: 1,
        mscale_all_dim: 1,
        llama_4_scaling_beta: 0.1,
      },
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
      experts: { ...QWEN_EXPERTS, ...QWEN_SHARED_EXPERT },
    }),
    attention: qwen2MoeAttention,
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
        inTransformers: { router: 'mlp.gate', experts: 'mlp.experts' },
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
      ropeParameters: { rope_type: 'yarn', factor: 32, truncate: false, original_max_position_embeddings: 4096 },
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
      attentionSoftCap: softCap(config, 'attn_logit_softcapping', 50),
      logitSoftCap: softCap(config, 'final_logit_softcapping', 30),
    }),
    names: GEMMA_NAMES,
  },
  {
    modelType: 'gemma3_text',
    architecture: 'Gemma3ForCausalLM',
    defaults: GEMMA3_DEFAULTS,
    features: attentionBias,
    attention: (config, numLayers) => alternatingRopes(config, numLayers, isGemma3Sliding(config), readWindow(config)),
    slidingRopeTheta: 10_000,
    changes: gemma3,
    names: GEMMA_NAMES,
  },
  {
    // EmbeddingGemma: its tokens see each other.
    modelType: 'gemma3_text',
    architecture: 'Gemma3TextModel',
    defaults: GEMMA3_DEFAULTS,
    isEncoder: true,
    isFor: (config) => config.raw('use_bidirectional_attention') === true,
    features: attentionBias,
    // Half of the window is on each side.
    attention: (config, numLayers) =>
      alternatingRopes(config, numLayers, isGemma3Sliding(config), Math.floor(readWindow(config) / 2) + 1),
    slidingRopeTheta: 10_000,
    changes: (config, sizes) => ({ ...gemma3(config, sizes), isCausal: false }),
    pooling: { task: 'embed', kind: () => 'mean', head: () => [] },
    names: GEMMA_NAMES,
  },
  {
    modelType: 'gemma4_text',
    architecture: 'Gemma4ForCausalLM',
    defaults: {
      hiddenAct: 'gelu_pytorch_tanh',
      hiddenSize: 2304,
      numLayers: 30,
      numHeads: 8,
      vocabSize: 262144,
      intermediateSize: 9216,
      numKvHeads: 4,
      headDim: 256,
      maxPositionEmbeddings: 131072,
      ropeParameters: { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1e6 },
      isTied: true,
      eosTokenId: 1,
    },
    features: (config) => ({
      ...attentionBias(config),
      hasEqualKeysAndValues: hasEqualKeysAndValues(config),
      experts: GEMMA4_EXPERTS,
    }),
    attention: gemma4Attention,
    slidingRopeTheta: 10_000,
    layers: gemma4Layers,
    changes: (config, { hiddenSize }) => ({
      ...SANDWICH,
      ...gemma4(config, hiddenSize, softCap(config, 'final_logit_softcapping', 0)),
    }),
    moe: (config, hiddenSize) => gemma4Moe(config, hiddenSize, 9216),
    names: {
      ...GEMMA_NAMES,
      per_layer_table: 'embed_tokens_per_layer',
      per_layer_projection: 'per_layer_model_projection',
      per_layer_norm: 'per_layer_projection_norm',
      per_layer_gate: 'per_layer_input_gate',
      per_layer_out: 'per_layer_projection',
      per_layer_out_norm: 'post_per_layer_input_norm',
      layer_scale: 'layer_scalar',
    },
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
        inTransformers: GRANITE_EXPERTS,
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
    attention: (config, numLayers) =>
      alternatingRopes(config, numLayers, (layer) => (layer + 1) % 4 !== 0, readWindow(config)),
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
    ...GLM,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => SANDWICH,
    names: { attention_out_norm: 'post_self_attn_layernorm', mlp_out_norm: 'post_mlp_layernorm' },
  },
  {
    modelType: 'glm4_moe',
    architecture: 'Glm4MoeForCausalLM',
    defaults: {
      numLayers: 46,
      numHeads: 96,
      vocabSize: 151552,
      intermediateSize: 10944,
      numKvHeads: 8,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 131072,
      partialRotaryFactor: 0.5,
      eosTokenId: null,
    },
    features: (config) => ({
      ...NO_BIASES,
      qkvBias: config.boolean('attention_bias', false),
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
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: (config) => (config.boolean('use_qk_norm', false) ? { qkNorm: 'head' } : {}),
    moe: glm4Moe,
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
  {
    // Command R7B: attention and the MLP read the same norm of the hidden states.
    modelType: 'cohere2',
    architecture: 'Cohere2ForCausalLM',
    defaults: {
      hiddenSize: 8192,
      numLayers: 40,
      numHeads: 64,
      vocabSize: 256000,
      intermediateSize: 22528,
      maxPositionEmbeddings: 8192,
      isTied: true,
      eosTokenId: 255001,
    },
    features: (config) => ({ ...attentionBias(config), isRopeInterleaved: true }),
    attention: cohere2Attention,
    changes: (config) => ({
      normKind: 'layer',
      rmsNormEps: config.positiveNumber('layer_norm_eps', 1e-5),
      isParallel: true,
      logitScale: config.positiveNumber('logit_scale', 0.0625),
    }),
    names: { mlp_norm: 'input_layernorm' },
  },
  {
    modelType: 'apertus',
    architecture: 'ApertusForCausalLM',
    defaults: {
      vocabSize: 131072,
      intermediateSize: 14336,
      rmsNormEps: 1e-5,
      hiddenAct: 'xielu',
      maxPositionEmbeddings: 65536,
      ropeTheta: 12e6,
      ropeParameters: {
        rope_type: 'llama3',
        rope_theta: 12e6,
        factor: 8,
        original_max_position_embeddings: 8192,
        low_freq_factor: 1,
        high_freq_factor: 4,
      },
      eosTokenId: 2,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ qkNorm: 'head', hasGatedMlp: false }),
    names: { input_norm: 'attention_layernorm', mlp_norm: 'feedforward_layernorm' },
  },
  {
    modelType: 'qwen3_next',
    architecture: 'Qwen3NextForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 48,
      numHeads: 16,
      vocabSize: 151936,
      intermediateSize: 5632,
      numKvHeads: 2,
      headDim: 256,
      maxPositionEmbeddings: 32768,
      partialRotaryFactor: 0.25,
      eosTokenId: null,
    },
    features: (config) => ({ ...attentionBias(config), experts: { ...QWEN_EXPERTS, ...QWEN_SHARED_EXPERT } }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    recurrent: qwenDeltaNet,
    changes: qwenHybrid,
    hasMtpHead: true,
    moe: (config) =>
      qwenMoe(config, {
        experts: 512,
        topK: 10,
        intermediateSize: 512,
        sharedIntermediateSize: 512,
        normalizesWeights: true,
      }),
    names: { in_proj_qkvz: 'linear_attn.in_proj_qkvz', in_proj_ba: 'linear_attn.in_proj_ba' },
  },
  {
    modelType: 'qwen3_5_text',
    architecture: 'Qwen3_5ForCausalLM',
    defaults: {
      numHeads: 16,
      vocabSize: 248320,
      intermediateSize: 12288,
      numKvHeads: 4,
      headDim: 256,
      maxPositionEmbeddings: 32768,
      partialRotaryFactor: 0.25,
      eosTokenId: null,
    },
    features: attentionBias,
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    recurrent: qwenDeltaNet,
    changes: qwenHybrid,
    hasMtpHead: true,
  },
  {
    modelType: 'qwen3_5_moe_text',
    architecture: 'Qwen3_5MoeForCausalLM',
    defaults: {
      hiddenSize: 2048,
      numLayers: 40,
      numHeads: 16,
      vocabSize: 248320,
      intermediateSize: 512,
      numKvHeads: 2,
      headDim: 256,
      maxPositionEmbeddings: 32768,
      partialRotaryFactor: 0.25,
      eosTokenId: null,
    },
    features: (config) => ({
      ...attentionBias(config),
      experts: {
        ...QWEN_EXPERTS,
        ...QWEN_SHARED_EXPERT,
        eachIn: { gateUp: 'mlp.experts.gate_up_proj', down: 'mlp.experts.down_proj' },
      },
    }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    recurrent: qwenDeltaNet,
    changes: qwenHybrid,
    hasMtpHead: true,
    moe: (config) =>
      qwenMoe(config, {
        experts: 256,
        topK: 8,
        intermediateSize: 512,
        sharedIntermediateSize: 512,
        normalizesWeights: true,
      }),
  },
  {
    modelType: 'lfm2',
    architecture: 'Lfm2ForCausalLM',
    defaults: {
      hiddenSize: 2560,
      vocabSize: 65536,
      intermediateSize: 12288,
      numKvHeads: 8,
      maxPositionEmbeddings: 128_000,
      ropeTheta: 1e6,
      eosTokenId: 2,
    },
    features: (config) => {
      const hasBias = config.boolean('conv_bias', false);
      return { ...NO_BIASES, recurrentBias: hasBias, convBias: hasBias };
    },
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    recurrent: lfm2ShortConv,
    changes: lfm2,
    names: LFM2_NAMES,
  },
  {
    modelType: 'lfm2_moe',
    architecture: 'Lfm2MoeForCausalLM',
    defaults: {
      hiddenSize: 2048,
      vocabSize: 65536,
      intermediateSize: 7168,
      numKvHeads: 8,
      maxPositionEmbeddings: 128_000,
      ropeTheta: 1e6,
      eosTokenId: 2,
    },
    features: (config) => {
      const hasBias = config.boolean('conv_bias', false);
      return {
        ...NO_BIASES,
        recurrentBias: hasBias,
        convBias: hasBias,
        experts: {
          router: 'feed_forward.gate',
          ...(config.boolean('use_expert_bias', true) ? { selectionBias: 'feed_forward.expert_bias' } : {}),
          each: {
            gate: 'feed_forward.experts.*.w1',
            up: 'feed_forward.experts.*.w3',
            down: 'feed_forward.experts.*.w2',
          },
        },
      };
    },
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    recurrent: lfm2ShortConv,
    changes: (config) => ({
      qkNorm: 'head',
      rmsNormEps: config.positiveNumber('norm_eps', 1e-5),
      tieWordEmbeddings: config.boolean('tie_embedding', config.boolean('tie_word_embeddings', true)),
    }),
    moe: lfm2Moe,
    names: LFM2_NAMES,
  },
  {
    modelType: 'granitemoehybrid',
    architecture: 'GraniteMoeHybridForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: (config) => ({
      ...attentionBias(config),
      isGateUpFused: true,
      experts: {
        router: 'block_sparse_moe.router.layer',
        inTransformers: GRANITE_EXPERTS,
        stacked: {
          gateUp: 'block_sparse_moe.input_linear.weight',
          down: 'block_sparse_moe.output_linear.weight',
        },
        shared: { gateUp: 'shared_mlp.input_linear', down: 'shared_mlp.output_linear' },
      },
      recurrentBias: config.boolean('mamba_proj_bias', false),
      convBias: config.boolean('mamba_conv_bias', true),
    }),
    attention: (config, numLayers) => {
      const rope = config.raw('position_embedding_type') === 'rope' ? 0 : -1;
      return everyLayer(0, numLayers).map((layer) => ({ ...layer, rope }));
    },
    recurrent: graniteMamba,
    changes: (config) => ({
      ...granite(config),
      intermediateSize: config.positiveInt('shared_intermediate_size', 1024),
    }),
    moe: graniteHybridMoe,
    names: GRANITE_HYBRID_NAMES,
  },
  ...OTHER_DECODERS,
  ...ENCODERS,
];

function gemma3(config: JsonReader, { hiddenSize }: { hiddenSize: number }): SpecChanges {
  return {
    ...gemma(config, hiddenSize),
    qkNorm: 'head',
    // Its class has attn_logit_softcapping too, but uses it nowhere.
    logitSoftCap: softCap(config, 'final_logit_softcapping', 0),
  };
}

function isGemma3Sliding(config: JsonReader): (layer: number) => boolean {
  const period = config.positiveInt('sliding_window_pattern', 6);
  return (layer) => (layer + 1) % period !== 0;
}

/** Norms of Qwen3-Next and Qwen3.5 are stored minus 1, and attention has an output gate. */
function qwenHybrid(): SpecChanges {
  return { qkNorm: 'head', normOffset: 1, hasOutputGate: true };
}

function lfm2(config: JsonReader): SpecChanges {
  return {
    qkNorm: 'head',
    rmsNormEps: config.positiveNumber('norm_eps', 1e-5),
    tieWordEmbeddings: config.boolean('tie_embedding', config.boolean('tie_word_embeddings', true)),
    intermediateSize: lfm2IntermediateSize(config),
  };
}

/** The size in the config is that of an MLP without gate, unless `block_auto_adjust_ff_dim` is false. */
function lfm2IntermediateSize(config: JsonReader): number {
  const size = config.positiveInt('block_ff_dim', config.positiveInt('intermediate_size', 12288));
  if (!config.boolean('block_auto_adjust_ff_dim', true)) return size;
  const gated = Math.trunc((2 * size) / 3);
  if (config.isNull('block_ffn_dim_multiplier')) return gated;
  const multiple = config.positiveInt('block_multiple_of', 256);
  return multiple * Math.ceil(Math.trunc(config.positiveNumber('block_ffn_dim_multiplier', 1) * gated) / multiple);
}
