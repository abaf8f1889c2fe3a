/** The bytes of a tensor in a new file come from `write`. */
export interface NewTensor {
  name: string;
  dtype: string;
  shape: number[];
  numBytes: number;
}

/** One file of a new checkpoint. */
export interface Shard<T extends NewTensor> {
  fileName: string;
  /** The length of the header and the header of a safetensors file. */
  header: Buffer;
  /** With the place of their bytes in the file. */
  tensors: { tensor: T; offset: number }[];
  numBytes: number;
}

const ELEMENT_BYTES: Readonly<Record<string, number>> = { I64: 8, F64: 8, U64: 8, F32: 4, I32: 4, U32: 4 };
const ALIGNMENT = 8;

/**
 * Distributes tensors to files of at most `maxBytes`, unless one matrix is larger. Tensors of one entry stay together.
 */
export function planShards<T extends NewTensor>(entries: readonly (readonly T[])[], maxBytes: number): Shard<T>[] {
  const parts: T[][] = [];
  let size = 0; // of the last part
  for (const tensors of entries) {
    const bytes = sumOf(tensors);
    if (parts.length === 0 || size + bytes > maxBytes) {
      parts.push([]);
      size = 0;
    }
    parts.at(-1)!.push(...tensors);
    size += bytes;
  }
  const count = parts.length;
  const number = (value: number): string => String(value).padStart(5, '0');
  return parts.map((tensors, i) =>
    makeShard(tensors, count === 1 ? 'model.safetensors' : `model-${number(i + 1)}-of-${number(count)}.safetensors`),
  );
}

/** Large elements come first, so that all are aligned. */
function makeShard<T extends NewTensor>(tensors: readonly T[], fileName: string): Shard<T> {
  const elementBytes = ({ dtype }: NewTensor): number => ELEMENT_BYTES[dtype] ?? 1;
  const ordered = [...tensors].sort((a, b) => elementBytes(b) - elementBytes(a));
  const json: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  const places: { tensor: T; offset: number }[] = [];
  let end = 0;
  for (const tensor of ordered) {
    const { name, dtype, shape, numBytes } = tensor;
    json[name] = { dtype, shape, data_offsets: [end, end + numBytes] };
    places.push({ tensor, offset: end });
    end += numBytes;
  }
  const text = Buffer.from(JSON.stringify(json));
  const padded = Math.ceil(text.length / ALIGNMENT) * ALIGNMENT;
  const header = Buffer.alloc(ALIGNMENT + padded, ' ');
  header.writeBigUInt64LE(BigInt(padded));
  text.copy(header, ALIGNMENT);
  for (const place of places) place.offset += header.length;
  return { fileName, header, tensors: places, numBytes: header.length + end };
}

function sumOf(tensors: readonly NewTensor[]): number {
  return tensors.reduce((sum, { numBytes }) => sum + numBytes, 0);
}

/** Returns the content of `model.safetensors.index.json`. */
export function indexOf(shards: readonly Shard<NewTensor>[]): object {
  const tensors = shards.flatMap((shard) => shard.tensors.map(({ tensor }) => ({ tensor, file: shard.fileName })));
  return {
    metadata: { total_size: sumOf(tensors.map(({ tensor }) => tensor)) },
    weight_map: Object.fromEntries(tensors.map(({ tensor, file }) => [tensor.name, file])),
  };
}
