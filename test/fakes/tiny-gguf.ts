/** GGUF files for tests, written by hand so that they can also be invalid. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TINY_TEMPLATE, tinyTokenizer } from './tiny-model';

/** A metadata value with its type. Arrays have the type of their elements. */
export type GgufValue =
  | { uint32: number }
  | { uint64: bigint }
  | { int32: number }
  | { uint16: number }
  | { float32: number }
  | { bool: boolean }
  | { string: string }
  | { strings: readonly string[] }
  | { int32s: readonly number[] }
  | { float32s: readonly number[] }
  | { bools: readonly boolean[] }
  | { uint8s: Uint8Array }
  | { raw: Uint8Array };

export interface GgufTensor {
  /** As in the file: the size of a row first. */
  sizes: readonly number[];
  /** Number of the type in ggml. Default: 0 (F32). */
  type?: number;
  /** Default: zeros. */
  bytes?: Uint8Array;
  /** Default: behind the tensor before. */
  offset?: number;
}

export interface GgufParts {
  magic?: string;
  version?: number;
  numTensors?: bigint;
  numValues?: bigint;
  metadata?: readonly (readonly [key: string, value: GgufValue])[];
  tensors?: readonly (readonly [name: string, tensor: GgufTensor])[];
  alignment?: number;
}

const ARRAY = 9;

export function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

