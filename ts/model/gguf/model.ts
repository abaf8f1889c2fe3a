import type { NativeRope, NativeTensor } from '../../addon-types';
import { type Checkpoint, mainDtype } from '../checkpoint';
import type { ModelConfig } from '../config';
import type { ModelTask } from '../../pooling';
import { MTP_LAYER, MTP_NAMES, withMtpHead } from '../mtp';
import { planPooling, pooledSpec } from '../pooling-plan';
import { headTensors, type RequiredTensor, requiredTensors, storedOrder } from '../tensors';
import { JsonReader } from '../json-file';
import { invalidFile, readFully, unsupportedFile, withWeightFile } from '../weight-file';
import { basename } from 'node:path';
import { type GgufArchitecture, ROPE_DIVISORS, TENSOR_NAMES } from './architectures';
import { readFeatures, refuseOtherLayers } from './features';
import { type GgufFiles, readGgufFiles } from './files';
import { readGgufPooling } from './pooling';
import { readSampling } from './sampling';
import { findArchitecture, readGgufSpec } from './spec';
import { nativeTensorType, SUPPORTED_TENSOR_TYPES } from './tensor-types';
import { readEosTokenIds } from './tokens';

/** The tensor type whose factor lies apart. */
const NVFP4 = 'NVFP4';
/** Arrays that only the tokenizer needs, and that are large. */
const TOKENIZER_ARRAYS = new Set(['merges', 'scores', 'precompiled_charsmap'].map((name) => `tokenizer.ggml.${name}`));

/**
 * Reads the spec and the tensor table of a GGUF model.
 * @param path The file, or the first part of a split one.
 * @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key or tensor, or `io_error`.
 */
export async function readGgufModel(
  path: string,
  task: 'auto' | ModelTask = 'auto',
  mtp = false,
): Promise<{ config: ModelConfig; checkpoint: Checkpoint }> {
  const files = await readGgufFiles(path, (key) => !TOKENIZER_ARRAYS.has(key));
  const metadata = new JsonReader(files.metadata, basename(path));
  const found = findArchitecture(metadata);
  const { architecture } = found;
  refuseOtherLayers(files, architecture);
  const { family, files: poolingFiles } = readGgufPooling(metadata, found.family, files);
  const decoder = readGgufSpec(metadata, architecture, family, files);
  const mtpConfig = new JsonReader({ mtp_num_hidden_layers: numMtpLayers(metadata, architecture) }, metadata.where);
  const stored = mtp ? withMtpHead(decoder, mtpConfig, family) : decoder;
  if (stored.ropes.length > 0)
    stored.ropes[0] = { ...stored.ropes[0], ...(await readRopeDivisors(files, stored.ropes[0])) };
  const pooling = planPooling(task, metadata, family, stored, poolingFiles);
  // The file's own LM head stays in the list, because each tensor of a file must be known.
  const { tieWordEmbeddings } = stored;
  const spec = pooling === undefined ? stored : { ...pooledSpec(stored, pooling), tieWordEmbeddings };
  const features = readFeatures(files, architecture, spec);
  const config: ModelConfig = {
    family,
    spec,
    ...(pooling === undefined ? {} : { pooling }),
    features,
    eosTokenIds: readEosTokenIds(metadata).filter((id) => id < spec.vocabSize),
    samplingDefaults: readSampling(metadata),
  };
  const required = [
    ...requiredTensors(spec, features, { names: { ...TENSOR_NAMES, ...tensorNames(architecture, files) } }),
    ...headTensors(pooling?.head ?? [], spec.hiddenSize),
  ];
  const layers = { numLayers: decoder.layers.length, numMtp: numMtpLayers(metadata, architecture) };
  return { config, checkpoint: makeCheckpoint(files, required, architecture, layers) };
}

/** Old files of Qwen3-Next have the rows of each group together, as its model directories. */
function tensorNames({ names }: GgufArchitecture, { tensors }: GgufFiles): GgufArchitecture['names'] {
  const isOld = names?.in_proj_ba !== undefined && [...tensors.keys()].some((name) => name.endsWith('.ssm_in.weight'));
  return isOld ? { ...names, in_proj_qkvz: 'ssm_in' } : names;
}

