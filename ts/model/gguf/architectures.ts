import type { NativeModelSpec } from '../../addon-types';
import type { ExpertTensors } from '../family';
import type { JsonObject, JsonReader } from '../json-file';

/** Sizes that the file states. */
export interface GgufSizes {
  hiddenSize: number;
  /** Without those for the prediction of several tokens. */
  numLayers: number;
  /** With these. */
  numBlocks: number;
  numHeads: number;
  headDim: number;
}

/** What a file says about its layers. */
export interface GgufLayers {
  /** KV heads by layer; 0 for a recurrent layer. */
  kvHeads: readonly number[];
  /** Sizes of the dense MLPs by layer; empty if no key states them. */
  mlpSizes: readonly number[];
  numExperts: number;
  /** Some layers of attention have no projection of values. */
  lacksValues: boolean;
  hasQkNorm: boolean;
}

/** A GGUF architecture: how its files differ from a model directory. To support another one, add a row. */
export interface GgufArchitecture {
  /** `general.architecture`, and the prefix of its metadata keys. */
  name: string;
  /** `modelType` of its family in `ts/model/families.ts`. */
  modelType: string;
  /** `architecture` of its family, if several have this `modelType`. */
  className?: string;
  /** `architecture` of all families that its files hold. Default: those of its model types that write text. */
  classNames?: readonly string[];
  /** Families of files in which a key has a value above 0, instead of `modelType`. The first that fits counts. */
  variants?: readonly { key: string; modelType: string }[];
  /**
   * Whether rotary positions turn neighbouring rows of Q and K. The converter of llama.cpp stores Llama so, and other
   * models are made so.
   */
  interleavesHeads?: boolean;
  /** The converter stores layers without rotary positions so, too. */
  interleavesAllLayers?: boolean;
  /** Names of tensors that differ from `TENSOR_NAMES`. */
  names?: Readonly<Record<string, string>>;
  /** Keys that change what the model computes, and that its family understands. */
  keys?: readonly string[];
  /** Keys that must have one of some values, because the family computes nothing else. */
  values?: Readonly<Record<string, readonly unknown[]>>;
  /** Entries of config.json that the file has, by name, and their keys. */
  entries?: Readonly<Record<string, string>>;
  /** Entries of config.json that the file does not state, or that have another default in llama.cpp. */
  config?(sizes: GgufSizes, layers: GgufLayers, metadata: JsonReader): JsonObject;
  /** Key of the epsilon of the norms. Default: that of RMS norms. */
  normEpsKey?: string;
  /** Names of the tensors of experts, if they differ from those of most models. */
  experts?: ExpertTensors;
  /** What of the family's spec the file has in another way. */
  changes?: Partial<NativeModelSpec>;
  /** Whether the correction range of YaRN is rounded; default true. No key says so. */
  truncatesYarn?: boolean;
  /** Of `NativeRecurrent`. */
  headsAlternate?: boolean;
  /** Arrays of the metadata that hold a value of each layer, by the name of the tensor that a model directory has. */
  layerValues?: Readonly<Record<string, string>>;
  /** The family reads the pattern of the windows, as its windows are on both sides. */
  readsPattern?: boolean;
  /** Tensors of the first layer without which a model has other layers than the family, and what it has instead. */
  needs?: Readonly<Record<string, string>>;
}

const GRANITE = {
  interleavesHeads: true,
  keys: ['embedding_scale', 'residual_scale', 'logit_scale', 'attention.scale'],
  config: ({ headDim }: GgufSizes) => ({ attention_multiplier: 1 / Math.sqrt(headDim) }),
} as const;

/** Names of the tensors of experts, relative to the layer. Each holds all experts. */
export const EXPERTS: ExpertTensors = {
  router: 'ffn_gate_inp',
  each: { gate: 'ffn_gate_exps', up: 'ffn_up_exps', down: 'ffn_down_exps', isStacked: true },
  shared: { gate: 'ffn_gate_shexp', up: 'ffn_up_shexp', down: 'ffn_down_shexp' },
};

/** The weights of experts are sigmoids, and a bias chooses the experts. */
const SIGMOID_EXPERTS = {
  values: { expert_gating_func: [2] },
  experts: { ...EXPERTS, selectionBias: 'exp_probs_b.bias' },
} as const;

/** These may be in groups, and their weights scaled. */
const GROUPED_EXPERTS = {
  ...SIGMOID_EXPERTS,
  keys: ['expert_weights_scale', 'expert_group_count'],
  entries: {
    routed_scaling_factor: 'expert_weights_scale',
    n_group: 'expert_group_count',
    topk_group: 'expert_group_used_count',
  },
} as const;

