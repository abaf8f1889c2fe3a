/** Model directories for tests: real files with few weights. */
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface TinyTensor {
  dtype: string;
  shape: number[];
  /** Default: zeros. */
  bytes?: Uint8Array;
}

export const TINY_CONFIG = {
  architectures: ['Qwen2ForCausalLM'],
  model_type: 'qwen2',
  hidden_size: 8,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  intermediate_size: 12,
  vocab_size: 272,
  max_position_embeddings: 4096,
  rope_theta: 10000,
  rms_norm_eps: 1e-6,
  hidden_act: 'silu',
  tie_word_embeddings: true,
  torch_dtype: 'float32',
  eos_token_id: 258,
};

export const TINY_TEMPLATE = `{%- if tools %}{{- '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ 'Answer with <tool_call> and </tool_call>.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}`;

const SPECIAL_TOKENS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
const MARKERS = ['<tool_call>', '</tool_call>', '<think>', '</think>'];

/** A byte-level tokenizer without merges: token id = byte. Added tokens start at 256. */
export function tinyTokenizer(): Record<string, unknown> {
  const vocab: Record<string, number> = {};
  let numShifted = 0;
  for (let byte = 0; byte < 256; byte++) {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocab[String.fromCodePoint(isPrintable ? byte : 256 + numShifted++)] = byte;
  }
  const added = [...SPECIAL_TOKENS, ...MARKERS].map((content, i) => ({
    id: 256 + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: SPECIAL_TOKENS.includes(content),
  }));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges: [],
    },
  };
}

export function tinyTensors(): Record<string, TinyTensor> {
  const f32 = (...shape: number[]): TinyTensor => ({ dtype: 'F32', shape });
  const layer = (name: string) => `model.layers.0.${name}`;
  return {
    'model.embed_tokens.weight': f32(272, 8),
    'model.norm.weight': f32(8),
    [layer('input_layernorm.weight')]: f32(8),
    [layer('post_attention_layernorm.weight')]: f32(8),
    [layer('self_attn.q_proj.weight')]: f32(8, 8),
    [layer('self_attn.q_proj.bias')]: f32(8),
    [layer('self_attn.k_proj.weight')]: f32(4, 8),
    [layer('self_attn.k_proj.bias')]: f32(4),
    [layer('self_attn.v_proj.weight')]: f32(4, 8),
    [layer('self_attn.v_proj.bias')]: f32(4),
    [layer('self_attn.o_proj.weight')]: f32(8, 8),
    [layer('mlp.gate_proj.weight')]: f32(12, 8),
    [layer('mlp.up_proj.weight')]: f32(12, 8),
    [layer('mlp.down_proj.weight')]: f32(8, 12),
  };
}

const DTYPE_BYTES: Record<string, number> = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I8: 1, U8: 1 };

/** Returns the bytes of a safetensors file. `patchHeader` can make it invalid. */
export function safetensors(
  tensors: Record<string, TinyTensor>,
  patchHeader: (header: any) => void = () => {},
): Buffer {
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  const pieces: Uint8Array[] = [];
  let offset = 0;
  for (const [name, { dtype, shape, bytes }] of Object.entries(tensors)) {
    const piece = bytes ?? new Uint8Array(shape.reduce((product, size) => product * size, DTYPE_BYTES[dtype]));
    header[name] = { dtype, shape, data_offsets: [offset, offset + piece.length] };
    offset += piece.length;
    pieces.push(piece);
  }
  patchHeader(header);
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...pieces]);
}

export type TinyFiles = Record<string, string | Uint8Array | Record<string, unknown> | null>;

/** Creates a complete directory. `files` replaces, adds or (null) omits files. */
export function tinyModel(changes: TinyFiles = {}): string {
  const dir = mkdtempSync(join(tmpdir(), 'capstan-model-'));
  const files: TinyFiles = {
    'config.json': TINY_CONFIG,
    'generation_config.json': { eos_token_id: [258, 256] },
    'tokenizer.json': tinyTokenizer(),
    'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: TINY_TEMPLATE },
    'model.safetensors': safetensors(tinyTensors()),
    ...changes,
  };
  for (const [name, content] of Object.entries(files)) {
    if (content === null) continue;
    const path = join(dir, name);
    mkdirSync(join(path, '..'), { recursive: true });
    writeFileSync(
      path,
      typeof content === 'string' || content instanceof Uint8Array ? content : JSON.stringify(content),
    );
  }
  return dir;
}