/** Returns the number of layers for the prediction of several tokens. */
function numMtpLayers(metadata: JsonReader, { name }: GgufArchitecture): number {
  return metadata.nonNegativeInt(`${name}.nextn_predict_layers`, 0);
}

function isOfMtp(tensor: string, numLayers: number, numMtp: number): boolean {
  const layer = Number(/^blk\.(\d+)\./.exec(tensor)?.[1] ?? -1);
  return layer >= numLayers && layer < numLayers + numMtp;
}

/** Names in the file, by those of a model directory. */
const MTP_TENSORS: Readonly<Record<string, string>> = {
  [MTP_NAMES.fc]: 'eh_proj',
  [MTP_NAMES.embedding_norm]: 'enorm',
  [MTP_NAMES.hidden_norm]: 'hnorm',
  [MTP_NAMES.norm]: 'shared_head_norm',
};

/** Returns the name in the file. `numLayers` is the number of the first layer for the prediction of several tokens. */
function ggufName({ checkpointName }: RequiredTensor, numLayers: number): string {
  const mtp = MTP_TENSORS[checkpointName.replace(/\.weight$/, '')] as string | undefined;
  if (mtp !== undefined) return `blk.${numLayers}.nextn.${mtp}.weight`;
  return checkpointName.replace(/^layers\./, 'blk.').replace(`${MTP_LAYER}.`, `blk.${numLayers}.`);
}

function makeCheckpoint(
  { paths, tensors: stored, values }: GgufFiles,
  required: readonly RequiredTensor[],
  architecture: GgufArchitecture,
  { numLayers, numMtp }: { numLayers: number; numMtp: number },
): Checkpoint {
  const unused = new Set(stored.keys());
  for (const name of Object.values(ROPE_DIVISORS)) unused.delete(name);
  if (!required.some(({ name }) => name.startsWith('mtp.')))
    for (const name of stored.keys()) if (isOfMtp(name, numLayers, numMtp)) unused.delete(name);
  const tensors = required.map((tensor) => {
    const ofLayer = layerValue(tensor, architecture, values);
    if (ofLayer !== undefined) return ofLayer;
    const name = ggufName(tensor, numLayers);
    unused.delete(name);
    if (stored.get(name)?.dtype === NVFP4)
      for (const kind of ['scale', 'input_scale']) unused.delete(siblingName(name, kind));
    return resolveTensor(tensor, name, { paths, tensors: stored });
  });
  refuseUnused(unused, architecture);
  return {
    files: paths,
    tensors,
    dtype: mainDtype(tensors),
    numParameters: required.reduce((sum, { shape }) => sum + shape.reduce((product, size) => product * size, 1), 0),
  };
}

/** Returns a value of a layer that the metadata hold, as a tensor; undefined for any other tensor. */
function layerValue(
  { name, checkpointName, shape }: RequiredTensor,
  { layerValues = {} }: GgufArchitecture,
  values: GgufFiles['values'],
): NativeTensor | undefined {
  const [, layer, own] = /^layers\.(\d+)\.(.+)$/.exec(checkpointName) ?? [];
  if (own === undefined || !Object.hasOwn(layerValues, own)) return undefined;
  const key = layerValues[own];
  const place = values.get(key);
  // One value counts for all layers.
  const index = place?.count === 1 ? 0 : Number(layer);
  if (place === undefined || index >= place.count)
    throw invalidFile(key, `a value in F32 for layer ${layer}`, place === undefined ? 'none' : `${place.count} values`);
  return { name, file: 0, offset: place.offset + 4 * index, dtype: 'f32', shape };
}

/** A tensor that nothing reads would change the results of the model. */
function refuseUnused(unused: ReadonlySet<string>, { name }: GgufArchitecture): void {
  for (const tensor of unused)
    throw unsupportedFile(tensor, `only tensors of the architecture ${name}`, 'a tensor that Capstan does not know');
}

