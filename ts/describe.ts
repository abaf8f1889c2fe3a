import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { checkString } from './checks';
import { CapstanError } from './errors';
import type { EngineInfo } from './engine-info';
import { kvBytes, type Shape, weightsOf } from './hub/fit';
import { loadAddon } from './addon';
import { locate, samplingDefaultsOf } from './load';
import { type ModelWeights, readWeights } from './model/model';
import { type EngineOptions, resolveEngineOptions, resolveLibraryOptions } from './options';
import { taskInfo } from './pooler';
import { usesMtpHead } from './speculation';

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
  /** Memory of the weights with these options, on the CPU. An estimate. */
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
      ...(await memoryOf(weights, options, maxModelLen)),
      isCausal: config.spec.isCausal,
      availableBytes: loadAddon().availableMemoryBytes(),
    };
  } catch (error) {
    throw CapstanError.from(error);
  }
}

async function memoryOf(
  { config, checkpoint }: ModelWeights,
  options: EngineOptions,
  maxModelLen: number,
): Promise<Pick<ModelDescription, 'weightBytes' | 'sequenceBytes'>> {
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