/** Names of recurrent layers of Qwen and Granite. */
const RECURRENT_NAMES = {
  conv: 'ssm_conv1d',
  a_log: 'ssm_a',
  dt_bias: 'ssm_dt.bias',
  mixer_norm: 'ssm_norm',
  out_proj: 'ssm_out',
};

/** Qwen3-Next and Qwen3.5. Layers for the prediction of several tokens follow the others. */
const QWEN_HYBRID: Omit<GgufArchitecture, 'name' | 'modelType'> = {
  keys: ['nextn_predict_layers', 'rope.dimension_sections'],
  names: {
    ...RECURRENT_NAMES,
    mlp_norm: 'post_attention_norm',
    in_proj_qkv: 'attn_qkv',
    in_proj_z: 'attn_gate',
    in_proj_a: 'ssm_alpha',
    in_proj_b: 'ssm_beta',
  },
  entries: {
    linear_num_value_heads: 'ssm.time_step_rank',
    linear_num_key_heads: 'ssm.group_count',
    linear_key_head_dim: 'ssm.state_size',
    linear_conv_kernel_dim: 'ssm.conv_kernel',
    full_attention_interval: 'full_attention_interval',
    mtp_num_hidden_layers: 'nextn_predict_layers',
  },
  config: (_sizes, _layers, metadata) => {
    const number = (key: string) => metadata.positiveInt(`${metadata.string('general.architecture')}.ssm.${key}`);
    return { linear_value_head_dim: number('inner_size') / number('time_step_rank'), norm_topk_prob: true };
  },
  // The converter adds the 1 to the weights of the norms.
  changes: { normOffset: 0 },
};

const BERT_TOKENS = 'tokenizer.ggml.token_type_count';
const BERT_NAMES = {
  token_type_embeddings: 'token_types',
  embed_norm: 'token_embd_norm',
  attention_out_norm: 'attn_output_norm',
  mlp_out_norm: 'layer_output_norm',
};

/** The converter adds the 1 to the weights of all norms, and Gemma's activation is not in the file. */
const GEMMA_CHANGES = { normOffset: 0, hiddenAct: 'gelu_tanh' } as const;

/** Only the models of 27B scale the scores by another size than that of a head, and no key says so. */
function gemmaConfig(layersOf27B: number, { hiddenSize, numLayers, numHeads, headDim }: GgufSizes): JsonObject {
  return { query_pre_attn_scalar: numLayers === layersOf27B ? hiddenSize / numHeads : headDim };
}

const LAYER_NORM_EPS = 'attention.layer_norm_epsilon';

const COHERE = {
  interleavesHeads: true,
  keys: ['logit_scale'],
  names: { mlp_norm: 'attn_norm' },
  entries: { layer_norm_eps: LAYER_NORM_EPS, logit_scale: 'logit_scale' },
  normEpsKey: LAYER_NORM_EPS,
} as const;

