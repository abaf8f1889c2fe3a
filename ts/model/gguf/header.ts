import { type CapstanError, showValue } from '../../errors';
import { invalidFile, type StoredTensor, unsupportedFile, type WeightFile, withWeightFile } from '../weight-file';
import { ByteReader } from './byte-reader';
import { type Metadata, MetadataReader, type StoredValues } from './metadata';
import { REMOVED_TYPES, tensorType } from './tensor-types';

/** What a GGUF file holds besides the bytes of its tensors. */
export interface GgufHeader {
  /** The name of the file. */
  name: string;
  metadata: Metadata;
  /** Numbers in F32 in the metadata, by their key. */
  values: ReadonlyMap<string, StoredValues>;
  tensors: Map<string, StoredTensor>;
}

const MAGIC = 'GGUF';
const VERSIONS = [2, 3];
/** Metadata and tensor table. Files with the largest vocabularies in use have about 20 MB. */
export const MAX_HEADER_BYTES = 64 << 20;
const MAX_TENSORS = 65_536;
const MAX_TENSOR_NAME_BYTES = 1024;
const MAX_DIMENSIONS = 4;
const DEFAULT_ALIGNMENT = 32;
const MAX_ALIGNMENT = 1 << 20;

/**
 * Reads metadata and tensor table of a GGUF file (ggml-org/ggml, docs/gguf.md), versions 2 and 3. The bytes of the
 * tensors are not read.
 * @param isWanted Which arrays of the metadata are kept. Default: all.
 * @throws CapstanError `invalid_model` that names the file and the key or tensor, or `io_error`.
 */
export async function readGgufHeader(
  path: string,
  name: string,
  isWanted: (key: string) => boolean = () => true,
): Promise<GgufHeader> {
  return withWeightFile(path, name, (file) => readHeader(file, isWanted));
}

/** {@link readGgufHeader} of a file that is open. Its bytes are read in order. */
export async function readHeader(file: WeightFile, isWanted: (key: string) => boolean): Promise<GgufHeader> {
  const { name } = file;
  const reader = new ByteReader(file, MAX_HEADER_BYTES);
  await checkMagic(reader, file);
  const numTensors = reader.takeUint64();
  const numValues = reader.takeUint64();
  const strings = new MetadataReader(reader, name, isWanted);
  const metadata = await strings.read(numValues);
  const tensors = await readTensorTable(reader, strings, file, numTensors);
  placeTensors(tensors, file, alignUp(reader.position, readAlignment(metadata, name)), readAlignment(metadata, name));
  return { name, metadata, values: strings.values, tensors };
}

/** Leaves the two counts of the header in the buffer. */
async function checkMagic(reader: ByteReader, { name }: WeightFile): Promise<void> {
  await reader.need(8, 'header');
  const magic = reader.takeText(4);
  if (magic !== MAGIC) {
    const hint = /\.gguf$/i.test(name) ? '' : '. Name the folder of a model directory, not a file in it';
    const received = `a file that starts with ${showValue(magic)}${hint}`;
    throw invalidFile(name, `a GGUF file, which starts with ${MAGIC}`, received);
  }
  const version = reader.takeUint32();
  if (VERSIONS.includes(swapBytes(version)))
    throw invalidFile(name, 'a little-endian GGUF file', 'a big-endian one: download the little-endian file');
  if (!VERSIONS.includes(version))
    throw invalidFile(name, `GGUF version ${VERSIONS.join(' or ')}`, `version ${version}`);
  await reader.need(16, 'header');
}

function swapBytes(value: number): number {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes.readUInt32BE();
}

function readAlignment(metadata: Metadata, name: string): number {
  const alignment = metadata['general.alignment'] ?? DEFAULT_ALIGNMENT;
  const isPowerOfTwo = typeof alignment === 'number' && Number.isInteger(Math.log2(alignment));
  if (!isPowerOfTwo || alignment < 1 || alignment > MAX_ALIGNMENT)
    throw invalidFile(
      `${name}: general.alignment`,
      `a power of two from 1 to ${MAX_ALIGNMENT}`,
      typeof alignment === 'number' ? String(alignment) : 'another type',
    );
  return alignment;
}

