import { checkString } from './checks';
import { CapstanError } from './errors';
import type { EngineInfo } from './engine-info';
import { loadAddon } from './addon';
import { draftMemory, locate, locateDraft, samplingDefaultsOf } from './load';
import { readWeights } from './model/model';
import { memoryOf } from './model-memory';
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
 * Describes a model without loading its weights or its tokenizer. A model from the hub is downloaded.
 * @throws CapstanError as `Engine.load`.
 */
export async function describeModel(model: string, options: EngineOptions = {}): Promise<ModelDescription> {
  try {
    const resolved = resolveEngineOptions(options);
    const library = resolveLibraryOptions(options);
    checkString('model', model);
    const draft = await locateDraft(options, library);
    const { path, name } = await locate(model, options, library, draft);
    const weights = await readWeights(path, { task: library.task, name, mtp: usesMtpHead(options) });
    const { config, checkpoint } = weights;
    const maxModelLen = resolved.maxModelLen > 0 ? resolved.maxModelLen : config.spec.maxPositionEmbeddings;
    const own = await memoryOf(weights, options, maxModelLen);
    const ofDraft = await draftMemory(draft, options, maxModelLen);
    return {
      modelName: weights.name,
      architecture: config.family.architecture,
      numParameters: checkpoint.numParameters,
      ...taskInfo(config),
      maxModelLen,
      samplingDefaults: samplingDefaultsOf(config, library),
      weightBytes: own.weightBytes + ofDraft.weightBytes,
      sequenceBytes: own.sequenceBytes + ofDraft.sequenceBytes,
      isCausal: config.spec.isCausal,
      availableBytes: loadAddon().availableMemoryBytes(),
    };
  } catch (error) {
    throw CapstanError.from(error);
  }
}
