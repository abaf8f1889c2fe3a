import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { CapstanError, showValue } from '../errors';
import { packageRoot } from '../package-root';
import { findReasoningFormat, type ReasoningFormat } from '../text/reasoning';
import { type OpenText, openText } from '../text/text-client';
import { TokenTable } from '../text/token-table';
import { findToolCallFormat, type ToolCallFormat } from '../text/tool-calls';
import { type Checkpoint, readCheckpoint, readStoredTensors } from './checkpoint';
import { type ModelConfig, readModelConfig } from './config';
import { withScoreTokens } from './pooling-plan';
import { withLinearExperts } from './linear-experts';
import { withQuantizationFile } from './quantization-file';
import { withStoredHead } from './stored-head';
import { withTiedHead } from './tied-head';
import { readSentenceTransformers } from './sentence-transformers';
import { headTensors, requiredTensors } from './tensors';
import type { ModelTask } from '../pooling';
import { findGguf, ggufModelName } from './gguf/files';
import { readGgufModel } from './gguf/model';
import { type JsonObject, readJsonFile } from './json-file';

/** The content of a model directory or GGUF file, without the bytes of the weights. */
export interface Model {
  /** The name on the hub, else of the directory or of the GGUF file, or `demo`. */
  name: string;
  config: ModelConfig;
  checkpoint: Checkpoint;
  /** Renders and tokenizes. The owner of the model closes it. */
  text: OpenText;
  tokens: TokenTable;
  /** The format in which the model writes tool calls; undefined if its chat template shows no known format. */
  toolCallFormat: ToolCallFormat | undefined;
  /** The format in which the model writes reasoning; undefined: reasoning is not separated from the text. */
  reasoningFormat: ReasoningFormat | undefined;
}

/** Replacements for properties of the model. */
export interface ModelOverrides {
  /** Source of a chat template. */
  chatTemplate?: string | undefined;
  /** A format's name, or 'auto' (default). */
  toolCallFormat?: string;
  /** A format's name, 'none' or 'auto' (default). */
  reasoningFormat?: string;
  /** Default: auto, what its files say. */
  task?: 'auto' | ModelTask;
  /** The model's name. Default: that of the directory. */
  name?: string | undefined;
  /** Whether the MTP head is wanted too. Default: false. */
  mtp?: boolean;
}

/** The model that ships with the package. */
export const DEMO_MODEL = 'demo';

/** A model without what needs its tokenizer. */
export type ModelWeights = Pick<Model, 'name' | 'config' | 'checkpoint'>;

/**
 * Reads the configuration and the headers of the weights, as {@link readModel} does.
 * @throws CapstanError as {@link readModel}.
 */
export async function readWeights(
  modelPath: string,
  { task = 'auto', name, mtp = false }: Pick<ModelOverrides, 'task' | 'name' | 'mtp'> = {},
): Promise<ModelWeights> {
  const { path, gguf } = await findModel(modelPath);
  const weights = gguf === undefined ? await readFolder(path, task, mtp) : await readGgufModel(gguf, task, mtp);
  return { name: name ?? nameOf(modelPath, path), ...weights };
}

export async function findModel(modelPath: string): Promise<{ path: string; gguf: string | undefined }> {
  const path = modelPath === DEMO_MODEL ? join(packageRoot(), 'models', 'demo') : resolve(modelPath);
  await checkPath(path, modelPath);
  return { path, gguf: await findGguf(path) };
}

/** A model whose tokenizer may still be loading. */
export interface OpeningModel {
  weights: ModelWeights;
  /** The whole model. Its `config` differs from that of `weights` if {@link needsTokenizer}. */
  model: Promise<Model>;
}

/**
 * @param modelPath A model directory, a GGUF file (of a split one, any part), or `demo`.
 * @throws CapstanError `invalid_model`, `unsupported_model` or `io_error` that names the file.
 */
export async function readModel(modelPath: string, overrides: ModelOverrides = {}): Promise<Model> {
  return (await openModel(modelPath, overrides)).model;
}

/**
 * Starts to read a model, as {@link readModel} does. Returns without waiting for the tokenizer, which takes longest.
 * @throws CapstanError as {@link readModel}, but errors of the tokenizer reject `model`.
 */
export async function openModel(modelPath: string, overrides: ModelOverrides = {}): Promise<OpeningModel> {
  const { path, gguf } = await findModel(modelPath);
  const { chatTemplate, toolCallFormat = 'auto', reasoningFormat = 'auto', task = 'auto', mtp = false } = overrides;
  const opening = openText({ modelPath: gguf ?? path, chatTemplate, toolCallFormat, reasoningFormat });
  // The caller gets the error with `model`.
  opening.catch(() => {});
  try {
    const read = await (gguf === undefined ? readFolder(path, task, mtp) : readGgufModel(gguf, task, mtp));
    const weights = { name: overrides.name ?? nameOf(modelPath, path), ...read };
    const model = opening.then((text) => withText(weights, text));
    model.catch(() => {});
    return { weights, model };
  } catch (error) {
    await closeOpened(opening);
    throw error;
  }
}

