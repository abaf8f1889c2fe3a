/** Checkpoints of bitsandbytes: small tensors beside each weight say how it is stored. */
import { basename } from 'node:path';
import { JsonReader, parseJsonObject } from './json-file';
import { invalidFile, readFully, type StoredTensor, unsupportedFile, withWeightFile } from './weight-file';

/** How a weight in 4 bits is stored. */
export interface QuantState {
  /** Columns that share a scale. */
  blockSize: number;
  shape: number[];
  /** Of scales that are quantized too: how many share a factor, and what is added to them. */
  nested?: { blockSize: number; offset: number };
}

const STATE = /^(.+)\.quant_state\.bitsandbytes__(nf4|fp4)$/;
const FORMAT = /\.weight_format$/;
/** Real ones have about 100 bytes. */
const MAX_BYTES = 1 << 16;
/** Weights that were saved after their first use on a GPU are in its order. */
const FORMATS = ['row', 'col32', 'col_turing', 'col_ampere'];

/**
 * Returns the states of the weights in 4 bits by the name of the weight.
 * @param files Paths.
 * @throws CapstanError `unsupported_model` or `invalid_model` that names the tensor.
 */
export async function readQuantStates(
  files: readonly string[],
  found: ReadonlyMap<string, StoredTensor & { file: number }>,
): Promise<Map<string, QuantState>> {
  const states = new Map<string, QuantState>();
  for (const [index, path] of files.entries()) {
    const small = [...found].filter(([name, { file }]) => file === index && (STATE.test(name) || FORMAT.test(name)));
    if (small.length === 0) continue;
    await withWeightFile(path, basename(path), async (file) => {
      for (const [name, { offset, numBytes }] of small) {
        const where = `${file.name}: ${name}`;
        if (numBytes > MAX_BYTES) throw invalidFile(where, `at most ${MAX_BYTES} bytes`, `${numBytes}`);
        const bytes = Buffer.alloc(numBytes);
        await readFully(file, bytes, offset);
        const weight = STATE.exec(name)?.[1];
        if (weight === undefined) checkFormat(bytes, where);
        else states.set(weight, parseState(bytes.toString('utf8'), where));
      }
    });
  }
  return states;
}

function checkFormat(bytes: Buffer, where: string): void {
  if (bytes.length !== 1 || bytes[0] !== 0)
    throw unsupportedFile(where, '0 (row)', `${bytes[0]} (${FORMATS[bytes[0]] ?? 'an unknown format'})`);
}

function parseState(text: string, where: string): QuantState {
  const json = new JsonReader(parseJsonObject(text, where), where);
  const shape = json.raw('shape');
  if (!Array.isArray(shape) || !shape.every((size) => Number.isSafeInteger(size)))
    throw json.mismatch('shape', 'a list of sizes', shape);
  const offset = json.raw('nested_offset');
  if (offset !== undefined && !Number.isFinite(offset)) throw json.mismatch('nested_offset', 'a number', offset);
  return {
    blockSize: json.positiveInt('blocksize'),
    shape: shape as number[],
    ...(offset === undefined
      ? {}
      : { nested: { blockSize: json.positiveInt('nested_blocksize'), offset: offset as number } }),
  };
}
