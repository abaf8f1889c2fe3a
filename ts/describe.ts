import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { checkString } from './checks';
import { CapstanError } from './errors';
import type { EngineInfo } from './engine-info';
import { kvBytes, type Shape, weightsOf } from './hub/fit';
import { loadAddon } from './addon';
import { locate, locateDraft, samplingDefaultsOf } from './load';
import { type ModelWeights, readWeights } from './model/model';
import { type EngineOptions, type LibraryOptions, resolveEngineOptions, resolveLibraryOptions } from './options';
import { taskInfo } from './pooler';
import { draftChoice, usesMtpHead } from './speculation';

/** What `Engine.load` would load. */
export interface ModelDescription extends Pick<
  EngineInfo,
  | 'modelName'
  | 'architecture'
  | 'numParameters'
  | 'task'
  | 'embeddingSize'
  | 'promptNames'
  | 'maxModelLen'
  | 'samplingDefaults'
> {
  /** Memory of the weights with these options, on the CPU, and of those of the draft model. An estimate. */
  weightBytes: number;
  /** Memory of the KV cache for one sequence of `maxModelLen` tokens. An estimate. */
  sequenceBytes: number;
  /** Whether the KV cache keeps tokens between two steps. An encoder keeps none. */
  isCausal: boolean;
  /** Memory that this process can still allocate. */
  availableBytes: number;
}

/**
 * Describes a model without loading its weights or its tokenizer. Downloads a model of the hub, as `Engine.load` does.
 * @throws CapstanError as `Engine.load`.
 */
export async function describeModel(model: string, options: EngineOptions = {}): Promise<ModelDescription> {
  try {
    const resolved = resolveEngineOptions(options);
    const library = resolveLibraryOptions(options);
    const { path, name } = await locate(checkString('model', model), options, library);
    const weights = await readWeights(path, { task: library.task, name, mtp: usesMtpHead(options) });
    const { config, checkpoint } = weights;
    const maxModelLen = resolved.maxModelLen > 0 ? resolved.maxModelLen : config.spec.maxPositionEmbeddings;
    return {
      modelName: weights.name,
      architecture: config.family.architecture,
      numParameters: checkpoint.numParameters,
      ...taskInfo(config),
      maxModelLen,
      samplingDefaults: samplingDefaultsOf(config, library),
      ...(await memoryWithDraft(weights, options, library, maxModelLen)),
      isCausal: config.spec.isCausal,
      availableBytes: loadAddon().availableMemoryBytes(),
    };
  } catch (error) {
    throw CapstanError.from(error);
  }
}

type Memory = Pick<ModelDescription, 'weightBytes' | 'sequenceBytes'>;

/** The memory of a model and of its draft model. */
async function memoryWithDraft(
  weights: ModelWeights,
  options: EngineOptions,
  library: LibraryOptions,
  maxModelLen: number,
): Promise<Memory> {
  const memory = await memoryOf(weights, options, maxModelLen);
  const draft = draftChoice(options);
  if (draft === undefined) return memory;
  const { path } = await locateDraft(draft, options, library);
  const own = await memoryOf(await readWeights(path), { ...options, quantization: draft.quantization }, maxModelLen);
  return {
    weightBytes: memory.weightBytes + own.weightBytes,
    sequenceBytes: memory.sequenceBytes + own.sequenceBytes,
  };
}

async function memoryOf(
  { config, checkpoint }: ModelWeights,
  options: EngineOptions,
  maxModelLen: number,
): Promise<Memory> {
  const { spec, quantization } = config;
  const shape: Shape = { spec, stored: checkpoint.dtype, numWeights: checkpoint.numParameters, quantization };
  const sizes = await Promise.all(checkpoint.files.map(async (file) => (await stat(file)).size));
  const isGguf = /\.gguf$/i.test(checkpoint.files[0] ?? '');
  const input = {
    format: isGguf ? ('gguf' as const) : ('safetensors' as const),
    fileBytes: sizes.reduce((sum, size) => sum + size, 0),
    quantization: isGguf ? (/\bI?Q\d\w*/i.exec(basename(checkpoint.files[0]))?.[0] ?? null) : null,
    options,
  };
  return {
    weightBytes: weightsOf(input, shape, options.quantization ?? 'none'),
    sequenceBytes: kvBytes(shape, options, maxModelLen),
  };
}
