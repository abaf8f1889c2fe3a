import { join } from 'node:path';
import { JsonReader, type JsonObject, parseJsonObject } from '../json-file';
import { invalidFile, readFully, unsupportedFile, withWeightFile } from '../weight-file';

export const ADAPTER_CONFIG = 'adapter_config.json';

/** Which modules a setting applies to: those whose name ends with one of these, or matches a regular expression. */
export type ModuleNames = readonly string[] | string;

/** The content of adapter_config.json that decides what an adapter computes. */
export interface LoraConfig {
  rank: number;
  alpha: number;
  /** The scale is alpha / √rank, not alpha / rank. */
  isRankStabilized: boolean;
  /** Ranks and alphas of modules, by pattern. The first pattern that matches counts. */
  rankPattern: ReadonlyMap<string, number>;
  alphaPattern: ReadonlyMap<string, number>;
  /** undefined: not in the file. */
  targets: ModuleNames | undefined;
  /** `target_modules` is `all-linear`, which leaves out the LM head. */
  hasAllLinear: boolean;
  /** Names that the names of parameters end with. */
  targetParameters: readonly string[];
  excluded: ModuleNames | undefined;
  /** undefined: all. */
  layers: readonly number[] | undefined;
  /** The version of PEFT that wrote the file. PEFT before 0.18 writes none. */
  peftVersion: string | undefined;
}

/** Settings that change what an adapter computes. Any value but null, false, '', [] and {} is refused. */
const UNSUPPORTED = [
  'use_dora',
  'use_qalora',
  'use_bdlora',
  'lora_bias',
  'modules_to_save',
  'trainable_token_indices',
  'layer_replication',
  'alora_invocation_tokens',
  'arrow_config',
  'kasa_config',
  'velora_config',
  'monteclora_config',
];
/** The other values of `init_lora_weights` change the base model too. */
const INITIALIZATIONS: readonly unknown[] = [undefined, true, false, 'gaussian', 'eva', 'orthogonal'];
const ALL_LINEAR = 'all-linear';
const LISTS = [
  'rank_pattern',
  'alpha_pattern',
  'target_modules',
  'target_parameters',
  'exclude_modules',
  'layers_to_transform',
];

/** Limits of a file that may come from anybody. PEFT writes a few kB, with at most one pattern per module. */
const MAX_CONFIG_BYTES = 1 << 20;
const MAX_PATTERNS = 10_000;

/** @throws CapstanError `invalid_model` or `unsupported_model` that names the key, or `io_error`. */
export async function readLoraConfig(dir: string): Promise<LoraConfig> {
  const config = new JsonReader(await readJson(dir), ADAPTER_CONFIG);
  refuseUnsupported(config);
  checkCounts(config);
  const targets = readNames(config, 'target_modules');
  return {
    rank: config.positiveInt('r', 8),
    alpha: config.positiveNumber('lora_alpha', 8),
    isRankStabilized: config.boolean('use_rslora', false),
    rankPattern: readPattern(config, 'rank_pattern'),
    alphaPattern: readPattern(config, 'alpha_pattern'),
    targets: targets === ALL_LINEAR ? '.*' : targets,
    hasAllLinear: targets === ALL_LINEAR,
    targetParameters: readTargetParameters(config),
    excluded: readNames(config, 'exclude_modules'),
    layers: readLayers(config),
    peftVersion: config.string('peft_version', '') || undefined,
  };
}

function readJson(dir: string): Promise<JsonObject> {
  return withWeightFile(join(dir, ADAPTER_CONFIG), ADAPTER_CONFIG, async (file) => {
    if (file.size > MAX_CONFIG_BYTES)
      throw invalidFile(ADAPTER_CONFIG, `at most ${MAX_CONFIG_BYTES} bytes`, `${file.size} bytes`);
    const bytes = Buffer.alloc(file.size);
    await readFully(file, bytes, 0);
    return parseJsonObject(bytes.toString('utf8'), ADAPTER_CONFIG);
  });
}

/** Each module is compared with all patterns and names. */
function checkCounts(config: JsonReader): void {
  let count = 0;
  for (const key of LISTS) {
    const value = config.raw(key);
    count += typeof value === 'object' ? Object.keys(value as object).length : 0;
    if (count > MAX_PATTERNS)
      throw invalidFile(
        `${ADAPTER_CONFIG}: ${key}`,
        `at most ${MAX_PATTERNS} patterns and names in this file`,
        `more than ${MAX_PATTERNS}`,
      );
  }
}

function refuseUnsupported(config: JsonReader): void {
  const refuse = (key: string, expected: string, received: unknown) => {
    throw unsupportedFile(`${ADAPTER_CONFIG}: ${key}`, expected, JSON.stringify(received));
  };
  const type = config.string('peft_type', 'LORA');
  if (type !== 'LORA') refuse('peft_type', 'LORA', type);
  const task = config.raw('task_type') ?? 'CAUSAL_LM';
  if (task !== 'CAUSAL_LM') refuse('task_type', 'CAUSAL_LM', task);
  const bias = config.string('bias', 'none');
  if (bias !== 'none') refuse('bias', 'none', bias);
  const initialization = config.raw('init_lora_weights');
  if (!INITIALIZATIONS.includes(initialization))
    refuse('init_lora_weights', 'true, false, gaussian, eva or orthogonal', initialization);
  for (const key of UNSUPPORTED) {
    const value = config.raw(key);
    if (!isNeutral(value)) refuse(key, 'a plain LoRA adapter without it', value);
  }
}

function isNeutral(value: unknown): boolean {
  if (typeof value === 'object' && value !== null) return Object.keys(value).length === 0;
  return value === undefined || value === false || value === '';
}

function readNames(config: JsonReader, key: string): ModuleNames | undefined {
  const value = config.raw(key);
  if (value === undefined || typeof value === 'string') return value;
  if (Array.isArray(value) && value.every((name) => typeof name === 'string')) return value;
  throw config.mismatch(key, 'a list of module names, or a regular expression', value);
}

function readTargetParameters(config: JsonReader): readonly string[] {
  const names = readNames(config, 'target_parameters') ?? [];
  if (typeof names !== 'string') return names;
  throw config.mismatch('target_parameters', 'a list of parameter names', names);
}

function readPattern(config: JsonReader, key: string): Map<string, number> {
  const patterns = config.object(key);
  return new Map((patterns?.keys() ?? []).map((pattern) => [pattern, patterns!.positiveNumber(pattern)]));
}

function readLayers(config: JsonReader): number[] | undefined {
  const value = config.raw('layers_to_transform');
  if (value === undefined) return undefined;
  const layers: unknown[] = Array.isArray(value) ? value : [value];
  if (layers.every((layer) => Number.isSafeInteger(layer) && (layer as number) >= 0)) return layers as number[];
  throw config.mismatch('layers_to_transform', 'a layer number or a list of them', value);
}
