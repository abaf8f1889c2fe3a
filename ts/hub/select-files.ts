import { posix } from 'node:path';
import { CapstanError } from '../errors';
import { EMBEDDING_FILE, loneFile } from '../model/checkpoint';
import { isGgufModel, QUANTIZATION } from '../model/gguf/files';
import { canLoadQuantization } from '../model/gguf/tensor-types';
import { QUANTIZATION_FILES } from '../model/quantization-file';
import { MODULE_FOLDER } from '../model/sentence-transformers';

/** The files of a repository that a model needs. */
export interface Selection<File> {
  format: 'safetensors' | 'gguf';
  /** The chosen GGUF quantization, or null if the files do not name one. */
  quantization: string | null;
  /** Configuration, tokenizer and chat template. */
  texts: File[];
  /** In the order of the parts. The first is loaded. */
  weights: File[];
}

interface Named {
  path: string;
}

/** The files beside the weights that this engine, or transformers, reads. */
const TEXTS = [
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template.jinja',
  'chat_template.json',
  ...Object.keys(QUANTIZATION_FILES),
  'modules.json',
  'config_sentence_transformers.json',
  'sentence_bert_config.json',
  'sentence_roberta_config.json',
  'sentence_xlm-roberta_config.json',
];
const MODULE_CONFIG = new RegExp(String.raw`^${MODULE_FOLDER}/config\.json$`);
const MODULE_WEIGHTS = new RegExp(String.raw`^${MODULE_FOLDER}/model\.safetensors$`);
/** Sources of a tokenizer, best first. Only the first that exists is needed. */
const TOKENIZERS = ['tokenizer.json', 'tokenizer.model', 'tekken.json'];
const NAMED_TEMPLATE = /^additional_chat_templates\/[^/]+\.jinja$/;
export const SINGLE_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';
/** Such as model-00001-of-00002 and, for Qwen3.5, model.safetensors-00001-of-00002. */
const SHARD = /^[\w.-]+-(\d{5})-of-(\d{5})\.safetensors$/;
const SHARD_STEMS = ['model', 'model.safetensors'];
/** The files of Mistral's own library, beside those with an index. */
const OTHER_SHARDS = /^consolidated/;
const GGUF_PART = /-(\d{5})-of-(\d{5})\.gguf$/i;
/** Of several quantizations, this one is taken unless the name says which. */
const DEFAULT_QUANTIZATION = 'Q4_K_M';

/** @throws CapstanError `model_not_found` that lists what the repository has. */
export function selectFiles<File extends Named>(
  repository: string,
  files: readonly File[],
  variant: string | undefined,
): Selection<File> {
  const weights = variant === undefined ? safetensorsOf(repository, files) : [];
  if (weights.length > 0) {
    const others = files.filter(({ path }) => MODULE_WEIGHTS.test(path) || path === EMBEDDING_FILE);
    return { format: 'safetensors', quantization: null, texts: textsOf(files), weights: [...weights, ...others] };
  }
  const { name, parts } = chooseGguf(repository, files, variant);
  const texts = files.filter(({ path }) => path === 'config.json');
  return { format: 'gguf', quantization: name, texts, weights: parts };
}

function textsOf<File extends Named>(files: readonly File[]): File[] {
  const tokenizer = TOKENIZERS.find((name) => files.some(({ path }) => path === name));
  return files.filter(
    ({ path }) => TEXTS.includes(path) || path === tokenizer || NAMED_TEMPLATE.test(path) || MODULE_CONFIG.test(path),
  );
}

/** Returns the weights and their index, or nothing if the repository has none in this format. */
function safetensorsOf<File extends Named>(repository: string, files: readonly File[]): File[] {
  const find = (name: string): File[] => files.filter(({ path }) => path === name);
  const single = find(SINGLE_FILE);
  if (single.length > 0) return single;
  const index = find(INDEX_FILE);
  const shards = shardsOf(files);
  if (index.length === 0)
    return files.some(({ path }) => isGgufModel(path)) ? [] : find(loneFile(pathsOf(files)) ?? '');
  if (shards.length === 0) return [];
  demandAllParts(repository, shards, SHARD);
  return [...index, ...shards];
}

function pathsOf(files: readonly Named[]): string[] {
  return files.map(({ path }) => path);
}

/** Returns the parts of one model. */
function shardsOf<File extends Named>(files: readonly File[]): File[] {
  const stemOf = ({ path }: File): string => path.replace(/-\d{5}-of-\d{5}\.safetensors$/, '');
  const parts = files.filter(({ path }) => SHARD.test(path) && !OTHER_SHARDS.test(path));
  const stems = new Set(parts.map(stemOf));
  const stem = SHARD_STEMS.find((name) => stems.has(name)) ?? [...stems][0];
  return parts.filter((file) => stemOf(file) === stem);
}

