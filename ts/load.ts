import { createHash } from 'node:crypto';
import type {
  NativeAddon,
  NativeDraftModel,
  NativeDType,
  NativeEngine,
  NativeEvent,
  NativeLoad,
  NativeLoadControls,
  NativeTokenizer,
  NativeVocab,
} from './addon-types';
import { Adapters } from './adapters';
import { type DraftModel, type LocatedDraft, readDraftModel } from './draft-model';
import { CapstanError } from './errors';
import { readEvents } from './event-batch';
import { type LocatedModel, locateModel } from './hub/locate';
import type { ModelConfig } from './model/config';
import { DEMO_MODEL, type Model, type ModelWeights, needsTokenizer, openModel, readWeights } from './model/model';
import { memoryOf, type ModelMemory } from './model-memory';
import {
  type EngineOptions,
  type LibraryOptions,
  type LoadProgress,
  resolveEngineOptions,
  type ResolvedEngineOptions,
  resolveLibraryOptions,
} from './options';
import type { SamplingDefaults } from './sampling';
import { draftChoice, usesMtpHead } from './speculation';
import type { Vocabulary } from './text/vocabulary';

export interface LoadedModel {
  native: NativeEngine;
  model: Model;
  eosTokenIds: number[];
  samplingDefaults: SamplingDefaults;
  maxNumSeqs: number;
  maxQueuedRequests: number;
  maxQueuedTokens: number;
  grammarCacheBytes: number;
  prefixCache: boolean;
  adapters: Adapters;
}

/**
 * Downloads the model if it is one on the hub, reads its directory, then passes one record to the addon, which loads
 * the weights on its own threads. The tokenizer loads at the same time.
 */
export async function loadNative(
  addon: () => NativeAddon,
  modelName: string,
  options: EngineOptions,
  onEvents: (events: NativeEvent[]) => void,
): Promise<LoadedModel> {
  const resolved = resolveEngineOptions(options);
  const library = resolveLibraryOptions(options);
  throwIfAborted(options.signal);
  const native = addon();
  const located = await locateDraft(options, library);
  const { path, name } = await locate(modelName, options, library, located);
  throwIfAborted(options.signal);
  const opening = await openModel(path, { ...library, name, mtp: usesMtpHead(options) });
  const tokenizer = opening.model.then(toNativeTokenizer);
  tokenizer.catch(() => {});
  try {
    const isTokenizerFirst = located !== undefined || needsTokenizer(opening.weights.config);
    const weights = isTokenizerFirst ? await opening.model : opening.weights;
    const draft = located === undefined ? undefined : await readDraftModel(located, await opening.model);
    const load = nativeLoad(weights, isTokenizerFirst ? await tokenizer : null, draft, resolved);
    const engine = await runLoad(native, load, tokenizer, options.signal, options.onProgress, onEvents);
    const model = await opening.model;
    const adapters = new Adapters(engine, native, model.config, resolved.enableLora);
    await loadAdapters(engine, adapters, library.loraModules, options.signal);
    const eosTokenIds = [...(await tokenizer).eosTokenIds];
    return toLoaded({ native: engine, model, adapters, eosTokenIds }, resolved, library);
  } catch (error) {
    const model = await opening.model.catch(() => undefined);
    await model?.text.close();
    throw error;
  }
}

async function toNativeTokenizer(model: Model): Promise<NativeTokenizer> {
  const { vocabulary } = model.text.traits;
  return {
    vocab: nativeVocab(vocabulary, model.config.spec.vocabSize),
    eosTokenIds: Int32Array.from(await findEosTokenIds(model)),
  };
}

/** Finds the files of a model, and downloads those of the hub that the cache does not have. */
export async function locate(
  modelName: string,
  options: EngineOptions,
  { hub }: LibraryOptions,
  draft?: LocatedDraft,
): Promise<LocatedModel> {
  if (modelName === DEMO_MODEL) return { path: DEMO_MODEL, name: undefined };
  const { signal, onDownload, onProgress } = options;
  return locateModel(modelName, {
    hub,
    signal,
    engineOptions: { ...options, draftBytes: (await draftMemory(draft, options, 1)).weightBytes },
    onDownload,
    onProgress: (done) => onProgress?.({ stage: 'download', ...done }),
  });
}

/** Finds or downloads the draft model that the options ask for. */
export async function locateDraft(options: EngineOptions, library: LibraryOptions): Promise<LocatedDraft | undefined> {
  const choice = draftChoice(options);
  if (choice === undefined) return undefined;
  const { speculative: _, ...rest } = options;
  const { path } = await locate(choice.model, { ...rest, quantization: choice.quantization }, library);
  return { ...choice, path };
}

/** Returns the memory of a draft model, with a KV cache for one sequence of `maxModelLen` tokens. */
export async function draftMemory(
  draft: LocatedDraft | undefined,
  options: EngineOptions,
  maxModelLen: number,
): Promise<ModelMemory> {
  if (draft === undefined) return { weightBytes: 0, sequenceBytes: 0 };
  return memoryOf(await readWeights(draft.path), { ...options, quantization: draft.quantization }, maxModelLen);
}

/**
 * Returns the EOS ids of the model's files and of its tokenizer. Adds the turn ends of its tool-call format. Removes
 * tokens that end only a part of a turn. Many chat models name the end of a turn only in the tokenizer's files.
 */
