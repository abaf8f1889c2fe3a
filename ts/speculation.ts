import type { NativeSpeculation } from './addon-types';
import { checkKnownKeys, checkNumber, checkObject } from './checks';
import { CapstanError } from './errors';

/**
 * Speculative decoding: tokens are proposed cheaply, and one step of the model verifies several of them. The output is
 * the same, bit for bit, as without it; on CUDA this needs `deterministic`.
 */
export interface SpeculativeOptions {
  /**
   * Where the proposals come from. `'ngram'`: prompt look-up. It finds the last tokens earlier in the same prompt and
   * completion, and proposes what followed there. `'mtp'`: the model's own MTP head, on the CPU, with checkpoints of
   * Qwen3.5 and Qwen3-Next. Default: `'ngram'`.
   */
  method?: 'ngram' | 'mtp';
  /** Maximum number of tokens to propose at once, 1 to 64. */
  numSpeculativeTokens: number;
  /** `'ngram'`: maximum number of last tokens to find, 1 to 64. Default: `promptLookupMin`, else 5. */
  promptLookupMax?: number;
  /** `'ngram'`: minimum number of last tokens to find, 1 to `promptLookupMax`. Default: `promptLookupMax`, else 5. */
  promptLookupMin?: number;
}

const MAX_TOKENS = 64;
const DEFAULT_LOOKUP = 5;
const KEYS = Object.keys({
  method: true,
  numSpeculativeTokens: true,
  promptLookupMax: true,
  promptLookupMin: true,
} satisfies Record<keyof SpeculativeOptions, true>);

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function resolveSpeculation(options: SpeculativeOptions): NativeSpeculation {
  const given = checkObject('speculative', options);
  const method = checkMethod('model' in given ? 'draft_model' : (given.method ?? 'ngram'));
  checkKnownKeys('speculative', options, KEYS);
  for (const name of ['promptLookupMax', 'promptLookupMin'] as const)
    if (method === 'mtp' && options[name] !== undefined)
      throw CapstanError.argument(`speculative.${name}`, "no value with the method 'mtp'", options[name]);
  const count = (name: 'numSpeculativeTokens' | 'promptLookupMax' | 'promptLookupMin', value: unknown, max: number) =>
    checkNumber(`speculative.${name}`, value, { min: 1, max, isInteger: true });
  const { promptLookupMax: most, promptLookupMin: least } = options;
  const promptLookupMax = count('promptLookupMax', most ?? least ?? DEFAULT_LOOKUP, MAX_TOKENS);
  return {
    numSpeculativeTokens: count('numSpeculativeTokens', options.numSpeculativeTokens, MAX_TOKENS),
    promptLookupMax,
    promptLookupMin: count('promptLookupMin', least ?? promptLookupMax, promptLookupMax),
  };
}

/** Whether valid options ask for the model's MTP head. */
export function usesMtpHead({ speculative }: { speculative?: SpeculativeOptions }): boolean {
  return speculative?.method === 'mtp';
}

function checkMethod(method: unknown): 'ngram' | 'mtp' {
  if (method === 'ngram' || method === 'mtp') return method;
  if (typeof method !== 'string') throw CapstanError.argument('speculative.method', "'ngram' or 'mtp'", method);
  throw new CapstanError(
    'invalid_argument',
    `speculative.method: speculative method '${method}' is not supported yet; expected 'ngram' or 'mtp'`,
    { param: 'speculative.method' },
  );
}