/** Closes what a promise gives, if it gives anything. */
async function closeOpened(opening: Promise<{ close(): Promise<void> }>): Promise<void> {
  const opened = await opening.catch(() => undefined);
  await opened?.close();
}

async function withText(weights: ModelWeights, text: OpenText): Promise<Model> {
  const model = { ...weights, ...textParts(text) };
  try {
    return { ...model, config: await withAnswers(model) };
  } catch (error) {
    await text.close();
    throw error;
  }
}

/** Whether a part of the configuration depends on the tokenizer: the answers of a reranker that says yes or no. */
export function needsTokenizer({ pooling }: ModelConfig): boolean {
  return pooling?.task === 'score' && pooling.activation === 'yes_no' && pooling.head.length === 0;
}

/** Finds the tokens of the answers of a reranker that says yes or no. */
async function withAnswers({ config, text }: Pick<Model, 'config' | 'text'>): Promise<ModelConfig> {
  const { pooling, spec } = config;
  if (pooling === undefined || !needsTokenizer(config)) return config;
  if (pooling.scoreTokens !== undefined) return { ...config, spec: withScoreTokens(spec, pooling.scoreTokens) };
  const [yes, no] = await text.encodeTexts(['yes', 'no']);
  if (yes.length !== 1 || no.length !== 1)
    throw CapstanError.unexpected('invalid_model', 'tokenizer', 'one token each for yes and no', 'several');
  return { ...config, spec: withScoreTokens(spec, { yes: yes[0], no: no[0] }) };
}

function textParts(text: OpenText): Pick<Model, 'text' | 'tokens' | 'toolCallFormat' | 'reasoningFormat'> {
  const { vocabulary, toolCallFormat, reasoningFormat = 'none' } = text.traits;
  return {
    text,
    tokens: new TokenTable(vocabulary),
    toolCallFormat: toolCallFormat === undefined ? undefined : findToolCallFormat(toolCallFormat, () => false),
    reasoningFormat: findReasoningFormat(reasoningFormat, () => false),
  };
}

function nameOf(modelPath: string, path: string): string {
  return modelPath === DEMO_MODEL ? DEMO_MODEL : ggufModelName(path);
}

async function checkPath(path: string, modelPath: string): Promise<void> {
  if ((await stat(path).catch(() => undefined)) !== undefined) return;
  const expected = `a directory with config.json, a GGUF file, or '${DEMO_MODEL}'`;
  const received = 'a path that does not exist';
  throw new CapstanError('invalid_model', `model ${JSON.stringify(modelPath)}: expected ${expected}, got ${received}`, {
    param: 'modelPath',
    expected,
    received,
  });
}

async function readFolder(
  dir: string,
  task: 'auto' | ModelTask,
  mtp: boolean,
): Promise<{ config: ModelConfig; checkpoint: Checkpoint }> {
  const [configJson, generationJson] = await Promise.all([
    readJsonFile(dir, 'config.json'),
    readJsonFile(dir, 'generation_config.json'),
  ]);
  if (configJson === undefined) throw missingConfig(dir, await readJsonFile(dir, 'adapter_config.json'));
  const stated = readModelConfig(await withQuantizationFile(dir, configJson), generationJson, {
    task,
    files: await readSentenceTransformers(dir),
    mtp,
  });
  const stored = await readStoredTensors(dir);
  const config = await withStoredHead(stated, stored);
  const required = [
    ...requiredTensors(config.spec, withLinearExperts(config.features, stored.found), config.family),
    ...headTensors(config.pooling?.head ?? [], config.spec.hiddenSize),
  ];
  const checkpoint = await readCheckpoint(dir, required, stored, config.quantization);
  return withTiedHead({ config, checkpoint }, configJson);
}

function missingConfig(dir: string, adapter: JsonObject | undefined): CapstanError {
  const hint =
    adapter === undefined
      ? 'A model directory holds config.json, tokenizer.json and *.safetensors, or a GGUF file'
      : `The directory holds a LoRA adapter: load its base model ${showValue(adapter.base_model_name_or_path)} ` +
        'with --lora-modules NAME=PATH';
  return new CapstanError('invalid_model', `config.json: expected the file in ${dir}, got none. ${hint}`, {
    param: 'config.json',
  });
}