function chooseGguf<File extends Named>(
  repository: string,
  files: readonly File[],
  variant: string | undefined,
): { name: string | null; parts: File[] } {
  const groups = quantizationsOf(files);
  if (groups.length === 0) throw withoutWeights(repository, files, variant);
  const isFile = variant !== undefined && /\.gguf$/i.test(variant);
  const matches = isFile
    ? groups.filter(({ parts }) => parts.some(({ path }) => path === variant || posix.basename(path) === variant))
    : named(groups, variant);
  if (matches.length === 1) {
    demandAllParts(repository, matches[0].parts, GGUF_PART);
    return matches[0];
  }
  throw unclear(repository, groups, matches, variant);
}

function unclear(
  repository: string,
  groups: readonly Quantized<Named>[],
  matches: readonly Quantized<Named>[],
  variant: string | undefined,
): CapstanError {
  const filesOf = (models: readonly Quantized<Named>[]): string[] => models.map(({ parts }) => parts[0].path);
  const names = [...new Set(groups.flatMap(({ name }) => name ?? []))];
  const choices = names.length > 0 ? names : filesOf(groups);
  const wanted = variant === undefined ? 'one GGUF model' : `a GGUF model ${variant}`;
  const received =
    matches.length > 1
      ? `${matches.length} of them. Name a file: ${list(filesOf(matches))}`
      : `${variant === undefined ? 'several' : 'none'}. It has ${list(choices)}`;
  const example = matches.length > 1 ? filesOf(matches)[0] : (choices.find(canLoadQuantization) ?? choices[0]);
  return new CapstanError(
    'model_not_found',
    `${repository}: expected ${wanted}, got ${received}. For example: ${repository}:${example}`,
  );
}

function named<File>(groups: readonly Quantized<File>[], variant: string | undefined): Quantized<File>[] {
  const called = (name: string): Quantized<File>[] =>
    groups.filter((group) => group.name?.toLowerCase() === name.toLowerCase());
  if (variant === undefined) return groups.length === 1 ? [...groups] : called(DEFAULT_QUANTIZATION);
  const exact = called(variant);
  // Unsloth's own mixtures are often named without their prefix.
  return exact.length > 0 ? exact : called(`UD-${variant}`);
}

/** A GGUF model: one file, or the parts of one. */
export interface Quantized<File> {
  /** Null if the file does not name its quantization. */
  name: string | null;
  parts: File[];
}

/** Returns the GGUF models of a repository, in the order of their names. */
export function quantizationsOf<File extends Named>(files: readonly File[]): Quantized<File>[] {
  const models = new Map<string, Quantized<File>>();
  const sorted = [...files].sort((a, b) => (a.path < b.path ? -1 : 1));
  for (const file of sorted) {
    if (!isGgufModel(posix.basename(file.path))) continue;
    const stem = file.path.replace(GGUF_PART, '').replace(/\.gguf$/i, '');
    const model = models.get(stem) ?? { name: quantizationName(stem), parts: [] };
    model.parts.push(file);
    models.set(stem, model);
  }
  return [...models.values()];
}

/** The last match counts, because a model's own name may contain one. A folder may name it instead of the file. */
function quantizationName(stem: string): string | null {
  for (const text of [posix.basename(stem), posix.basename(posix.dirname(stem))]) {
    const last = [...text.matchAll(QUANTIZATION)].at(-1);
    if (last !== undefined) return last[1].toUpperCase();
  }
  return null;
}

/** @param pattern Matches the number of a part and the number of parts. */
function demandAllParts(repository: string, files: readonly Named[], pattern: RegExp): void {
  const numbers = files.flatMap(({ path }) => {
    const [, part, total] = pattern.exec(path) ?? [];
    return part === undefined ? [] : [{ part: Number(part), total: Number(total) }];
  });
  if (numbers.length === 0) return;
  const { total } = numbers[0];
  const parts = new Set(numbers.map(({ part }) => part));
  const missing = Array.from({ length: total }, (_, i) => i + 1).filter((part) => !parts.has(part));
  if (missing.length > 0 || numbers.some((number) => number.total !== total))
    throw new CapstanError(
      'invalid_model',
      `${repository}: expected ${total} parts of ${files[0].path}, got ${numbers.length}. The repository is incomplete`,
    );
}

function withoutWeights(repository: string, files: readonly Named[], variant: string | undefined): CapstanError {
  const hasSafetensors = files.some(({ path }) => path.endsWith('.safetensors'));
  if (variant !== undefined && hasSafetensors)
    return new CapstanError(
      'model_not_found',
      `${repository}: expected GGUF files for :${variant}, got a repository of safetensors. ` +
        `Name it without :${variant}; the option quantization (--quantization) quantizes at load`,
    );
  const other = files.find(({ path }) => /\.(safetensors|bin|pt|pth|onnx|msgpack|h5|ckpt)$/.test(path));
  const received = other === undefined ? 'none' : `only files such as ${other.path}`;
  return new CapstanError('model_not_found', `${repository}: expected safetensors or GGUF files, got ${received}`);
}

const MAX_LISTED = 24;

function list(names: readonly string[]): string {
  return names.slice(0, MAX_LISTED).join(', ') + (names.length > MAX_LISTED ? ', …' : '');
}
