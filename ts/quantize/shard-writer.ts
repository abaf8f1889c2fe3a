import { type FileHandle, open } from 'node:fs/promises';
import { basename } from 'node:path';
import { loadAddon } from '../addon';
import { throwIfAborted, writeFully } from '../hub/system';
import { readFully } from '../model/weight-file';
import type { PlannedMatrix, QuantizePlan, SourceTensor } from './plan';
import type { NewTensor, Shard } from './shards';

/** A tensor of the new checkpoint and what it is made of. */
export type PlannedTensor = NewTensor &
  (
    | { kind: 'copy'; source: SourceTensor }
    | { kind: 'codes'; matrix: PlannedMatrix; scalesName: string }
    | { kind: 'scales' | 'shape'; matrix: PlannedMatrix }
  );

/** Bounds the memory of one piece of a matrix, and how long an abort takes. */
const CHUNK_ELEMENTS = 4 << 20;
const COPY_BYTES = 8 << 20;

/** Returns the tensors of the new checkpoint; those of one matrix together. */
export function entriesOf({ matrices, copied }: Pick<QuantizePlan, 'matrices' | 'copied'>): PlannedTensor[][] {
  return [
    ...matrices.map(entryOf),
    ...copied.map((source): PlannedTensor[] => {
      const { name, dtype, shape, numBytes } = source;
      return [{ kind: 'copy', name, dtype, shape, numBytes, source }];
    }),
  ];
}

/** The names and types of compressed-tensors, compressors/pack_quantized. */
function entryOf(matrix: PlannedMatrix): PlannedTensor[] {
  const { module, rows, cols, scheme } = matrix;
  const words = (cols * scheme.bits) / 32;
  const groups = cols / scheme.groupSize;
  const scalesName = `${module}.weight_scale`;
  const name = `${module}.weight_packed`;
  return [
    { kind: 'codes', name, dtype: 'I32', shape: [rows, words], numBytes: rows * words * 4, matrix, scalesName },
    { kind: 'scales', name: scalesName, dtype: 'F16', shape: [rows, groups], numBytes: rows * groups * 2, matrix },
    { kind: 'shape', name: `${module}.weight_shape`, dtype: 'I64', shape: [2], numBytes: 16, matrix },
  ];
}

/** Writes the files of a checkpoint. */
export class ShardWriter {
  readonly #inputs = new Map<number, FileHandle>();

  /** @param onBytes Receives the bytes that were written since the last call. */
  constructor(
    private readonly files: readonly string[],
    private readonly signal: AbortSignal | undefined,
    private readonly onBytes: (bytes: number) => void,
  ) {}

  async write(shard: Shard<PlannedTensor>, path: string): Promise<void> {
    const output = await open(path, 'wx');
    try {
      const put = async (bytes: Uint8Array, position: number): Promise<void> => {
        await writeFully(output, bytes, position);
        this.onBytes(bytes.length);
      };
      await put(shard.header, 0);
      const places = new Map(shard.tensors.map(({ tensor, offset }) => [tensor.name, offset]));
      for (const { tensor, offset } of shard.tensors) {
        if (tensor.kind === 'copy') await this.#copy(tensor.source, (bytes, at) => put(bytes, offset + at));
        if (tensor.kind === 'shape') await put(shapeBytes(tensor.matrix), offset);
        if (tensor.kind === 'codes')
          await this.#quantize(tensor.matrix, { codes: offset, scales: places.get(tensor.scalesName)! }, put);
      }
      await output.sync();
    } finally {
      await output.close();
    }
  }

  async close(): Promise<void> {
    for (const handle of this.#inputs.values()) await handle.close();
  }

  async #copy(source: SourceTensor, put: (bytes: Uint8Array, at: number) => Promise<void>): Promise<void> {
    const handle = await this.#input(source.file);
    const buffer = Buffer.alloc(Math.min(COPY_BYTES, source.numBytes));
    const file = { handle, name: basename(this.files[source.file]), size: 0 };
    for (let done = 0; done < source.numBytes; done += buffer.length) {
      throwIfAborted(this.signal, 'quantization');
      const bytes = buffer.subarray(0, Math.min(buffer.length, source.numBytes - done));
      await readFully(file, bytes, source.offset + done);
      await put(bytes, done);
    }
  }

  async #quantize(
    { source, dtype, rows, cols, scheme }: PlannedMatrix,
    places: { codes: number; scales: number },
    put: (bytes: Uint8Array, position: number) => Promise<void>,
  ): Promise<void> {
    const { fd } = await this.#input(source.file);
    const rowsAtOnce = Math.max(1, Math.floor(CHUNK_ELEMENTS / cols));
    for (let rowBegin = 0; rowBegin < rows; rowBegin += rowsAtOnce) {
      throwIfAborted(this.signal, 'quantization');
      const { codes, scales } = await loadAddon().quantizeRows({
        name: source.name,
        descriptor: fd,
        offset: source.offset,
        dtype,
        rows,
        cols,
        rowBegin,
        numRows: Math.min(rowsAtOnce, rows - rowBegin),
        ...scheme,
      });
      await put(codes, places.codes + ((rowBegin * cols) / 8) * scheme.bits);
      await put(scales, places.scales + rowBegin * (cols / scheme.groupSize) * 2);
    }
  }

  async #input(file: number): Promise<FileHandle> {
    const handle = this.#inputs.get(file) ?? (await open(this.files[file], 'r'));
    this.#inputs.set(file, handle);
    return handle;
  }
}

function shapeBytes({ rows, cols }: PlannedMatrix): Buffer {
  const bytes = Buffer.alloc(16);
  bytes.writeBigInt64LE(BigInt(rows), 0);
  bytes.writeBigInt64LE(BigInt(cols), 8);
  return bytes;
}