const LFM2: Omit<GgufArchitecture, 'name' | 'modelType'> = {
  names: {
    norm: 'token_embd_norm',
    in_proj: 'shortconv.in_proj',
    conv: 'shortconv.conv',
    out_proj: 'shortconv.out_proj',
  },
  entries: { norm_eps: 'attention.layer_norm_rms_epsilon', conv_L_cache: 'shortconv.l_cache' },
  config: (_sizes, { kvHeads, mlpSizes }) => ({
    layer_types: kvHeads.map((count) => (count === 0 ? 'conv' : 'full_attention')),
    block_auto_adjust_ff_dim: false,
    ...(mlpSizes.length === 0 ? {} : { block_ff_dim: mlpSizes[0] }),
  }),
};

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
  // The text part of vision models. Without images, the three positions of a token are equal.
  {
    name: 'qwen2vl',
    modelType: 'qwen2_vl_text',
    classNames: ['Qwen2VLForConditionalGeneration', 'Qwen2_5_VLForConditionalGeneration'],
    keys: ['rope.dimension_sections'],
  },
  { name: 'qwen3vl', modelType: 'qwen3_vl_text', keys: ['rope.dimension_sections'] },
  { name: 'qwen2moe', modelType: 'qwen2_moe' },
  { name: 'qwen3moe', modelType: 'qwen3_moe', config: () => ({ norm_topk_prob: true }) },
  { name: 'olmoe', modelType: 'olmoe' },
  {
    name: 'qwen3next',
    modelType: 'qwen3_next',
    ...QWEN_HYBRID,
    names: { ...QWEN_HYBRID.names, in_proj_ba: 'ssm_ba' },
  },
  { name: 'qwen35', modelType: 'qwen3_5_text', ...QWEN_HYBRID, headsAlternate: true },
  { name: 'qwen35moe', modelType: 'qwen3_5_moe_text', ...QWEN_HYBRID, headsAlternate: true },
  {
    name: 'gpt-oss',
    modelType: 'gpt_oss',
    names: { mlp_norm: 'post_attention_norm' },
    config: () => ({ sliding_window: 128 }),
    truncatesYarn: false,
  },
  { name: 'gemma', modelType: 'gemma', changes: GEMMA_CHANGES },
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
  {
    name: 'gemma-embedding',
    modelType: 'gemma3_text',
    className: 'Gemma3TextModel',
    classNames: ['Gemma3TextModel'],
    keys: ['attention.causal'],
    config: ({ headDim }) => ({ query_pre_attn_scalar: headDim }),
    changes: GEMMA_CHANGES,
    readsPattern: true,
  },
  {
    name: 'gemma4',
    modelType: 'gemma4_text',
    keys: ['final_logit_softcapping'],
    names: {
      per_layer_table: 'per_layer_token_embd',
      per_layer_projection: 'per_layer_model_proj',
      per_layer_norm: 'per_layer_proj_norm',
      per_layer_gate: 'inp_gate',
      per_layer_out: 'proj',
      per_layer_out_norm: 'post_norm',
      layer_scale: 'layer_output_scale.weight',
    },
    entries: {
      global_head_dim: 'attention.key_length',
      num_kv_shared_layers: 'attention.shared_kv_layers',
      hidden_size_per_layer_input: 'embedding_length_per_layer_input',
      top_k_experts: 'expert_used_count',
      moe_intermediate_size: 'expert_feed_forward_length',
    },
    experts: {
      router: 'ffn_gate_inp',
      scales: 'ffn_down_exps.scale',
      norms: {
        router: 'ffn_gate_inp.scale',
        experts: 'pre_ffw_norm_2.weight',
        expertsOut: 'post_ffw_norm_2.weight',
        sharedOut: 'post_ffw_norm_1.weight',
      },
      stacked: { gateUp: 'ffn_gate_up_exps.weight', down: 'ffn_down_exps.weight' },
      shared: { gate: 'ffn_gate', up: 'ffn_up', down: 'ffn_down' },
    },
    config: (_sizes, { kvHeads, mlpSizes, numExperts, lacksValues }) => ({
      num_global_key_value_heads: kvHeads.at(-1)!,
      attention_k_eq_v: lacksValues,
      use_double_wide_mlp: mlpSizes.at(-1) === 2 * mlpSizes[0],
      enable_moe_block: numExperts > 0,
    }),
    changes: GEMMA_CHANGES,
  },
  { name: 'command-r', modelType: 'cohere', ...COHERE },
  { name: 'cohere2', modelType: 'cohere2', ...COHERE },
  {
    name: 'starcoder2',
    modelType: 'starcoder2',
    // The window of all published models. GGUF files do not state it.
    config: () => ({ sliding_window: 4096 }),
    entries: { norm_epsilon: LAYER_NORM_EPS },
    normEpsKey: LAYER_NORM_EPS,
    changes: { hiddenAct: 'gelu_tanh' },
  },
  {
    name: 'stablelm',
    modelType: 'stablelm',
    needs: { 'ffn_norm.weight': 'layers whose attention and MLP run in parallel, as StableLM 2 12B has them' },
    entries: { layer_norm_eps: LAYER_NORM_EPS },
    normEpsKey: LAYER_NORM_EPS,
  },
  { name: 'lfm2', modelType: 'lfm2', ...LFM2 },
  {
    name: 'lfm2moe',
    modelType: 'lfm2_moe',
    ...LFM2,
    ...SIGMOID_EXPERTS,
  },
  { name: 'phi3', modelType: 'phi3' },
  { name: 'smollm3', modelType: 'smollm3', interleavesHeads: true, interleavesAllLayers: true },
  { name: 'granite', modelType: 'granite', ...GRANITE },
  { name: 'granitemoe', modelType: 'granitemoe', ...GRANITE },
  {
    name: 'granitehybrid',
    modelType: 'granitemoehybrid',
    ...GRANITE,
    interleavesAllLayers: true,
    names: { ...RECURRENT_NAMES, in_proj: 'ssm_in', skip: 'ssm_d' },
    entries: {
      mamba_n_heads: 'ssm.time_step_rank',
      mamba_n_groups: 'ssm.group_count',
      mamba_d_state: 'ssm.state_size',
      mamba_d_conv: 'ssm.conv_kernel',
      shared_intermediate_size: 'expert_shared_feed_forward_length',
    },
    config: (sizes, { kvHeads, mlpSizes }, metadata) => ({
      ...GRANITE.config(sizes),
      layer_types: kvHeads.map((count) => (count === 0 ? 'mamba' : 'attention')),
      mamba_expand: metadata.positiveInt('granitehybrid.ssm.inner_size', sizes.hiddenSize) / sizes.hiddenSize,
      position_embedding_type: metadata.boolean('granitehybrid.rope.scaling.finetuned', false) ? 'rope' : 'nope',
      num_local_experts: 0,
      shared_intermediate_size: mlpSizes.at(0) ?? null,
    }),
  },
  { name: 'olmo2', modelType: 'olmo2', variants: [{ key: 'attention.sliding_window', modelType: 'olmo3' }] },
  {
    name: 'exaone4',
    modelType: 'exaone4',
    config: ({ numLayers }) => (numLayers === 64 ? { sliding_window: 4096 } : {}),
  },
  { name: 'chatglm', modelType: 'glm', interleavesHeads: true },
  { name: 'glm4', modelType: 'glm4', interleavesHeads: true },
  {
    name: 'glm4moe',
    modelType: 'glm4_moe',
    ...GROUPED_EXPERTS,
    keys: [...GROUPED_EXPERTS.keys, 'nextn_predict_layers'],
    names: { mlp_norm: 'post_attention_norm' },
    config: (_sizes, { hasQkNorm }) => ({ use_qk_norm: hasQkNorm }),
  },
  { name: 'dots1', modelType: 'dots1', ...GROUPED_EXPERTS },
  { name: 'minimax-m2', modelType: 'minimax_m2', ...SIGMOID_EXPERTS },
  { name: 'seed_oss', modelType: 'seed_oss', names: { mlp_norm: 'post_attention_norm' } },
  { name: 'hunyuan-dense', modelType: 'hunyuan_v1_dense' },
  { name: 'ernie4_5', modelType: 'ernie4_5', interleavesHeads: true },
  {
    name: 'apertus',
    modelType: 'apertus',
    changes: { hiddenAct: 'xielu' },
    layerValues: {
      'mlp.act_fn.alpha_p': 'xielu.alpha_p',
      'mlp.act_fn.alpha_n': 'xielu.alpha_n',
      'mlp.act_fn.beta': 'xielu.beta',
    },
  },
  {
    // BERT, RoBERTa and XLM-R. The converter leaves out the positions that no token has.
    name: 'bert',
    modelType: 'bert',
    classNames: [
      ...['BertModel', 'RobertaModel', 'RobertaForSequenceClassification'],
      ...['XLMRobertaModel', 'XLMRobertaForSequenceClassification'],
    ],
    keys: ['attention.causal'],
    names: { ...BERT_NAMES, position_embeddings: 'position_embd' },
    entries: { layer_norm_eps: LAYER_NORM_EPS, max_position_embeddings: 'context_length' },
    config: (_sizes, _layers, metadata) => ({
      model_type: 'bert',
      type_vocab_size: metadata.positiveInt(BERT_TOKENS, 1),
    }),
    normEpsKey: LAYER_NORM_EPS,
    changes: { hiddenAct: 'gelu' },
  },
  {
    name: 'nomic-bert',
    modelType: 'nomic_bert',
    classNames: ['NomicBertModel'],
    keys: ['attention.causal'],
    names: BERT_NAMES,
    entries: { layer_norm_eps: LAYER_NORM_EPS },
    config: (_sizes, _layers, metadata) => ({ type_vocab_size: metadata.positiveInt(BERT_TOKENS, 1) }),
    normEpsKey: LAYER_NORM_EPS,
  },
  {
    name: 'modern-bert',
    modelType: 'modernbert',
    classNames: ['ModernBertModel', 'ModernBertForSequenceClassification'],
    keys: ['attention.causal'],
    names: { embed_norm: 'token_embd_norm' },
    entries: {
      norm_eps: LAYER_NORM_EPS,
      local_attention: 'attention.sliding_window',
      global_attn_every_n_layers: 'attention.sliding_window_pattern',
    },
    normEpsKey: LAYER_NORM_EPS,
    changes: { hiddenAct: 'gelu' },
    readsPattern: true,
  },
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
