import { readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { NativeDType, NativeTensor } from '../addon-types';
import { CapstanError } from '../errors';
import { readQuantStates } from './bitsandbytes';
import { type RequiredTensor, storedOrder } from './tensors';
import { readJsonFile } from './json-file';
import { noMtpHead } from './mtp';
import type { Quantization } from './quantization';
import { type FoundTensor, resolveQuantized } from './quantized-tensor';
import { readSafetensorsHeader } from './safetensors';
import { invalidFile as invalidModel } from './weight-file';

/** The files of a checkpoint and the place of each tensor that the model needs. */
export interface Checkpoint {
  files: string[];
  tensors: NativeTensor[];
  /** The data type of most elements. */
  dtype: NativeDType;
  numParameters: number;
}

const SINGLE_FILE = 'model.safetensors';
const PYTORCH_FILE = 'pytorch_model.bin';
const INDEX_FILE = 'model.safetensors.index.json';
/** A safetensors file of quantized embeddings, under the names of the checkpoint. `capstan quantize` writes it. */
export const EMBEDDING_FILE = 'embedding.capstan';
/** Names of the text model's module, in models of text and of text with images. */
export const PREFIXES = [
  'model.',
  'model.language_model.',
  'language_model.model.',
  'bert.',
  'roberta.',
  'distilbert.',
  'mpnet.',
  'electra.',
  '',
];
export const NATIVE_DTYPES: Readonly<Record<string, NativeDType>> = { F32: 'f32', F16: 'f16', BF16: 'bf16' };

/** The weight files of a model directory, and their tensors by name. */
export interface StoredTensors {
  files: string[];
  found: Map<string, FoundTensor>;
}

/** @throws CapstanError `invalid_model` that names the file and the tensor. */
export async function readCheckpoint(
  modelDir: string,
  required: readonly RequiredTensor[],
  { files, found }: StoredTensors,
  quantization?: Quantization,
): Promise<Checkpoint> {
  if (quantization !== undefined) await addEmbeddings(modelDir, files, found);
  if (quantization?.schemes.some(({ layout }) => layout === 'table4' || layout === 'int8_max'))
    await addQuantStates(files, found);
  if (required.some(({ name }) => name === 'mtp.fc.weight') && !found.has('mtp.fc.weight'))
    throw noMtpHead('a checkpoint without the tensor mtp.fc.weight');
  const { checkpointName: embedding } = required.find(({ name }) => name === 'embed_tokens.weight')!;
  const isStored = (name: string): boolean => hasWeight(name, found, quantization);
  const prefix = PREFIXES.find((candidate) => isStored(`${candidate}${embedding}`)) ?? '';
  const folders = await readFolders(modelDir, required, files);
  const tensors = required.map((tensor) => {
    const own = tensor.folder === undefined ? found : folders.get(tensor.folder)!;
    return resolveTensor(tensor, prefix, { files, found: own, quantization });
  });
  return {
    files,
    tensors,
    dtype: mainDtype(tensors),
    numParameters: tensors.reduce((sum, { shape }) => sum + count(shape), 0),
  };
}

/** @throws CapstanError `invalid_model` that names the file and the tensor. */
export async function readStoredTensors(modelDir: string): Promise<StoredTensors> {
  const { files, weightMap } = await listFiles(modelDir);
  const found = new Map<string, FoundTensor>();
  for (const [file, path] of files.entries()) {
    for (const [name, tensor] of await readSafetensorsHeader(path)) {
      if (weightMap !== undefined && weightMap.get(name) !== basename(path)) continue;
      if (found.has(name))
        throw invalidModel(
          `${basename(path)}: ${name}`,
          'each tensor in one file',
          `a second copy of the tensor in ${basename(files[found.get(name)!.file])}`,
        );
      found.set(name, { ...tensor, file });
    }
  }
  return { files, found };
}

/** Appends the file of quantized embeddings, if there is one. */
async function addEmbeddings(modelDir: string, files: string[], found: Map<string, FoundTensor>): Promise<void> {
  if (!(await readdir(modelDir)).includes(EMBEDDING_FILE)) return;
  const path = join(modelDir, EMBEDDING_FILE);
  for (const [name, tensor] of await readSafetensorsHeader(path)) found.set(name, { ...tensor, file: files.length });
  files.push(path);
}

const STORAGE_TYPES = ['BF16', 'F16', 'F32'];

async function addQuantStates(files: readonly string[], found: Map<string, FoundTensor>): Promise<void> {
  for (const [name, state] of await readQuantStates(files, found)) {
    const weight = found.get(name);
    if (weight === undefined) continue;
    // `bnb_4bit_quant_storage` says which type the bytes are stored in. It changes no byte.
    const bytes = { dtype: 'U8', shape: [weight.numBytes, 1] };
    found.set(name, { ...weight, ...(STORAGE_TYPES.includes(weight.dtype) ? bytes : {}), state });
  }
}

/** Returns the tensors in the files of the folders that `required` names, and appends these files to `files`. */
async function readFolders(
  modelDir: string,
  required: readonly RequiredTensor[],
  files: string[],
): Promise<Map<string, Map<string, FoundTensor>>> {
  const folders = new Map<string, Map<string, FoundTensor>>();
  for (const { folder } of required) {
    if (folder === undefined || folders.has(folder)) continue;
    const file = files.length;
    const name = `${folder}/${SINGLE_FILE}`;
    const path = join(modelDir, name);
    const names: readonly string[] = await readdir(join(modelDir, folder)).catch(() => []);
    if (!names.includes(SINGLE_FILE) && names.includes(PYTORCH_FILE))
      throw invalidModel(name, 'the weights of the module', `only ${PYTORCH_FILE}. Convert the module to safetensors`);
    const tensors = [...(await readSafetensorsHeader(path, name))];
    folders.set(folder, new Map(tensors.map(([name, tensor]) => [name, { ...tensor, file }])));
    files.push(path);
  }
  return folders;
}

async function listFiles(modelDir: string): Promise<{ files: string[]; weightMap?: Map<string, string> }> {
  const names = await readdir(modelDir);
  if (names.includes(SINGLE_FILE)) return { files: [join(modelDir, SINGLE_FILE)] };
  if (names.includes(INDEX_FILE)) return readIndex(modelDir);
  const lone = loneFile(names);
  if (lone !== undefined) return { files: [join(modelDir, lone)] };
  const other = names.find((name) => /\.(bin|pt|pth|gguf|safetensors)$/.test(name));
  throw invalidModel(modelDir, `${SINGLE_FILE} or ${INDEX_FILE}`, other === undefined ? 'neither' : `only ${other}`);
}

/** Files of other things, and parts of models in several files. */
const NO_MODEL = /^(adapter_model|consolidated)|-of-(?!00001)\d{5}\.safetensors$/;

/** Returns the only file of weights. Checkpoints of AutoGPTQ may have another name, such as gptq_model-4bit-128g. */
export function loneFile(names: readonly string[]): string | undefined {
  const files = names.filter((name) => /^[^/]+\.safetensors$/.test(name));
  return files.length === 1 && !NO_MODEL.test(files[0]) ? files[0] : undefined;
}

async function readIndex(modelDir: string): Promise<{ files: string[]; weightMap: Map<string, string> }> {
  const weights = (await readJsonFile(modelDir, INDEX_FILE))?.weight_map;
  if (typeof weights !== 'object' || weights === null || Array.isArray(weights))
    throw CapstanError.mismatch('invalid_model', `${INDEX_FILE}: weight_map`, 'an object of file names', weights);
  const weightMap = new Map<string, string>();
  for (const [tensor, file] of Object.entries(weights as Record<string, unknown>)) {
    if (typeof file !== 'string' || file === '' || basename(file) !== file || file === '..')
      throw CapstanError.mismatch('invalid_model', `${INDEX_FILE}: ${tensor}`, 'a file name without a folder', file);
    weightMap.set(tensor, file);
  }
  return { files: [...new Set(weightMap.values())].sort().map((name) => join(modelDir, name)), weightMap };
}

interface Stored extends StoredTensors {
  quantization: Quantization | undefined;
}

function resolveTensor(first: RequiredTensor, prefix: string, { files, found, quantization }: Stored): NativeTensor {
  const isOther = first.or !== undefined && found.has(prefix + first.or.checkpointName);
  const required = isOther ? { ...first, ...first.or } : first;
  const name = checkpointName(required, prefix, (candidate) => hasWeight(candidate, found, quantization));
  const quantized =
    quantization && resolveQuantized({ ...required, checkpointName: name }, quantization.schemes, found, files);
  if (quantized !== undefined) return quantized;
  const tensor = found.get(name);
  if (tensor === undefined) {
    const place = required.folder === undefined ? 'the checkpoint' : `${required.folder}/${SINGLE_FILE}`;
    throw invalidModel(name, `a tensor of shape ${showShape(required.shape)} in ${place}`, 'none of that name');
  }
  const { stacked, isTransposed } = required;
  const stored = required.storedShape ?? [
    ...(stacked === undefined ? [] : [stacked.count]),
    ...(isTransposed ? [...required.shape].reverse() : required.shape),
  ];
  const file = basename(files[tensor.file]);
  const where = `${required.folder === undefined ? file : `${required.folder}/${file}`}: ${name}`;
  if (showShape(tensor.shape) !== showShape(stored))
    throw invalidModel(where, `shape ${showShape(stored)} as config.json says`, showShape(tensor.shape));
  const dtype = Object.hasOwn(NATIVE_DTYPES, tensor.dtype) ? NATIVE_DTYPES[tensor.dtype] : undefined;
  if (dtype === undefined) throw CapstanError.unexpected('unsupported_model', where, 'F32, F16 or BF16', tensor.dtype);
  return {
    name: required.name,
    file: tensor.file,
    offset: tensor.offset + (stacked === undefined ? 0 : (tensor.numBytes / stacked.count) * stacked.index),
    dtype,
    shape: required.shape,
    ...storedOrder(required),
    ...(isTransposed && { isTransposed }),
  };
}

/** `lm_head`, the MTP head and parts of a classifier are outside of the module `model`. */
function checkpointName(
  { name, checkpointName: own }: RequiredTensor,
  prefix: string,
  isStored: (name: string) => boolean,
): string {
  if (own.startsWith('mtp.')) return own;
  if (name.startsWith('head.')) return [prefix + own, own].find(isStored) ?? own;
  if (!name.startsWith('lm_head.')) return prefix + own;
  return ['', 'language_model.'].map((outer) => outer + own).find(isStored) ?? own;
}

/** Returns whether the checkpoint has a tensor, or the codes of a quantized one. */
function hasWeight(name: string, found: ReadonlyMap<string, unknown>, quantization: Quantization | undefined): boolean {
  const codes = quantization?.schemes.map(({ names }) => name.replace(/weight$/, names.codes)) ?? [];
  return [name, ...codes].some((candidate) => found.has(candidate));
}

/** Returns the type of most elements. Quantized tensors count as bf16, to which they are decoded. */
export function mainDtype(tensors: readonly NativeTensor[]): NativeDType {
  const numElements: Record<NativeDType, number> = { f32: 0, f16: 0, bf16: 0 };
  for (const { dtype, shape } of tensors)
    numElements[dtype === 'f32' || dtype === 'f16' ? dtype : 'bf16'] += count(shape);
  return (Object.keys(numElements) as NativeDType[]).reduce((best, dtype) =>
    numElements[dtype] > numElements[best] ? dtype : best,
  );
}

function count(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function showShape(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}
