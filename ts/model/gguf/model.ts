import type { NativeRope, NativeTensor } from '../../addon-types';
import { type Checkpoint, mainDtype } from '../checkpoint';
import type { ModelConfig } from '../config';
import type { ModelTask } from '../../pooling';
import { planPooling, pooledSpec } from '../pooling-plan';
import { type RequiredTensor, requiredTensors, storedOrder } from '../tensors';
import { JsonReader } from '../json-file';
import { invalidFile, readFully, unsupportedFile, withWeightFile } from '../weight-file';
import { basename } from 'node:path';
import { type GgufArchitecture, ROPE_DIVISORS, TENSOR_NAMES } from './architectures';
import { readFeatures } from './features';
import { type GgufFiles, readGgufFiles } from './files';
import { readSampling } from './sampling';
import { findArchitecture, readGgufSpec } from './spec';
import { nativeTensorType, SUPPORTED_TENSOR_TYPES } from './tensor-types';
import { readEosTokenIds } from './tokens';

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
): Promise<{ config: ModelConfig; checkpoint: Checkpoint }> {
  const files = await readGgufFiles(path, (key) => !TOKENIZER_ARRAYS.has(key));
  const metadata = new JsonReader(files.metadata, basename(path));
  const { architecture, family } = findArchitecture(metadata);
  const stored = readGgufSpec(metadata, architecture, family, files);
  stored.ropes[0] = { ...stored.ropes[0], ...(await readRopeDivisors(files, stored.ropes[0])) };
  const pooling = planPooling(task, metadata, family, stored);
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
  const required = requiredTensors(spec, features, { names: { ...TENSOR_NAMES, ...architecture.names } });
  return { config, checkpoint: makeCheckpoint(files, required, architecture) };
}

function makeCheckpoint(
  { paths, tensors: stored }: GgufFiles,
  required: readonly RequiredTensor[],
  architecture: GgufArchitecture,
): Checkpoint {
  const unused = new Set(stored.keys());
  for (const name of Object.values(ROPE_DIVISORS)) unused.delete(name);
  const tensors = required.map((tensor) => {
    const name = tensor.checkpointName.replace(/^layers\./, 'blk.');
    unused.delete(name);
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
  const { name, shape, stacked } = required;
  const tensor = tensors.get(ggufName);
  const expected = stacked === undefined ? shape : [stacked.count, ...shape];
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
  const skipped = stacked === undefined ? 0 : (tensor.numBytes / stacked.count) * stacked.index;
  return { name, file: tensor.file, offset: tensor.offset + skipped, dtype, shape, ...storedOrder(required) };
}

/** Converters drop leading sizes of 1. */
function withoutOnes(shape: readonly number[]): readonly number[] {
  return shape.slice(
    Math.max(
      shape.findIndex((size) => size !== 1),
      0,
    ),
  );
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
