import type { NativeModelSpec } from '../../addon-types';
import type { JsonObject } from '../json-file';

/** Sizes that the file states. */
export interface GgufSizes {
  hiddenSize: number;
  numLayers: number;
  numHeads: number;
  headDim: number;
}

/** A GGUF architecture: how its files differ from a model directory. To support another one, add a row. */
export interface GgufArchitecture {
  /** `general.architecture`, and the prefix of its metadata keys. */
  name: string;
  /** `modelType` of its family in `ts/model/families.ts`. */
  modelType: string;
  /** Families of files in which a key has a value above 0, instead of `modelType`. The first that fits counts. */
  variants?: readonly { key: string; modelType: string }[];
  /**
   * Whether rotary positions turn neighbouring rows of Q and K. The converter of llama.cpp stores Llama so, and other
   * models are made so.
   */
  interleavesHeads?: boolean;
  /** Names of tensors that differ from `TENSOR_NAMES`. */
  names?: Readonly<Record<string, string>>;
  /** Keys that change what the model computes, and that its family understands. */
  keys?: readonly string[];
  /** Entries of config.json that the file does not state, or that have another default in llama.cpp. */
  config?(sizes: GgufSizes): JsonObject;
  /** What of the family's spec the file has in another way. */
  changes?: Partial<NativeModelSpec>;
  /** Whether the correction range of YaRN is rounded; default true. No key says so. */
  truncatesYarn?: boolean;
}

const GRANITE = {
  interleavesHeads: true,
  keys: ['embedding_scale', 'residual_scale', 'logit_scale', 'attention.scale'],
  config: ({ headDim }: GgufSizes) => ({ attention_multiplier: 1 / Math.sqrt(headDim) }),
} as const;

/** The converter adds the 1 to the weights of all norms, and Gemma's activation is not in the file. */
const GEMMA_CHANGES = { normOffset: 0, hiddenAct: 'gelu_tanh' } as const;

/** Only the models of 27B scale the scores by another size than that of a head, and no key says so. */
function gemmaConfig(layersOf27B: number, { hiddenSize, numLayers, numHeads, headDim }: GgufSizes): JsonObject {
  return { query_pre_attn_scalar: numLayers === layersOf27B ? hiddenSize / numHeads : headDim };
}

export const ARCHITECTURES: readonly GgufArchitecture[] = [
  {
    name: 'llama',
    modelType: 'llama',
    variants: [
      { key: 'expert_count', modelType: 'mixtral' },
      { key: 'attention.sliding_window', modelType: 'mistral' },
    ],
    interleavesHeads: true,
  },
  { name: 'mistral3', modelType: 'ministral3', interleavesHeads: true, keys: ['attention.temperature_scale'] },
  { name: 'qwen2', modelType: 'qwen2' },
  { name: 'qwen3', modelType: 'qwen3' },
  { name: 'qwen2moe', modelType: 'qwen2_moe' },
  { name: 'qwen3moe', modelType: 'qwen3_moe', config: () => ({ norm_topk_prob: true }) },
  { name: 'olmoe', modelType: 'olmoe' },
  {
    name: 'gpt-oss',
    modelType: 'gpt_oss',
    names: { mlp_norm: 'post_attention_norm' },
    config: () => ({ sliding_window: 128 }),
    truncatesYarn: false,
  },
  {
    name: 'gemma2',
    modelType: 'gemma2',
    keys: ['attn_logit_softcapping', 'final_logit_softcapping'],
    config: (sizes) => ({ ...gemmaConfig(46, sizes), sliding_window: 4096 }),
    changes: GEMMA_CHANGES,
  },
  {
    name: 'gemma3',
    modelType: 'gemma3_text',
    keys: ['final_logit_softcapping'],
    config: (sizes) => gemmaConfig(62, sizes),
    changes: GEMMA_CHANGES,
  },
  { name: 'phi3', modelType: 'phi3' },
  { name: 'smollm3', modelType: 'smollm3', interleavesHeads: true },
  { name: 'granite', modelType: 'granite', ...GRANITE },
  { name: 'granitemoe', modelType: 'granitemoe', ...GRANITE },
  { name: 'olmo2', modelType: 'olmo2', variants: [{ key: 'attention.sliding_window', modelType: 'olmo3' }] },
  {
    name: 'exaone4',
    modelType: 'exaone4',
    config: ({ numLayers }) => (numLayers === 64 ? { sliding_window: 4096 } : {}),
  },
  { name: 'glm4', modelType: 'glm4', interleavesHeads: true },
  { name: 'seed_oss', modelType: 'seed_oss', names: { mlp_norm: 'post_attention_norm' } },
  { name: 'hunyuan-dense', modelType: 'hunyuan_v1_dense' },
  { name: 'ernie4_5', modelType: 'ernie4_5', interleavesHeads: true },
];

/** Names of tensors by their canonical name, without the layer's number and without `weight` or `bias`. */
export const TENSOR_NAMES: Readonly<Record<string, string>> = {
  embed_tokens: 'token_embd',
  norm: 'output_norm',
  lm_head: 'output',
  input_norm: 'attn_norm',
  attention_out_norm: 'post_attention_norm',
  mlp_norm: 'ffn_norm',
  mlp_out_norm: 'post_ffw_norm',
  q_proj: 'attn_q',
  k_proj: 'attn_k',
  v_proj: 'attn_v',
  qkv_proj: 'attn_qkv',
  o_proj: 'attn_output',
  q_norm: 'attn_q_norm',
  k_norm: 'attn_k_norm',
  sinks: 'attn_sinks.weight',
  gate_proj: 'ffn_gate',
  up_proj: 'ffn_up',
  gate_up_proj: 'ffn_up',
  down_proj: 'ffn_down',
};

/** Tensors of divisors of the rotary frequencies: of the scaling of Llama 3, and of LongRoPE. */
export const ROPE_DIVISORS = {
  any: 'rope_freqs.weight',
  short: 'rope_factors_short.weight',
  long: 'rope_factors_long.weight',
} as const;
