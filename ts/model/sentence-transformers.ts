/** What the files of sentence-transformers say about a model: how its hidden states become an embedding or a score. */
import { posix } from 'node:path';
import type { NativeActivation, NativePooling } from '../addon-types';
import { CapstanError } from '../errors';
import type { HeadLayer } from './family';
import { JsonReader, readJsonFile, readTextFile } from './json-file';

const MODULES_FILE = 'modules.json';
const CONFIG_FILE = 'config_sentence_transformers.json';
/** Both names are in use. */
export const LENGTH_FILES = [
  'sentence_bert_config.json',
  'sentence_roberta_config.json',
  'sentence_xlm-roberta_config.json',
];
const MAX_MODULES = 16;
/** Folders of modules, such as `1_Pooling`. */
export const MODULE_FOLDER = String.raw`\d+_[\w-]+`;
const IS_MODULE_FOLDER = new RegExp(`^${MODULE_FOLDER}$`);
/** Packages of the classes: in all versions before 5.4, and in those since. */
const MODULE_TYPE =
  /^sentence_transformers\.(?:models|(?:base|sentence_transformer|cross_encoder)\.modules(?:\.[a-z_]+)?)\.(\w+)$/;
const MODULE_NAMES: readonly string[] = ['Transformer', 'Pooling', 'Dense', 'Dropout', 'Normalize', 'LogitScore'];
const EXPECTED_MODULES =
  'Transformer; Transformer, Pooling, any number of Dense, Normalize; or Transformer, LogitScore';
const EMBEDDING = 'sentence_embedding';

export interface SentenceTransformers {
  /** undefined: the model has no `modules.json`. */
  modules: PoolingModules | undefined;
  /** Texts that are put before an input, by name. */
  prompts: Readonly<Record<string, string>>;
  defaultPromptName: string | undefined;
  /** The class that turns the logit of a cross-encoder into its score. */
  scoreActivation: string | undefined;
  /** The longest input in tokens; undefined: that of the model. */
  maxLength: number | undefined;
}

export interface PoolingModules {
  /** undefined: no module pools. */
  kind: NativePooling['kind'] | undefined;
  dense: HeadLayer[];
  normalizes: boolean;
  /** The tokens whose logits are the score of a reranker. */
  scoreTokens: { yes: number; no: number } | undefined;
}

/** Modes of the module Pooling, by their names in both forms of its file. */
const POOLING_MODES: readonly { mode: string; flag: string; kind: NativePooling['kind'] }[] = [
  { mode: 'cls', flag: 'pooling_mode_cls_token', kind: 'first' },
  { mode: 'mean', flag: 'pooling_mode_mean_tokens', kind: 'mean' },
  { mode: 'lasttoken', flag: 'pooling_mode_lasttoken', kind: 'last' },
  { mode: 'max', flag: 'pooling_mode_max_tokens', kind: 'max' },
  { mode: 'mean_sqrt_len_tokens', flag: 'pooling_mode_mean_sqrt_len_tokens', kind: 'root_mean' },
  { mode: 'weightedmean', flag: 'pooling_mode_weightedmean_tokens', kind: 'weighted_mean' },
];

const DENSE_ACTIVATIONS: Readonly<Record<string, NativeActivation>> = {
  Identity: 'identity',
  Tanh: 'tanh',
  ReLU: 'relu',
  GELU: 'gelu',
  SiLU: 'silu',
};

/** @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key. */
export async function readSentenceTransformers(modelDir: string): Promise<SentenceTransformers> {
  const [modulesText, configJson, ...lengths] = await Promise.all([
    readTextFile(modelDir, MODULES_FILE),
    readJsonFile(modelDir, CONFIG_FILE),
    ...LENGTH_FILES.map((name) => readJsonFile(modelDir, name)),
  ]);
  const config = new JsonReader(configJson ?? {}, CONFIG_FILE);
  const index = lengths.findIndex((json) => json !== undefined);
  const length = new JsonReader(lengths[index] ?? {}, LENGTH_FILES[Math.max(index, 0)]);
  const prompts = readPrompts(config);
  return {
    modules: modulesText === undefined ? undefined : await readModules(modelDir, modulesText),
    prompts,
    defaultPromptName: readDefaultPromptName(config, prompts),
    scoreActivation: config.raw('activation_fn') === undefined ? undefined : config.string('activation_fn'),
    maxLength: length.raw('max_seq_length') === undefined ? undefined : length.positiveInt('max_seq_length'),
  };
}

function readPrompts(config: JsonReader): Record<string, string> {
  const prompts = config.object('prompts');
  return Object.fromEntries((prompts?.keys() ?? []).map((name) => [name, prompts!.string(name)]));
}

function readDefaultPromptName(config: JsonReader, prompts: Readonly<Record<string, string>>): string | undefined {
  if (config.raw('default_prompt_name') === undefined) return undefined;
  const name = config.string('default_prompt_name');
  if (!Object.hasOwn(prompts, name)) {
    const names = Object.keys(prompts).join(', ');
    throw config.mismatch('default_prompt_name', `null or a name in prompts (${names === '' ? 'none' : names})`, name);
  }
  return name;
}