function resolveTensor(
  required: RequiredTensor,
  ggufName: string,
  { paths, tensors }: Pick<GgufFiles, 'paths' | 'tensors'>,
): NativeTensor {
  const { name, shape, stacked, rows } = required;
  const tensor = tensors.get(ggufName);
  const stored = rows === undefined ? shape : [rows.count, ...shape.slice(1)];
  const expected = stacked === undefined ? stored : [stacked.count, ...stored];
  if (tensor === undefined)
    throw invalidFile(ggufName, `a tensor of shape ${showShape(expected)} in the file`, 'none of that name');
  const where = `${basename(paths[tensor.file])}: ${ggufName}`;
  if (showShape(withoutOnes(tensor.shape)) !== showShape(withoutOnes(expected)))
    throw invalidFile(where, `shape ${showShape(expected)} as the metadata says`, showShape(tensor.shape));
  const dtype = nativeTensorType(tensor.dtype);
  if (dtype === undefined)
    throw unsupportedFile(
      where,
      `one of the types ${SUPPORTED_TENSOR_TYPES.map((type) => type.name).join(', ')}`,
      `${tensor.dtype}: choose another quantization of the model`,
    );
  const { count, index } = stacked ?? { count: rows?.count ?? 1, index: rows?.first ?? 0 };
  const skipped = (tensor.numBytes / count) * index;
  // The decay of a recurrence: the file has it as the factor of the time step.
  const negated = name.endsWith('.a_log') ? { isNegatedExp: true } : {};
  return {
    name,
    file: tensor.file,
    offset: tensor.offset + skipped,
    dtype,
    shape,
    ...storedOrder(required),
    ...negated,
    ...(dtype === 'nvfp4' ? readScaleFactor(required, siblingName(ggufName, 'scale'), { paths, tensors }) : {}),
  };
}

function siblingName(name: string, kind: string): string {
  return name.replace(/\.weight$/, `.${kind}`);
}

/** The converter stores the factor of a tensor, or of each expert, apart. Without it, it is 1. */
function readScaleFactor(
  { stacked }: RequiredTensor,
  name: string,
  { paths, tensors }: Pick<GgufFiles, 'paths' | 'tensors'>,
): Pick<NativeTensor, 'scaleFactor'> {
  const factors = tensors.get(name);
  if (factors === undefined) return {};
  const expected = `F32 [${stacked?.count ?? 1}]`;
  const received = `${factors.dtype} ${showShape(factors.shape)}`;
  if (received !== expected) throw invalidFile(`${basename(paths[factors.file])}: ${name}`, expected, received);
  return { scaleFactor: { file: factors.file, offset: factors.offset + 4 * (stacked?.index ?? 0), dtype: 'f32' } };
}

/** Converters drop and add sizes of 1. */
function withoutOnes(shape: readonly number[]): readonly number[] {
  return shape.filter((size) => size !== 1);
}

function showShape(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}

/** The scaling of Llama 3 has one tensor of divisors, LongRoPE one up to the trained length and one above. */
async function readRopeDivisors(files: GgufFiles, { type, rotaryDim }: NativeRope): Promise<Partial<NativeRope>> {
  const read = (name: string) => readDivisors(files, name, rotaryDim / 2);
  if (type === 'longrope')
    return {
      frequencyDivisors: await read(ROPE_DIVISORS.short),
      longFrequencyDivisors: await read(ROPE_DIVISORS.long),
    };
  return files.tensors.has(ROPE_DIVISORS.any) ? { frequencyDivisors: await read(ROPE_DIVISORS.any) } : {};
}

async function readDivisors({ paths, tensors }: GgufFiles, name: string, count: number): Promise<Float32Array> {
  const tensor = tensors.get(name);
  const expected = `F32 [${count}]`;
  if (tensor === undefined) throw invalidFile(name, `a tensor ${expected} in the file`, 'none of that name');
  const path = paths[tensor.file];
  const where = `${basename(path)}: ${name}`;
  const received = `${tensor.dtype} ${showShape(tensor.shape)}`;
  if (received !== expected) throw invalidFile(where, expected, received);
  const divisors = new Float32Array(count);
  await withWeightFile(path, basename(path), (file) => readFully(file, new Uint8Array(divisors.buffer), tensor.offset));
  const invalid = divisors.find((value) => !(value > 0 && Number.isFinite(value)));
  if (invalid !== undefined) throw invalidFile(where, 'numbers above 0', String(invalid));
  return divisors;
}