export function u64(value: number | bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

export function ggufString(text: string): Buffer {
  const bytes = Buffer.from(text);
  return Buffer.concat([u64(bytes.length), bytes]);
}

function arrayOf(type: number, length: number, elements: Uint8Array): Buffer {
  return Buffer.concat([u32(ARRAY), u32(type), u64(length), elements]);
}

function valueBytes(value: GgufValue): Uint8Array {
  if ('uint16' in value) return Buffer.concat([u32(2), Buffer.from(Uint16Array.of(value.uint16).buffer)]);
  if ('uint32' in value) return Buffer.concat([u32(4), u32(value.uint32)]);
  if ('int32' in value) return Buffer.concat([u32(5), Buffer.from(Int32Array.of(value.int32).buffer)]);
  if ('float32' in value) return Buffer.concat([u32(6), Buffer.from(Float32Array.of(value.float32).buffer)]);
  if ('bool' in value) return Buffer.concat([u32(7), Buffer.of(value.bool ? 1 : 0)]);
  if ('string' in value) return Buffer.concat([u32(8), ggufString(value.string)]);
  if ('uint64' in value) return Buffer.concat([u32(10), u64(value.uint64)]);
  if ('strings' in value) return arrayOf(8, value.strings.length, Buffer.concat(value.strings.map(ggufString)));
  if ('int32s' in value) return arrayOf(5, value.int32s.length, Buffer.from(Int32Array.from(value.int32s).buffer));
  if ('float32s' in value)
    return arrayOf(6, value.float32s.length, Buffer.from(Float32Array.from(value.float32s).buffer));
  if ('bools' in value) return arrayOf(7, value.bools.length, Buffer.from(value.bools.map(Number)));
  if ('uint8s' in value) return arrayOf(0, value.uint8s.length, value.uint8s);
  return value.raw;
}

/** Sizes of the types that the tests use: elements and bytes of a block. */
const BLOCKS: Readonly<Record<number, readonly [size: number, bytes: number]>> = {
  0: [1, 4],
  1: [1, 2],
  8: [32, 34],
  16: [256, 66],
  30: [1, 2],
};

function tensorBytes({ sizes, type = 0, bytes }: GgufTensor): Uint8Array {
  if (bytes !== undefined) return bytes;
  const [size, blockBytes] = BLOCKS[type] ?? [1, 1];
  return new Uint8Array((sizes.reduce((product, n) => product * n, 1) / size) * blockBytes);
}

function alignUp(offset: number, alignment: number): number {
  return Math.ceil(offset / alignment) * alignment;
}

/** Returns the bytes of a file. */
export function ggufBytes(parts: GgufParts): Buffer {
  const { magic = 'GGUF', version = 3, metadata = [], tensors = [], alignment = 32 } = parts;
  const pieces: Uint8Array[] = [Buffer.from(magic), u32(version)];
  pieces.push(u64(parts.numTensors ?? tensors.length), u64(parts.numValues ?? metadata.length));
  for (const [key, value] of metadata) pieces.push(ggufString(key), valueBytes(value));
  let end = 0;
  const data: [number, Uint8Array][] = [];
  for (const [name, tensor] of tensors) {
    const { sizes, type = 0, offset = alignUp(end, alignment) } = tensor;
    const bytes = tensorBytes(tensor);
    pieces.push(ggufString(name), u32(sizes.length), ...sizes.map(u64), u32(type), u64(offset));
    data.push([offset, bytes]);
    end = Math.max(end, offset + bytes.length);
  }
  const header = Buffer.concat(pieces);
  const start = alignUp(header.length, alignment);
  const file = Buffer.alloc(start + end);
  header.copy(file);
  for (const [offset, bytes] of data) file.set(bytes, start + offset);
  return file;
}

/** Metadata of a tiny Qwen2 with the byte-level tokenizer of `tiny-model.ts`. */
export function tinyGgufMetadata(): [string, GgufValue][] {
  const { model, added_tokens: added } = tinyTokenizer() as {
    model: { vocab: Record<string, number> };
    added_tokens: { id: number; content: string; special: boolean }[];
  };
  const tokens = Array.from({ length: 272 }, (_, id) => `[PAD${id}]`);
  const types = new Array<number>(272).fill(5);
  for (const [token, id] of Object.entries(model.vocab)) {
    tokens[id] = token;
    types[id] = 1;
  }
  for (const { id, content, special } of added) {
    tokens[id] = content;
    types[id] = special ? 3 : 4;
  }
  return [
    ['general.architecture', { string: 'qwen2' }],
    ['general.name', { string: 'Tiny' }],
    ['qwen2.block_count', { uint32: 1 }],
    ['qwen2.context_length', { uint32: 4096 }],
    ['qwen2.embedding_length', { uint32: 8 }],
    ['qwen2.feed_forward_length', { uint32: 12 }],
    ['qwen2.attention.head_count', { uint32: 2 }],
    ['qwen2.attention.head_count_kv', { uint32: 1 }],
    ['qwen2.attention.layer_norm_rms_epsilon', { float32: 1e-6 }],
    ['qwen2.rope.freq_base', { float32: 10_000 }],
    ['tokenizer.ggml.model', { string: 'gpt2' }],
    ['tokenizer.ggml.pre', { string: 'qwen2' }],
    ['tokenizer.ggml.tokens', { strings: tokens }],
    ['tokenizer.ggml.token_type', { int32s: types }],
    ['tokenizer.ggml.merges', { strings: [] }],
    ['tokenizer.ggml.eos_token_id', { uint32: 258 }],
    ['tokenizer.ggml.bos_token_id', { uint32: 256 }],
    ['tokenizer.ggml.add_bos_token', { bool: false }],
    ['tokenizer.chat_template', { string: TINY_TEMPLATE }],
  ];
}

export function tinyGgufTensors(): [string, GgufTensor][] {
  const layer = (name: string) => `blk.0.${name}`;
  return [
    ['token_embd.weight', { sizes: [8, 272] }],
    ['output_norm.weight', { sizes: [8] }],
    [layer('attn_norm.weight'), { sizes: [8] }],
    [layer('ffn_norm.weight'), { sizes: [8] }],
    [layer('attn_q.weight'), { sizes: [8, 8] }],
    [layer('attn_q.bias'), { sizes: [8] }],
    [layer('attn_k.weight'), { sizes: [8, 4] }],
    [layer('attn_k.bias'), { sizes: [4] }],
    [layer('attn_v.weight'), { sizes: [8, 4] }],
    [layer('attn_v.bias'), { sizes: [4] }],
    [layer('attn_output.weight'), { sizes: [8, 8] }],
    [layer('ffn_gate.weight'), { sizes: [8, 12] }],
    [layer('ffn_up.weight'), { sizes: [8, 12] }],
    [layer('ffn_down.weight'), { sizes: [12, 8] }],
  ];
}

/** Changes of metadata: a value replaces or adds a key, null removes it. */
export type MetadataChanges = Readonly<Record<string, GgufValue | null>>;

export function changedMetadata(changes: MetadataChanges, base = tinyGgufMetadata()): [string, GgufValue][] {
  const values = new Map(base);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) values.delete(key);
    else values.set(key, value);
  }
  return [...values];
}

/** Writes a complete tiny model and returns its path. */
export function tinyGguf(
  changes: MetadataChanges = {},
  changeTensors: (tensors: Map<string, GgufTensor>) => void = () => {},
  name = 'tiny.gguf',
): string {
  const tensors = new Map(tinyGgufTensors());
  changeTensors(tensors);
  return writeGguf(ggufBytes({ metadata: changedMetadata(changes), tensors: [...tensors] }), name);
}

/** Writes a file into a new folder. */
export function writeGguf(bytes: Uint8Array, name = 'tiny.gguf'): string {
  const path = join(mkdtempSync(join(tmpdir(), 'capstan-gguf-')), name);
  writeFileSync(path, bytes);
  return path;
}
