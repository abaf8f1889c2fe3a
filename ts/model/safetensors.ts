import { basename } from 'node:path';
import { showValue } from '../errors';
import { type JsonObject, parseJsonObject } from './json-file';
import { invalidFile as invalid, readFully, type StoredTensor, type WeightFile, withWeightFile } from './weight-file';

const HEADER_LENGTH_BYTES = 8;
/** Limit of the reference implementation (huggingface/safetensors). */
const MAX_HEADER_BYTES = 100_000_000;

/** Bits per element of every data type of the format. */
const DTYPE_BITS: Readonly<Record<string, number>> = {
  F64: 64,
  F32: 32,
  F16: 16,
  BF16: 16,
  I64: 64,
  I32: 32,
  I16: 16,
  I8: 8,
  U64: 64,
  U32: 32,
  U16: 16,
  U8: 8,
  BOOL: 8,
  C64: 64,
  F8_E4M3: 8,
  F8_E5M2: 8,
  F8_E8M0: 8,
  F6_E2M3: 6,
  F6_E3M2: 6,
  F4: 4,
};

/**
 * Reads the header of a safetensors file. The file is an 8-byte little-endian header length, the header as JSON, then
 * the bytes of the tensors without gaps.
 * @param name Names the file in errors.
 * @throws CapstanError `invalid_model` that names the file and the tensor, or `io_error`.
 */
export async function readSafetensorsHeader(path: string, name = basename(path)): Promise<Map<string, StoredTensor>> {
  return withWeightFile(path, name, async (file) => {
    const headerBytes = await readHeaderLength(file);
    const header = Buffer.alloc(headerBytes);
    await readFully(file, header, HEADER_LENGTH_BYTES);
    const json = parseJsonObject(header.toString('utf8'), `${file.name}: header`);
    return parseHeader(json, file.name, HEADER_LENGTH_BYTES + headerBytes, file.size);
  });
}

async function readHeaderLength(file: WeightFile): Promise<number> {
  const { name, size } = file;
  if (size < HEADER_LENGTH_BYTES) throw invalid(name, `at least ${HEADER_LENGTH_BYTES} bytes`, `${size} bytes`);
  const bytes = Buffer.alloc(HEADER_LENGTH_BYTES);
  await readFully(file, bytes, 0);
  const length = bytes.readBigUInt64LE();
  const limit = Math.min(size - HEADER_LENGTH_BYTES, MAX_HEADER_BYTES);
  if (length > BigInt(limit))
    throw invalid(name, `a header of at most ${limit} bytes in a file of ${size}`, `a header length of ${length}`);
  return Number(length);
}

function parseHeader(header: JsonObject, file: string, dataStart: number, fileSize: number): Map<string, StoredTensor> {
  const tensors = new Map<string, StoredTensor>();
  for (const [tensor, entry] of Object.entries(header)) {
    if (tensor !== '__metadata__') tensors.set(tensor, parseTensor(entry, `${file}: ${tensor}`, dataStart, fileSize));
  }
  checkLayout(tensors, file, dataStart);
  return tensors;
}

function parseTensor(entry: unknown, where: string, dataStart: number, fileSize: number): StoredTensor {
  const {
    dtype,
    shape,
    data_offsets: offsets,
  } = (entry ?? {}) as { dtype?: unknown; shape?: unknown; data_offsets?: unknown };
  if (typeof dtype !== 'string' || !Object.hasOwn(DTYPE_BITS, dtype))
    throw invalid(where, `one of the data types ${Object.keys(DTYPE_BITS).join(', ')}`, showValue(dtype));
  if (!isCounts(shape)) throw invalid(where, 'a shape of integers of 0 or more', showList(shape));
  if (!isCounts(offsets) || offsets.length !== 2)
    throw invalid(where, 'two data offsets of 0 or more', showList(offsets));
  const [begin, end] = offsets;
  const numBytes = end - begin;
  const expectedBytes = Math.ceil((shape.reduce((product, size) => product * size, 1) * DTYPE_BITS[dtype]) / 8);
  if (numBytes !== expectedBytes)
    throw invalid(where, `${expectedBytes} bytes for ${dtype} ${showList(shape)}`, `offsets ${begin} to ${end}`);
  if (dataStart + end > fileSize)
    throw invalid(
      where,
      `data that ends within the file's ${fileSize} bytes`,
      `an end at byte ${dataStart + end}: the file is truncated, download it again`,
    );
  return { dtype, shape, offset: dataStart + begin, numBytes };
}

/** The format requires that tensors follow each other without overlap or gap. */
function checkLayout(tensors: Map<string, StoredTensor>, file: string, dataStart: number): void {
  let end = dataStart;
  const inOrder = [...tensors].sort(([, a], [, b]) => a.offset - b.offset || a.numBytes - b.numBytes);
  for (const [tensor, { offset, numBytes }] of inOrder) {
    if (offset !== end)
      throw invalid(
        `${file}: ${tensor}`,
        `data that starts at ${end - dataStart}, the end of the previous tensor`,
        `an offset of ${offset - dataStart}`,
      );
    end = offset + numBytes;
  }
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && (item as number) >= 0);
}

function showList(value: unknown): string {
  return Array.isArray(value) && value.length <= 8
    ? `[${value.map((item) => showValue(item)).join(', ')}]`
    : showValue(value);
}
