/** A GGUF architecture. To support another one, add a row to `ARCHITECTURES`. */
export interface GgufArchitecture {
  /** `general.architecture`, and the prefix of its metadata keys. */
  name: string;
  /** `modelType` of its family in `ts/model/families.ts`. */
  modelType: string;
  /** Whether the rows of Q and K are stored as pairs (`NativeTensor.interleavedHeadDim`). */
  interleavesHeads: boolean;
}

export const ARCHITECTURES: readonly GgufArchitecture[] = [
  // Mistral too: the converter of llama.cpp writes it as llama.
  { name: 'llama', modelType: 'llama', interleavesHeads: true },
  { name: 'qwen2', modelType: 'qwen2', interleavesHeads: false },
  { name: 'qwen3', modelType: 'qwen3', interleavesHeads: false },
];

/** Names of tensors in GGUF by their canonical name, without the layer's number and without `weight` or `bias`. */
const TENSOR_NAMES: Readonly<Record<string, string>> = {
  embed_tokens: 'token_embd',
  norm: 'output_norm',
  lm_head: 'output',
  input_norm: 'attn_norm',
  mlp_norm: 'ffn_norm',
  q_proj: 'attn_q',
  k_proj: 'attn_k',
  v_proj: 'attn_v',
  o_proj: 'attn_output',
  q_norm: 'attn_q_norm',
  k_norm: 'attn_k_norm',
  gate_proj: 'ffn_gate',
  up_proj: 'ffn_up',
  down_proj: 'ffn_down',
};

/** Divisors of the rotary frequencies: how GGUF stores the scaling of Llama 3. */
export const ROPE_DIVISORS_TENSOR = 'rope_freqs.weight';

/** Returns the name in GGUF of a canonical name such as `layers.0.q_proj.weight`. */
export function ggufTensorName(canonical: string): string {
  const match = /^(?:layers\.(\d+)\.)?(\w+)\.(weight|bias)$/.exec(canonical)!;
  const [, layer, stem, kind] = match;
  return `${layer === undefined ? '' : `blk.${layer}.`}${TENSOR_NAMES[stem]}.${kind}`;
}
