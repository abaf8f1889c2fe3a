import { access, readdir, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { CapstanError } from '../../errors';
import { invalidFile, type StoredTensor } from '../weight-file';
import { type GgufHeader, readGgufHeader } from './header';
import type { Metadata } from './metadata';

/** A model in one GGUF file, or in the parts of a split one. */
export interface GgufFiles {
  /** The parts in order. */
  paths: string[];
  /** Of the first part. */
  metadata: Metadata;
  /** Numbers in F32 in the metadata, by their key. */
  values: GgufHeader['values'];
  /** `file` is an index into `paths`. */
  tensors: Map<string, StoredTensor & { file: number }>;
}

/** Matches the names that `llama-gguf-split` gives to parts. */
const PART = /^(.+)-(\d{5})-of-(\d{5})\.gguf$/i;
const MAX_PARTS = 1024;
const MAX_LISTED = 10;
/** The names of quantizations in the names of files. */
export const QUANTIZATION =
  /(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_(?:K|\d|XXS|XS|NL|S|M|L|XL))*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F(?:P)?16|F(?:P)?32))(?=$|[-_.])/gi;
/** Projectors of vision models. They lie beside the model that they belong to. */
const PROJECTOR = /(^|[-_.])mmproj([-_.]|$)/i;
/** Statistics of a quantization, or a model that was quantized with them. */
const IMATRIX = /(^|[-_.])imatrix([-_.]|$)/i;

/** Whether a file name is that of a GGUF model, or of a part of one. */
export function isGgufModel(name: string): boolean {
  return isGguf(name) && !(IMATRIX.test(name) && name.search(QUANTIZATION) < 0);
}

function isGguf(name: string): boolean {
  return /\.gguf$/i.test(name) && !PROJECTOR.test(name);
}

/**
 * Returns the GGUF file of a path: the path itself if it is a file (of a split model, its first part), or the one model
 * in a folder. undefined: the folder is a model directory, or holds no GGUF file.
 * @throws CapstanError `invalid_model` if the folder holds several models, or only later parts of one.
 */
export async function findGguf(path: string): Promise<string | undefined> {
  if ((await stat(path)).isFile()) return firstPart(path);
  const names = await readdir(path);
  // Repositories of GGUF files often have the config.json of the original model.
  if (names.includes('config.json') && names.some((name) => /\.(safetensors|bin)$/.test(name))) return undefined;
  const named = names.filter(isGgufModel);
  const models = (named.length > 0 ? named : names.filter(isGguf)).sort();
  const starts = models.filter((name) => Number(PART.exec(name)?.[2] ?? 1) === 1);
  if (models.length > 0 && starts.length === 0)
    throw invalidFile(path, 'the first part of a split GGUF file', `only ${models[0]}`);
  if (starts.length > 1) {
    const listed = starts.slice(0, MAX_LISTED).join(', ') + (starts.length > MAX_LISTED ? ', …' : '');
    throw invalidFile(path, 'one GGUF model, or the path of one of its files', `${starts.length} models: ${listed}`);
  }
  return starts.length === 1 ? join(path, starts[0]) : undefined;
}

/** Returns the first part of a split model if it is in the folder of another part, else the path itself. */
async function firstPart(path: string): Promise<string> {
  const [, stem, , count] = PART.exec(basename(path)) ?? [];
  if (stem === undefined) return path;
  const first = join(dirname(path), `${stem}-${pad(1)}-of-${count}.gguf`);
  return access(first).then(
    () => first,
    () => path,
  );
}

/** Returns the name of a model: that of its file without the numbers of a part and without `.gguf`. */
export function ggufModelName(path: string): string {
  const name = basename(path);
  return PART.exec(name)?.[1] ?? name.replace(/\.gguf$/i, '');
}

/**
 * Reads the headers of a file and of the other parts of a split file.
 * @param path The file, or the first of its parts.
 * @throws CapstanError `invalid_model` that names the file, or `io_error`.
 */
export async function readGgufFiles(path: string, isWanted?: (key: string) => boolean): Promise<GgufFiles> {
  const first = await readGgufHeader(path, basename(path), isWanted);
  const paths = await listParts(path, first);
  const tensors: GgufFiles['tensors'] = new Map();
  for (const [file, part] of paths.entries()) {
    const header = file === 0 ? first : await readPart(part, file, paths.length);
    for (const [name, tensor] of header.tensors) {
      if (tensors.has(name))
        throw invalidFile(`${basename(part)}: ${name}`, 'each tensor in one part', 'a second copy');
      tensors.set(name, { ...tensor, file });
    }
  }
  checkNumTensors(first, paths.length, tensors.size);
  return { paths, metadata: first.metadata, values: first.values, tensors };
}

async function listParts(path: string, { name, metadata }: GgufHeader): Promise<string[]> {
  const stored = metadata['split.count'] ?? 1;
  // `llama-gguf-split --merge` writes a count of 0.
  const count = stored === 0 ? 1 : stored;
  const number = metadata['split.no'] ?? 0;
  if (typeof count !== 'number' || !(count >= 1 && count <= MAX_PARTS))
    throw CapstanError.mismatch('invalid_model', `${name}: split.count`, `a number from 1 to ${MAX_PARTS}`, count);
  const match = PART.exec(name);
  if (number !== 0) {
    const hint = match === null ? '' : ` (${match[1]}-00001-of-${match[3]}.gguf)`;
    throw invalidFile(name, `the first part of the model${hint}`, `part ${Number(number) + 1} of ${count}`);
  }
  if (count === 1) return [path];
  if (match === null || Number(match[3]) !== count)
    throw invalidFile(name, `a name that ends with -00001-of-${pad(count)}.gguf, as it has ${count} parts`, 'another');
  const parts = Array.from({ length: count }, (_, i) => `${match[1]}-${pad(i + 1)}-of-${match[3]}.gguf`);
  for (const part of parts) await checkPart(join(dirname(path), part), part, count);
  return [path, ...parts.slice(1).map((part) => join(dirname(path), part))];
}

function pad(number: number): string {
  return String(number).padStart(5, '0');
}

async function checkPart(path: string, name: string, count: number): Promise<void> {
  await access(path).catch((cause: Error) => {
    throw new CapstanError(
      'invalid_model',
      `${name}: expected all ${count} parts of the model in one folder, but this one is missing`,
      { param: name, cause },
    );
  });
}

async function readPart(path: string, number: number, count: number): Promise<GgufHeader> {
  const name = basename(path);
  const header = await readGgufHeader(path, name, () => false);
  const { 'split.no': no, 'split.count': total } = header.metadata;
  if (no !== number || total !== count)
    throw invalidFile(
      name,
      `part ${number + 1} of ${count}`,
      `split.no ${showCount(no)}, split.count ${showCount(total)}`,
    );
  return header;
}

function showCount(value: unknown): string {
  return typeof value === 'number' ? String(value) : 'nothing';
}

function checkNumTensors({ name, metadata }: GgufHeader, numParts: number, numTensors: number): void {
  const expected = metadata['split.tensors.count'];
  if (numParts > 1 && expected !== undefined && expected !== numTensors)
    throw invalidFile(`${name}: split.tensors.count`, `${numTensors} tensors, as the parts hold`, showCount(expected));
}