async function readModules(modelDir: string, text: string): Promise<PoolingModules> {
  const found: PoolingModules = { kind: undefined, dense: [], normalizes: false, scoreTokens: undefined };
  // A Dropout does nothing outside of training.
  const modules = parseModules(text).filter(({ name }) => name !== 'Dropout');
  checkOrder(modules.map(({ name }) => name));
  for (const { name, path } of modules) {
    switch (name) {
      case 'Pooling':
        found.kind = readPoolingKind(await readConfig(modelDir, path));
        break;
      case 'Dense':
        found.dense.push(readDense(await readConfig(modelDir, path), path));
        break;
      case 'Normalize':
        // Older versions write no file, because the module has no settings there.
        checkFields(new JsonReader((await readJsonFile(modelDir, `${path}/config.json`)) ?? {}, `${path}/config.json`));
        found.normalizes = true;
        break;
      case 'LogitScore':
        found.scoreTokens = readScoreTokens(await readConfig(modelDir, path));
        break;
    }
  }
  return found;
}

/** @throws CapstanError `invalid_model` if the file is missing, because its defaults are not those of the model. */
async function readConfig(modelDir: string, path: string): Promise<JsonReader> {
  const name = posix.join(path, 'config.json');
  const json = await readJsonFile(modelDir, name);
  if (json === undefined)
    throw CapstanError.unexpected('invalid_model', name, `the settings of a module in ${MODULES_FILE}`, 'no such file');
  return new JsonReader(json, name);
}

/** A module works on what those before it return. */
function checkOrder(names: readonly string[]): void {
  const order = names.join(' ');
  if (/^Transformer( Pooling( Dense)*( Normalize)?| LogitScore)?$/.test(order)) return;
  throw CapstanError.unexpected('unsupported_model', MODULES_FILE, EXPECTED_MODULES, names.join(', '));
}

/** Only Dense and Normalize of the embedding itself run. */
function checkFields(config: JsonReader): void {
  for (const key of ['module_input_name', 'module_output_name']) {
    const field = config.string(key, EMBEDDING);
    if (field === EMBEDDING) continue;
    throw CapstanError.mismatch('unsupported_model', `${config.where}: ${key}`, EMBEDDING, field);
  }
}

interface ModuleEntry {
  /** The class, without its package. */
  name: string;
  path: string;
}

function parseModules(text: string): ModuleEntry[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new CapstanError('invalid_model', `${MODULES_FILE}: expected JSON, got text that does not parse`, { cause });
  }
  if (!Array.isArray(value) || value.length === 0 || value.length > MAX_MODULES)
    throw CapstanError.mismatch('invalid_model', MODULES_FILE, `a list of 1 to ${MAX_MODULES} modules`, value);
  return value.map((entry: unknown) => {
    const { type, path } = (entry ?? {}) as { type?: unknown; path?: unknown };
    if (typeof type !== 'string' || typeof path !== 'string')
      throw CapstanError.mismatch('invalid_model', MODULES_FILE, 'modules with a type and a folder', entry);
    const name = moduleName(type);
    if (name === 'Transformer') {
      if (path === '') return { name, path };
      throw CapstanError.mismatch('unsupported_model', `${MODULES_FILE}: path of ${type}`, 'an empty path', path);
    }
    if (!IS_MODULE_FOLDER.test(path))
      throw CapstanError.mismatch('invalid_model', `${MODULES_FILE}: path`, 'a folder such as 1_Pooling', path);
    return { name, path };
  });
}

function moduleName(type: string): string {
  const name = MODULE_TYPE.exec(type)?.[1];
  if (name === undefined || !MODULE_NAMES.includes(name))
    throw CapstanError.mismatch(
      'unsupported_model',
      `${MODULES_FILE}: type`,
      `${MODULE_NAMES.join(', ')} of sentence_transformers`,
      type,
    );
  return name;
}

function readPoolingKind(config: JsonReader): NativePooling['kind'] {
  const modes = readPoolingModes(config);
  const { kind } = (modes.length === 1 && POOLING_MODES.find(({ mode }) => mode === modes[0])) || {};
  if (kind === undefined)
    throw CapstanError.mismatch(
      'unsupported_model',
      `${config.where}: pooling_mode`,
      `one of ${POOLING_MODES.map(({ mode }) => mode).join(', ')}`,
      modes.join(' and '),
    );
  if (!config.boolean('include_prompt', true))
    throw CapstanError.mismatch('unsupported_model', `${config.where}: include_prompt`, 'true', false);
  return kind;
}

function readPoolingModes(config: JsonReader): string[] {
  const stated = config.raw('pooling_mode');
  if (stated !== undefined) return (Array.isArray(stated) ? stated : [stated]).map(String);
  const active = POOLING_MODES.filter(({ flag }) => config.boolean(flag, false)).map(({ mode }) => mode);
  return active.length === 0 ? ['mean'] : active;
}

function readDense(config: JsonReader, folder: string): HeadLayer {
  checkFields(config);
  const name = config.string('activation_function', 'torch.nn.modules.activation.Tanh').split('.').at(-1)!;
  if (!Object.hasOwn(DENSE_ACTIVATIONS, name))
    throw CapstanError.mismatch(
      'unsupported_model',
      `${config.where}: activation_function`,
      `one of ${Object.keys(DENSE_ACTIVATIONS).join(', ')}`,
      name,
    );
  if (config.boolean('use_residual', false))
    throw CapstanError.mismatch('unsupported_model', `${config.where}: use_residual`, 'false', true);
  return {
    outputSize: config.positiveInt('out_features'),
    activation: DENSE_ACTIVATIONS[name],
    tensors: { name: 'linear', hasBias: config.boolean('bias', true), folder },
  };
}

function readScoreTokens(config: JsonReader): PoolingModules['scoreTokens'] {
  return { yes: config.nonNegativeInt('true_token_id'), no: config.nonNegativeInt('false_token_id') };
}
