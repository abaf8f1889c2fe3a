import { basename } from 'node:path';
import type { NativeArray, NativeTensor } from '../addon-types';
import type { Checkpoint } from './checkpoint';
import type { ModelConfig } from './config';
import { readFully, type WeightFile, withWeightFile } from './weight-file';

type Weights = { config: ModelConfig; checkpoint: Checkpoint };

const CHUNK_BYTES = 4 << 20;
const SCALE_BYTES: Partial<Record<NativeArray['dtype'], number>> = { f32: 4, f16: 2, bf16: 2 };

/**
 * Ties the head to the embedding if a quantized checkpoint holds the same codes and scales for both. transformers cannot
 * tie quantized matrices, so such a checkpoint holds them twice; memory need not.
 */
export async function withSharedHead(weights: Weights): Promise<Weights> {
  const { config, checkpoint } = weights;
  const { files, tensors } = checkpoint;
  const embedding = tensors.find(({ name }) => name === 'embed_tokens.weight');
  const head = tensors.find(({ name }) => name === 'lm_head.weight');
  if (config.spec.tieWordEmbeddings || embedding === undefined || head === undefined) return weights;
  if (!(await areSame(embedding, head, files))) return weights;
  const [rows, cols] = head.shape;
  return {
    config: { ...config, spec: { ...config.spec, tieWordEmbeddings: true } },
    checkpoint: {
      ...checkpoint,
      tensors: tensors.filter((tensor) => tensor !== head),
      numParameters: checkpoint.numParameters - rows * cols,
    },
  };
}

/** Compares tensors with the layout `rows` and symmetric codes; others are never the same. */
async function areSame(a: NativeTensor, b: NativeTensor, files: readonly string[]): Promise<boolean> {
  const [first, second] = [rangesOf(a), rangesOf(b)];
  if (first === undefined || second === undefined || describe(a) !== describe(b)) return false;
  for (const [i, range] of first.entries()) if (!(await areSameBytes(range, second[i], files))) return false;
  return true;
}

function describe({ dtype, shape, groups }: NativeTensor): string {
  return JSON.stringify([dtype, shape, groups?.bits, groups?.groupRows, groups?.groupCols, groups?.scales.dtype]);
}

interface Range {
  file: number;
  offset: number;
  numBytes: number;
}

function rangesOf({ dtype, shape: [rows, cols], file, offset, groups }: NativeTensor): Range[] | undefined {
  if (dtype !== 'rows' || groups === undefined || groups.zeros !== undefined || groups.groupIndex !== undefined)
    return undefined;
  const { bits, groupRows, groupCols, scales } = groups;
  const numScales = Math.ceil(rows / groupRows) * Math.ceil(cols / groupCols);
  const scaleBytes = SCALE_BYTES[scales.dtype];
  if (scaleBytes === undefined) return undefined;
  return [
    { file: scales.file, offset: scales.offset, numBytes: numScales * scaleBytes },
    { file, offset, numBytes: rows * Math.ceil((cols * bits) / 32) * 4 },
  ];
}

async function areSameBytes(a: Range, b: Range, files: readonly string[]): Promise<boolean> {
  const open = <T>(range: Range, use: (file: WeightFile) => Promise<T>): Promise<T> =>
    withWeightFile(files[range.file], basename(files[range.file]), use);
  const [left, right] = [Buffer.alloc(CHUNK_BYTES), Buffer.alloc(CHUNK_BYTES)];
  return open(a, (first) =>
    open(b, async (second) => {
      for (let done = 0; done < a.numBytes; done += CHUNK_BYTES) {
        const size = Math.min(CHUNK_BYTES, a.numBytes - done);
        const [x, y] = [left.subarray(0, size), right.subarray(0, size)];
        await Promise.all([readFully(first, x, a.offset + done), readFully(second, y, b.offset + done)]);
        if (!x.equals(y)) return false;
      }
      return true;
    }),
  );
}