async function findEosTokenIds({ config, text, toolCallFormat }: Model): Promise<number[]> {
  const idsOf = async (tokens: readonly string[] = []): Promise<number[]> =>
    (await text.encodeTexts(tokens)).filter(({ length }) => length === 1).map(([id]) => id);
  const { eosToken } = text.traits;
  const turnEnds = [...(toolCallFormat?.turnEnds ?? []), ...(eosToken === undefined ? [] : [eosToken])];
  const [ends, partEnds] = [await idsOf(turnEnds), await idsOf(toolCallFormat?.partEnds)];
  const ids = new Set([...config.eosTokenIds, ...ends]);
  return [...ids].filter((id) => id < config.spec.vocabSize && !partEnds.includes(id));
}

/** Loads the adapters that an engine starts with. Closes the engine if one of them fails. */
async function loadAdapters(
  engine: NativeEngine,
  adapters: Adapters,
  modules: Readonly<Record<string, string>>,
  signal: AbortSignal | undefined,
): Promise<void> {
  try {
    for (const [name, path] of Object.entries(modules)) {
      throwIfAborted(signal);
      await adapters.load(name, path);
    }
  } catch (error) {
    await engine.close();
    throw error;
  }
}

function toLoaded(
  parts: Pick<LoadedModel, 'native' | 'model' | 'adapters' | 'eosTokenIds'>,
  resolved: ResolvedEngineOptions,
  library: LibraryOptions,
): LoadedModel {
  return {
    ...parts,
    samplingDefaults: samplingDefaultsOf(parts.model.config, library),
    maxNumSeqs: resolved.maxNumSeqs,
    maxQueuedRequests: resolved.maxQueuedRequests,
    maxQueuedTokens: library.maxQueuedTokens,
    grammarCacheBytes: resolved.grammarCacheBytes,
    // An encoder keeps nothing of an input.
    prefixCache: resolved.prefixCache && parts.model.config.spec.isCausal,
  };
}

export function samplingDefaultsOf(
  { samplingDefaults }: Pick<ModelConfig, 'samplingDefaults'>,
  { generationConfig, generationConfigOverrides }: LibraryOptions,
): SamplingDefaults {
  return { ...(generationConfig === 'none' ? {} : samplingDefaults), ...generationConfigOverrides };
}

async function runLoad(
  addon: NativeAddon,
  load: NativeLoad,
  tokenizer: Promise<NativeTokenizer>,
  signal: AbortSignal | undefined,
  onProgress: ((progress: LoadProgress) => void) | undefined,
  onEvents: (events: NativeEvent[]) => void,
): Promise<NativeEngine> {
  throwIfAborted(signal);
  let onAbort: (() => void) | undefined;
  // Errors of `onProgress` and of the tokenizer end the load, not the process.
  const thrown: unknown[] = [];
  const onStart = ({ cancel, setTokenizer }: NativeLoadControls): void => {
    onAbort = cancel;
    signal?.addEventListener('abort', cancel, { once: true });
    if (load.tokenizer !== null) return;
    tokenizer.then(setTokenizer).catch((error: unknown) => {
      thrown.push(error);
      cancel();
    });
  };
  const report = (doneBytes: number, totalBytes: number): void => {
    if (thrown.length > 0) return;
    try {
      onProgress?.({ stage: 'load', doneBytes, totalBytes });
    } catch (error) {
      thrown.push(error);
      onAbort?.();
    }
  };
  try {
    const engine = await addon.load(load, report, (...batch) => onEvents(readEvents(...batch)), onStart);
    if (thrown.length === 0) return engine;
    await engine.close();
    throw thrown[0];
  } catch (error) {
    throw thrown.length > 0 ? thrown[0] : error;
  } finally {
    if (onAbort !== undefined) signal?.removeEventListener('abort', onAbort);
  }
}

function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw new CapstanError('aborted', 'The load was aborted', { cause: signal.reason });
}

function nativeLoad(
  { config, checkpoint }: ModelWeights,
  tokenizer: NativeTokenizer | null,
  draft: DraftModel | undefined,
  options: ResolvedEngineOptions,
): NativeLoad {
  const { dtype, ...rest } = options;
  const { spec } = config;
  return {
    files: checkpoint.files,
    tensors: checkpoint.tensors,
    spec,
    tokenizer,
    options: {
      ...rest,
      weightDtype: resolveDtype(dtype, checkpoint.dtype, options.device),
      modelDigest: options.prefixCacheDir === null ? '' : digestOf({ spec, tensors: checkpoint.tensors }),
    },
    draft: draft === undefined ? null : nativeDraft(draft, options),
  };
}

function nativeDraft({ dtype, ...rest }: DraftModel, options: ResolvedEngineOptions): NativeDraftModel {
  return { ...rest, weightDtype: resolveDtype(options.dtype, dtype, options.device) };
}

/** Depends on all values, and not on where the files are. */
function digestOf(model: Pick<NativeLoad, 'spec' | 'tensors'>): string {
  // JSON has no infinity, and writes null.
  const asText = (_name: string, value: unknown): unknown =>
    ArrayBuffer.isView(value) ? Array.from(value as Float32Array, String) : value;
  return createHash('sha256').update(JSON.stringify(model, asText)).digest('hex');
}

/** CUDA computes with 16 bits, so 'auto' turns f32 weights into bf16 there. The addon refuses an explicit f32. */
export function resolveDtype(requested: 'auto' | NativeDType, stored: NativeDType, device: string): NativeDType {
  if (requested !== 'auto') return requested;
  return stored === 'f32' && device.startsWith('cuda') ? 'bf16' : stored;
}

/** Drops tokens without a row in the embedding: they can be neither read nor sampled. */
function nativeVocab({ bytes, offsets, special, numTokens }: Vocabulary, vocabSize: number): NativeVocab {
  const numKept = Math.min(numTokens, vocabSize);
  return {
    bytes: bytes.subarray(0, offsets[numKept]),
    offsets: offsets.subarray(0, numKept + 1),
    special: special.subarray(0, numKept),
  };
}
