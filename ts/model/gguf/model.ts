import type { NativeTensor } from '../../addon-types';
import { type Checkpoint, mainDtype } from '../checkpoint';
import type { ModelConfig } from '../config';
import { familyOf } from '../families';
import { type RequiredTensor, requiredTensors } from '../tensors';
import { JsonReader } from '../json-file';
import { invalidFile, readFully, unsupportedFile, withWeightFile } from '../weight-file';
import { basename } from 'node:path';
import { type GgufArchitecture, ggufTensorName, ROPE_DIVISORS_TENSOR } from './architectures';
import { type GgufFiles, readGgufFiles } from './files';
import { readSampling } from './sampling';
import { findArchitecture, readFeatures, readGgufSpec } from './spec';
import { nativeTensorType, SUPPORTED_TENSOR_TYPES } from './tensor-types';
import { readEosTokenIds } from './tokens';

/** Arrays that only the tokenizer needs, and that are large. */
const TOKENIZER_ARRAYS = new Set(['merges', 'scores', 'precompiled_charsmap'].map((name) => `tokenizer.ggml.${name}`));

/**
 * Reads the spec and the tensor table of a GGUF model.
 * @param path The file, or the first part of a split one.
 * @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key or tensor, or `io_error`.
 */
export async function readGgufModel(path: string): Promise<{ config: ModelConfig; checkpoint: Checkpoint }> {
  const files = await readGgufFiles(path, (key) => !TOKENIZER_ARRAYS.has(key));
  const metadata = new JsonReader(files.metadata, basename(path));
  const architecture = findArchitecture(metadata);
  const spec = readGgufSpec(metadata, architecture, files);
  const divisors = await readRopeDivisors(files, spec.ropes[0].rotaryDim);
  const features = readFeatures(files);
  const config: ModelConfig = {
    family: familyOf(architecture.modelType),
    spec: divisors === undefined ? spec : { ...spec, ropes: [{ ...spec.ropes[0], frequencyDivisors: divisors }] },
    features,
    eosTokenIds: readEosTokenIds(metadata).filter((id) => id < spec.vocabSize),
    samplingDefaults: readSampling(metadata),
  };
  return { config, checkpoint: makeCheckpoint(files, requiredTensors(spec, features), architecture, spec.headDim) };
}

function makeCheckpoint(
  { paths, tensors: stored }: GgufFiles,
  required: readonly RequiredTensor[],
  architecture: GgufArchitecture,
  headDim: number,
): Checkpoint {
  const unused = new Set(stored.keys());
  unused.delete(ROPE_DIVISORS_TENSOR);
  const tensors = required.map(({ name, shape }) => {
    const ggufName = ggufTensorName(name);
    unused.delete(ggufName);
    const tensor = resolveTensor(name, ggufName, shape, { paths, tensors: stored });
    const isInterleaved = architecture.interleavesHeads && /\.[qk]_proj\./.test(name);
    return isInterleaved ? { ...tensor, interleavedHeadDim: headDim } : tensor;
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
  name: string,
  ggufName: string,
  shape: number[],
  { paths, tensors }: Pick<GgufFiles, 'paths' | 'tensors'>,
): NativeTensor {
  const tensor = tensors.get(ggufName);
  if (tensor === undefined)
    throw invalidFile(ggufName, `a tensor of shape ${showShape(shape)} in the file`, 'none of that name');
  const where = `${basename(paths[tensor.file])}: ${ggufName}`;
  if (showShape(tensor.shape) !== showShape(shape))
    throw invalidFile(where, `shape ${showShape(shape)} as the metadata says`, showShape(tensor.shape));
  const dtype = nativeTensorType(tensor.dtype);
  if (dtype === undefined)
    throw unsupportedFile(
      where,
      `one of the types ${SUPPORTED_TENSOR_TYPES.map((type) => type.name).join(', ')}`,
      `${tensor.dtype}: choose another quantization of the model`,
    );
  return { name, file: tensor.file, offset: tensor.offset, dtype, shape };
}

function showShape(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}

async function readRopeDivisors({ paths, tensors }: GgufFiles, rotaryDim: number): Promise<Float32Array | undefined> {
  const tensor = tensors.get(ROPE_DIVISORS_TENSOR);
  if (tensor === undefined) return undefined;
  const path = paths[tensor.file];
  const where = `${basename(path)}: ${ROPE_DIVISORS_TENSOR}`;
  const expected = `F32 [${rotaryDim / 2}]`;
  const received = `${tensor.dtype} ${showShape(tensor.shape)}`;
  if (received !== expected) throw invalidFile(where, expected, received);
  const divisors = new Float32Array(rotaryDim / 2);
  await withWeightFile(path, basename(path), (file) => readFully(file, new Uint8Array(divisors.buffer), tensor.offset));
  const invalid = divisors.find((value) => !(value > 0 && Number.isFinite(value)));
  if (invalid !== undefined) throw invalidFile(where, 'numbers above 0', String(invalid));
  return divisors;
}
