import { basename } from 'node:path';
import { PREFIXES, type StoredTensors } from './checkpoint';
import type { ModelConfig } from './config';
import type { FoundTensor } from './quantized-tensor';
import { readFully, type WeightFile, withWeightFile } from './weight-file';

const CHUNK_BYTES = 4 * 2 ** 20;
const HEADS = ['lm_head.weight', 'language_model.lm_head.weight'];
const EMBEDDING = 'embed_tokens.weight';

/**
 * A config says that the LM head is the embedding, but the files decide, as in transformers: a head with other values
 * is used unchanged, and a head without an embedding is the embedding too, which is added to `stored`.
 */
export async function withStoredHead(config: ModelConfig, stored: StoredTensors): Promise<ModelConfig> {
  const { spec, pooling, quantization } = config;
  const usesHead = pooling === undefined || pooling.activation === 'yes_no';
  if (!spec.tieWordEmbeddings || !usesHead || quantization !== undefined) return config;
  const head = HEADS.map((name) => stored.found.get(name)).find((tensor) => tensor !== undefined);
  if (head === undefined) return config;
  const embedding = PREFIXES.map((prefix) => stored.found.get(prefix + EMBEDDING)).find(
    (tensor) => tensor !== undefined,
  );
  if (embedding === undefined) {
    const names = [...stored.found.keys()];
    const prefix = PREFIXES.find((candidate) => names.some((name) => name.startsWith(`${candidate}layers.`)));
    stored.found.set((prefix ?? PREFIXES[0]) + EMBEDDING, head);
    return config;
  }
  if (await haveEqualBytes(stored.files, head, embedding)) return config;
  return { ...config, spec: { ...spec, tieWordEmbeddings: false } };
}

async function haveEqualBytes(files: readonly string[], one: FoundTensor, other: FoundTensor): Promise<boolean> {
  if (one.dtype !== other.dtype || one.numBytes !== other.numBytes) return false;
  return withFileOf(files, one, (first) => withFileOf(files, other, (second) => isEqual(first, one, second, other)));
}

function withFileOf<T>(files: readonly string[], { file }: FoundTensor, use: (file: WeightFile) => Promise<T>) {
  return withWeightFile(files[file], basename(files[file]), use);
}

async function isEqual(first: WeightFile, one: FoundTensor, second: WeightFile, other: FoundTensor): Promise<boolean> {
  const [a, b] = [Buffer.alloc(CHUNK_BYTES), Buffer.alloc(CHUNK_BYTES)];
  for (let start = 0; start < one.numBytes; start += CHUNK_BYTES) {
    const [left, right] = [a, b].map((buffer) => buffer.subarray(0, Math.min(CHUNK_BYTES, one.numBytes - start)));
    await Promise.all([readFully(first, left, one.offset + start), readFully(second, right, other.offset + start)]);
    if (!left.equals(right)) return false;
  }
  return true;
}