function alignUp(offset: number, alignment: number): number {
  return Math.ceil(offset / alignment) * alignment;
}

/** The offsets in the table count from the end of the header. */
async function readTensorTable(
  reader: ByteReader,
  strings: MetadataReader,
  file: WeightFile,
  count: bigint,
): Promise<Map<string, StoredTensor>> {
  if (count > MAX_TENSORS) throw invalidFile(file.name, `at most ${MAX_TENSORS} tensors`, `a count of ${count}`);
  const tensors = new Map<string, StoredTensor>();
  for (let i = 0; i < count; i++) {
    const tensor = await strings.readString(`tensor name ${i}`, MAX_TENSOR_NAME_BYTES);
    const where = `${file.name}: ${tensor}`;
    if (tensors.has(tensor)) throw invalidFile(where, 'each tensor once', 'the name twice');
    const shape = await readShape(reader, where);
    await reader.need(12, where);
    const { dtype, numBytes } = readType(reader.takeUint32(), shape, where);
    const offset = reader.takeUint64();
    if (offset > file.size)
      throw invalidFile(
        where,
        `data within the file's ${file.size} bytes`,
        `an offset of ${offset}: the file is truncated, download it again`,
      );
    tensors.set(tensor, { dtype, shape, offset: Number(offset), numBytes });
  }
  return tensors;
}

/** The file has the size of a row first. */
async function readShape(reader: ByteReader, where: string): Promise<number[]> {
  await reader.need(4, where);
  const numDimensions = reader.takeUint32();
  if (numDimensions < 1 || numDimensions > MAX_DIMENSIONS)
    throw invalidFile(where, `1 to ${MAX_DIMENSIONS} dimensions`, String(numDimensions));
  const shape: number[] = [];
  let numElements = 1;
  for (let i = 0; i < numDimensions; i++) {
    await reader.need(8, where);
    const size = Number(reader.takeUint64());
    numElements *= size;
    if (size < 1 || !Number.isSafeInteger(numElements))
      throw invalidFile(where, 'sizes of 1 or more with a product below 2^53', `a size of ${size}`);
    shape.unshift(size);
  }
  return shape;
}

function readType(id: number, shape: readonly number[], where: string): { dtype: string; numBytes: number } {
  const type = tensorType(id);
  if (type === undefined) throw unknownType(id, where);
  const row = shape[shape.length - 1];
  if (row % type.size !== 0)
    throw invalidFile(where, `rows of a multiple of ${type.size} elements for ${type.name}`, `rows of ${row}`);
  const numBlocks = shape.reduce((product, size) => product * size, 1) / type.size;
  return { dtype: type.name, numBytes: numBlocks * type.bytes };
}

function unknownType(id: number, where: string): CapstanError {
  const expected = 'a tensor type that is known';
  if (!Object.hasOwn(REMOVED_TYPES, id)) return invalidFile(where, expected, `type ${id}`);
  const received = `${REMOVED_TYPES[id]}, which ggml has removed: choose another quantization of the model`;
  return unsupportedFile(where, expected, `${received}, such as Q4_0`);
}

/** Makes the offsets count from the start of the file. Tensors must lie in the file and not overlap. */
function placeTensors(
  tensors: Map<string, StoredTensor>,
  { name, size }: WeightFile,
  dataStart: number,
  alignment: number,
): void {
  let end = 0;
  for (const [tensor, stored] of [...tensors].sort(([, a], [, b]) => a.offset - b.offset)) {
    const where = `${name}: ${tensor}`;
    const { offset, numBytes } = stored;
    if (offset % alignment !== 0) throw invalidFile(where, `an offset that is a multiple of ${alignment}`, `${offset}`);
    if (offset < end)
      throw invalidFile(where, `data from offset ${end}, the end of another tensor`, `an offset of ${offset}`);
    end = offset + numBytes;
    if (dataStart + end > size)
      throw invalidFile(
        where,
        `data that ends within the file's ${size} bytes`,
        `an end at byte ${dataStart + end}: the file is truncated, download it again`,
      );
    stored.offset += dataStart;
  }
}
