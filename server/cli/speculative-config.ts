import type { SpeculativeOptions } from '../../ts';
import { UsageError } from '../base/usage-error';
import { parseJsonObject } from './flag-values';

const EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5}';
/** The fields of vLLM's object that this server has. */
const FIELDS = ['method', 'num_speculative_tokens', 'prompt_lookup_max', 'prompt_lookup_min'];
const MAX_TOKENS = 64;
/** Older names of vLLM for the heads of these models. Those of other models are refused. */
const MTP_METHODS = ['mtp', 'qwen3_next_mtp', 'qwen3_5_mtp'];

/** Parses the value of `--speculative-config`. */
export function parseSpeculation(value: string, source: string): SpeculativeOptions {
  const given = parseJsonObject(value, source, EXAMPLE);
  const method = checkMethod(given, source);
  const unknown = Object.keys(given).find((key) => !FIELDS.includes(key));
  if (unknown !== undefined)
    throw new UsageError(`${source}: expected the fields ${FIELDS.join(', ')}, got '${unknown}'`);
  const count = (name: string, max = MAX_TOKENS): number | undefined =>
    given[name] === undefined ? undefined : checkCount(given[name], `${source}: ${name}`, max);
  const numSpeculativeTokens = count('num_speculative_tokens');
  if (numSpeculativeTokens === undefined)
    throw new UsageError(`${source}: expected num_speculative_tokens, such as ${EXAMPLE}, got '${value}'`);
  if (method === 'mtp') {
    const lookup = FIELDS.find((key) => key.startsWith('prompt_lookup') && given[key] !== undefined);
    if (lookup !== undefined) throw new UsageError(`${source}: ${lookup}: only for the method 'ngram', got 'mtp'`);
    return { method, numSpeculativeTokens };
  }
  const promptLookupMax = count('prompt_lookup_max');
  const promptLookupMin = count('prompt_lookup_min', promptLookupMax);
  return {
    method,
    numSpeculativeTokens,
    ...(promptLookupMax === undefined ? {} : { promptLookupMax }),
    ...(promptLookupMin === undefined ? {} : { promptLookupMin }),
  };
}

function checkMethod({ method, model }: Record<string, unknown>, source: string): 'ngram' | 'mtp' {
  if (method !== undefined && typeof method !== 'string')
    throw new UsageError(`${source}: method: expected "ngram" or "mtp", got ${JSON.stringify(method)}`);
  const name = method ?? (model === undefined ? 'ngram' : 'draft_model');
  if (name === 'ngram') return name;
  if (MTP_METHODS.includes(name)) return 'mtp';
  throw new UsageError(`${source}: speculative method '${name}' is not supported yet; expected 'ngram' or 'mtp'`);
}

function checkCount(value: unknown, source: string, max: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new UsageError(`${source}: expected a whole number from 1 to ${max}, got ${JSON.stringify(value)}`);
}
