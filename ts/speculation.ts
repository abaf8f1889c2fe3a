import type { NativeQuantization, NativeSpeculation } from './addon-types';
import { checkKnownKeys, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';

/**
 * Speculative decoding: tokens are proposed cheaply, and one step of the model verifies several of them. The output is
 * the same, bit for bit, as without it; on CUDA this needs `deterministic`.
 */
export interface SpeculativeOptions {
  /**
   * Where the proposals come from. `'ngram'`: prompt look-up. It finds the last tokens earlier in the same prompt and
   * completion, and proposes what followed there. `'grammar'`: the text that structured output forces, such as the keys
   * of a JSON schema. `'draft_model'`: a smaller model with the same vocabulary, on the CPU. `'mtp'`: the model's own
   * MTP head, on the CPU, with checkpoints of Qwen3.5 and Qwen3-Next. Default: `'draft_model'` with `model`, else
   * `'ngram'`.
   */
  method?: 'ngram' | 'grammar' | 'draft_model' | 'mtp';
  /** Maximum number of tokens to propose at once, 1 to 64. */
  numSpeculativeTokens: number;
  /** `'draft_model'`: the draft model, in the forms that `Engine.load` takes. */
  model?: string;
  /** `'draft_model'`: how the weights of the draft model are quantized at load. Default: `'none'`. */
  quantization?: NativeQuantization;
  /** `'ngram'`: maximum number of last tokens to find, 1 to 64. Default: `promptLookupMin`, else 5. */
  promptLookupMax?: number;
  /** `'ngram'`: minimum number of last tokens to find, 1 to `promptLookupMax`. Default: `promptLookupMax`, else 5. */
  promptLookupMin?: number;
}

/** A requested draft model. */
export interface DraftChoice {
  model: string;
  quantization: NativeQuantization;
}

type Method = NonNullable<SpeculativeOptions['method']>;

const MAX_TOKENS = 64;
const DEFAULT_LOOKUP = 5;
const METHODS = ['ngram', 'grammar', 'draft_model', 'mtp'] as const;
/** Of weights at load. */
export const QUANTIZATIONS = ['none', 'int8', 'int4'] as const;
/** The options of one method only. */
const OWN_OPTIONS = {
  model: 'draft_model',
  quantization: 'draft_model',
  promptLookupMax: 'ngram',
  promptLookupMin: 'ngram',
} as const;
const KEYS = Object.keys({
  method: true,
  numSpeculativeTokens: true,
  model: true,
  quantization: true,
  promptLookupMax: true,
  promptLookupMin: true,
} satisfies Record<keyof SpeculativeOptions, true>);

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function resolveSpeculation(options: SpeculativeOptions): NativeSpeculation {
  checkObject('speculative', options);
  const method = checkMethod(options);
  checkKnownKeys('speculative', options, KEYS);
  for (const [name, owner] of Object.entries(OWN_OPTIONS) as [keyof typeof OWN_OPTIONS, Method][])
    if (method !== owner && options[name] !== undefined)
      throw CapstanError.argument(`speculative.${name}`, `no value with the method '${method}'`, options[name]);
  if (method === 'draft_model') {
    checkString('speculative.model', options.model);
    checkOneOf('speculative.quantization', options.quantization ?? 'none', QUANTIZATIONS);
  }
  const count = (name: 'numSpeculativeTokens' | 'promptLookupMax' | 'promptLookupMin', value: unknown, max: number) =>
    checkNumber(`speculative.${name}`, value, { min: 1, max, isInteger: true });
  const { promptLookupMax: most, promptLookupMin: least } = options;
  const promptLookupMax = count('promptLookupMax', most ?? least ?? DEFAULT_LOOKUP, MAX_TOKENS);
  return {
    numSpeculativeTokens: count('numSpeculativeTokens', options.numSpeculativeTokens, MAX_TOKENS),
    promptLookupMax,
    promptLookupMin: count('promptLookupMin', least ?? promptLookupMax, promptLookupMax),
    fromGrammar: method === 'grammar',
  };
}

/** Whether valid options ask for the model's MTP head. */
export function usesMtpHead({ speculative }: { speculative?: SpeculativeOptions }): boolean {
  return speculative?.method === 'mtp';
}

/** Returns the draft model that valid options ask for. */
export function draftChoice({ speculative }: { speculative?: SpeculativeOptions }): DraftChoice | undefined {
  if (speculative?.model === undefined) return undefined;
  return { model: speculative.model, quantization: speculative.quantization ?? 'none' };
}

function checkMethod({ method, model }: SpeculativeOptions): Method {
  const given: unknown = method ?? (model === undefined ? 'ngram' : 'draft_model');
  const known = METHODS.find((name) => name === given);
  if (known !== undefined) return known;
  const expected = "'ngram', 'grammar', 'draft_model' or 'mtp'";
  if (typeof given !== 'string') throw CapstanError.argument('speculative.method', expected, given);
  throw new CapstanError(
    'invalid_argument',
    `speculative.method: speculative method '${given}' is not supported; expected ${expected}`,
    { param: 'speculative.method' },
  );
}
