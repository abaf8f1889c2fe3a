/** What the files of sentence-transformers say about a model: how its hidden states become an embedding or a score. */
import { posix } from 'node:path';
import type { NativeActivation, NativePooling } from '../addon-types';
import { CapstanError } from '../errors';
import type { HeadLayer } from './family';
import { JsonReader, readJsonFile, readTextFile } from './json-file';

const MODULES_FILE = 'modules.json';
const CONFIG_FILE = 'config_sentence_transformers.json';
/** Both names are in use. */
const LENGTH_FILES = ['sentence_bert_config.json', 'sentence_roberta_config.json', 'sentence_xlm-roberta_config.json'];
const MAX_MODULES = 16;

export interface SentenceTransformers {
  /** undefined: the model has no `modules.json`. */
  modules: PoolingModules | undefined;
  /** Texts that are put before an input, by name. */
  prompts: Readonly<Record<string, string>>;
  defaultPromptName: string | undefined;
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
const POOLING_MODES: readonly { mode: string; flag: string; kind?: NativePooling['kind'] }[] = [
  { mode: 'cls', flag: 'pooling_mode_cls_token', kind: 'first' },
  { mode: 'mean', flag: 'pooling_mode_mean_tokens', kind: 'mean' },
  { mode: 'lasttoken', flag: 'pooling_mode_lasttoken', kind: 'last' },
  { mode: 'max', flag: 'pooling_mode_max_tokens' },
  { mode: 'mean_sqrt_len_tokens', flag: 'pooling_mode_mean_sqrt_len_tokens' },
  { mode: 'weightedmean', flag: 'pooling_mode_weightedmean_tokens' },
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
  if (length.boolean('do_lower_case', false))
    throw length.mismatch('do_lower_case', 'false, because the tokenizer decides this', true);
  return {
    modules: modulesText === undefined ? undefined : await readModules(modelDir, modulesText),
    prompts: readPrompts(config),
    defaultPromptName:
      config.raw('default_prompt_name') === undefined ? undefined : config.string('default_prompt_name'),
    maxLength: length.raw('max_seq_length') === undefined ? undefined : length.positiveInt('max_seq_length'),
  };
}

function readPrompts(config: JsonReader): Record<string, string> {
  const prompts = config.object('prompts');
  return Object.fromEntries((prompts?.keys() ?? []).map((name) => [name, prompts!.string(name)]));
}

async function readModules(modelDir: string, text: string): Promise<PoolingModules> {
  const found: PoolingModules = { kind: undefined, dense: [], normalizes: false, scoreTokens: undefined };
  for (const [index, { type, path }] of parseModules(text).entries()) {
    const read = async (): Promise<JsonReader> =>
      new JsonReader((await readJsonFile(modelDir, posix.join(path, 'config.json'))) ?? {}, `${path}/config.json`);
    // The names of the classes are the same in all versions, those of their packages are not.
    switch (type.split('.').at(-1)) {
      case 'Transformer':
        if (index !== 0 || path !== '') throw unsupported(type, `a model in the folder itself, not in ${path || '.'}`);
        break;
      case 'Pooling':
        found.kind = readPoolingKind(await read());
        break;
      case 'Dense':
        found.dense.push(readDense(await read(), path));
        break;
      case 'Normalize':
        found.normalizes = true;
        break;
      case 'LogitScore':
        found.scoreTokens = readScoreTokens(await read());
        break;
      default:
        throw unsupported(type, 'Transformer, Pooling, Dense, Normalize or LogitScore');
    }
  }
  return found;
}

function parseModules(text: string): { type: string; path: string }[] {
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
    const isFolder = typeof path === 'string' && (path === '' || /^[\w-]+$/.test(path));
    if (typeof type !== 'string' || !isFolder)
      throw CapstanError.mismatch('invalid_model', MODULES_FILE, 'modules with a type and a folder', entry);
    return { type, path };
  });
}

function unsupported(type: string, expected: string): CapstanError {
  return CapstanError.mismatch('unsupported_model', `${MODULES_FILE}: type`, expected, type);
}

function readPoolingKind(config: JsonReader): NativePooling['kind'] {
  const modes = readPoolingModes(config);
  const { kind } = (modes.length === 1 && POOLING_MODES.find(({ mode }) => mode === modes[0])) || {};
  if (kind === undefined)
    throw CapstanError.mismatch(
      'unsupported_model',
      `${config.where}: pooling_mode`,
      'one of cls, mean and lasttoken',
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
