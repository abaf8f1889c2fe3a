import type { SpeculativeOptions } from '../../ts';
import { UsageError } from '../base/usage-error';
import { parseJsonObject } from './flag-values';

const EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5}';
/** The fields of vLLM's object that this server has, and the method that has them, if not all. */
const FIELDS: Readonly<Record<string, Method | 'all'>> = {
  method: 'all',
  num_speculative_tokens: 'all',
  model: 'draft_model',
  quantization: 'draft_model',
  prompt_lookup_max: 'ngram',
  prompt_lookup_min: 'ngram',
};
const MAX_TOKENS = 64;
const QUANTIZATIONS = ['none', 'int8', 'int4'] as const;
/** Older names of vLLM for the heads of these models. Those of other models are refused. */
const MTP_METHODS = ['mtp', 'qwen3_next_mtp', 'qwen3_5_mtp'];

type Method = NonNullable<SpeculativeOptions['method']>;

/** Parses the value of `--speculative-config`. */
export function parseSpeculation(value: string, source: string): SpeculativeOptions {
  const given = parseJsonObject(value, source, EXAMPLE);
  const method = checkMethod(given, source);
  const unknown = Object.keys(given).find((key) => !Object.hasOwn(FIELDS, key));
  if (unknown !== undefined)
    throw new UsageError(`${source}: expected the fields ${Object.keys(FIELDS).join(', ')}, got '${unknown}'`);
  const count = (name: string, max = MAX_TOKENS): number | undefined =>
    given[name] === undefined ? undefined : checkCount(given[name], `${source}: ${name}`, max);
  const numSpeculativeTokens = count('num_speculative_tokens');
  if (numSpeculativeTokens === undefined)
    throw new UsageError(`${source}: expected num_speculative_tokens, such as ${EXAMPLE}, got '${value}'`);
  for (const [name, owner] of Object.entries(FIELDS))
    if (owner !== 'all' && owner !== method && given[name] !== undefined)
      throw new UsageError(`${source}: ${name}: only for the method '${owner}', got '${method}'`);
  if (method === 'draft_model') return { method, numSpeculativeTokens, ...checkDraft(given, source) };
  const promptLookupMax = count('prompt_lookup_max');
  const promptLookupMin = count('prompt_lookup_min', promptLookupMax);
  return {
    method,
    numSpeculativeTokens,
    ...(promptLookupMax === undefined ? {} : { promptLookupMax }),
    ...(promptLookupMin === undefined ? {} : { promptLookupMin }),
  };
}

function checkDraft(
  { model, quantization }: Record<string, unknown>,
  source: string,
): Pick<SpeculativeOptions, 'model' | 'quantization'> {
  if (typeof model !== 'string' || model === '')
    throw new UsageError(`${source}: model: expected the draft model, got ${JSON.stringify(model) ?? 'none'}`);
  if (quantization === undefined || quantization === null) return { model };
  const known = QUANTIZATIONS.find((name) => name === quantization);
  if (known === undefined)
    throw new UsageError(
      `${source}: quantization: expected "none", "int8" or "int4", got ${JSON.stringify(quantization)}`,
    );
  return { model, quantization: known };
}

function checkMethod({ method, model }: Record<string, unknown>, source: string): Method {
  if (method !== undefined && typeof method !== 'string')
    throw new UsageError(
      `${source}: method: expected "ngram", "grammar", "draft_model" or "mtp", got ${JSON.stringify(method)}`,
    );
  const name = method ?? (model === undefined ? 'ngram' : 'draft_model');
  if (name === 'ngram' || name === 'grammar' || name === 'draft_model') return name;
  if (MTP_METHODS.includes(name)) return 'mtp';
  throw new UsageError(
    `${source}: speculative method '${name}' is not supported; expected 'ngram', 'grammar', 'draft_model' or 'mtp'`,
  );
}

function checkCount(value: unknown, source: string, max: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new UsageError(`${source}: expected a whole number from 1 to ${max}, got ${JSON.stringify(value)}`);
}
