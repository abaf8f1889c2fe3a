import { types } from 'node:util';
import type { NativeSampling } from './addon-types';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkOneOf, checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { StructuredOutput } from './structured-output';

/** How tokens are chosen and when a completion ends. A field that is left out takes the default that it names. */
export interface SamplingParams {
  /**
   * Divides the logits before the softmax, 0 or more. 0 takes the most likely token (greedy); values between 0 and
   * 0.01 count as 0.01. Default: the model's, else 1.
   */
  temperature?: number;
  /**
   * Samples from the smallest set of most likely tokens whose probabilities add up to this value, in (0, 1].
   * Default: the model's, else 1.
   */
  topP?: number;
  /** Samples from this many most likely tokens; 0 or -1 = all. Default: the model's, else 0. */
  topK?: number;
  /** Excludes tokens less likely than this share of the most likely token's probability, 0 to 1. Default: 0. */
  minP?: number;
  /** Subtracted from the logit of each token that the completion already contains, -2 to 2. Default: 0. */
  presencePenalty?: number;
  /** Subtracted from a token's logit for each time that the completion contains it, -2 to 2. Default: 0. */
  frequencyPenalty?: number;
  /**
   * Penalizes tokens of the prompt and the completion: divides positive logits and multiplies negative ones, above 0
   * (CTRL, arXiv 1909.05858). Default: the model's, else 1.
   */
  repetitionPenalty?: number;
  /** 64-bit integer. Equal seeds and requests give equal tokens. Default: drawn at random for each request. */
  seed?: number | bigint;
  /**
   * Maximum number of completion tokens. 0 generates nothing, which is useful with `promptLogprobs`.
   * Default: the rest of the context.
   */
  maxTokens?: number;
  /** Lowers `maxTokens` to the rest of the context where it is larger, instead of refusing the call. Default: false. */
  clampMaxTokens?: boolean;
  /** Suppresses end-of-sequence tokens and stop strings until the completion has this many tokens. Default: 0. */
  minTokens?: number;
  /** Strings that end the completion. The text stops before the string; see `includeStopInOutput`. */
  stop?: string | readonly string[];
  /** Token ids that end the completion, in addition to the model's end-of-sequence tokens. */
  stopTokenIds?: readonly number[] | Int32Array;
  /** Continues after the model's end-of-sequence tokens. Default: false. */
  ignoreEos?: boolean;
  /** Keeps the stop string in the text. Default: false. */
  includeStopInOutput?: boolean;
  /** Omits special tokens from the text. Default: true. */
  skipSpecialTokens?: boolean;
  /** Accepted for compatibility with other engines. Has no effect: both values give the same text. */
  spacesBetweenSpecialTokens?: boolean;
  /** Added to the logits, by token id. */
  logitBias?: Readonly<Record<string, number>> | ReadonlyMap<number, number>;
  /** The only token ids that may be sampled. Default: all. */
  allowedTokenIds?: readonly number[] | Int32Array;
  /**
   * Texts that the completion must not contain, up to 1,000 (`MAX_BAD_WORDS`). Each is banned as two token sequences,
   * as vLLM does: at the start of a text, and after a space.
   */
  badWords?: readonly string[];
  /** Constrains the text to a schema, pattern or grammar. With a reasoning model, the text after the reasoning. */
  structuredOutput?: StructuredOutput;
  /**
   * Keeps at most this many prompt tokens; -1 = as many as the context holds beside `maxTokens`.
   * Default: no truncation, a prompt that is too long fails with `context_length_exceeded`.
   */
  truncatePrompt?: number;
  /** The end of the prompt that `truncatePrompt` cuts off. Default: `'left'`. */
  truncationSide?: 'left' | 'right';
  /** Number of alternatives with log-probabilities per completion token; 0 = only the sampled token. Default: none. */
  logprobs?: number;
  /** Number of alternatives with log-probabilities per prompt token; 0 = only the prompt token. Default: none. */
  promptLogprobs?: number;
  /** Name of a loaded LoRA adapter (`Engine.loadAdapter`). Default: none, the model without an adapter. */
  adapter?: string;
  /** Number of choices generated for the prompt, 1 to 128. More than 1 needs a temperature above 0. Default: 1. */
  n?: number;
}

/** The sampling parameters that `generation_config.json` may set. */
export type SamplingDefaults = Pick<SamplingParams, 'temperature' | 'topP' | 'topK' | 'repetitionPenalty'>;

/** The limits that a request is checked against. */
export interface SamplingLimits {
  vocabSize: number;
  maxModelLen: number;
  numPromptTokens: number;
}

/** NOTE: a record, so that a field missing here does not compile. */
export const SAMPLING_KEYS: readonly string[] = Object.keys({
  temperature: true,
  topP: true,
  topK: true,
  minP: true,
  presencePenalty: true,
  frequencyPenalty: true,
  repetitionPenalty: true,
  seed: true,
  maxTokens: true,
  clampMaxTokens: true,
  minTokens: true,
  stop: true,
  stopTokenIds: true,
  ignoreEos: true,
  includeStopInOutput: true,
  skipSpecialTokens: true,
  spacesBetweenSpecialTokens: true,
  logitBias: true,
  allowedTokenIds: true,
  badWords: true,
  structuredOutput: true,
  truncatePrompt: true,
  truncationSide: true,
  logprobs: true,
  promptLogprobs: true,
  adapter: true,
  n: true,
} satisfies Record<keyof SamplingParams, true>);

const MAX_CHOICES = 128;
const TEMPERATURE = { min: 0 } as const;
const TOP_P = { min: 0, max: 1, isMinOpen: true } as const;
const TOP_K = { min: -1, max: 2 ** 31 - 1, isInteger: true } as const;
const REPETITION_PENALTY = { min: 0, isMinOpen: true } as const;
const MAX_TOKENS = { min: 0, isInteger: true } as const;
/** vLLM's floor. Lower temperatures overflow the logits without changing the choice. */
const MIN_TEMPERATURE = 0.01;
/** Bounds that are safe in the engine's 32-bit floats. Larger values do not change the choice. */
const MIN_FLOAT = 1e-30;
const MAX_FLOAT = 1e30;
const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

/** @throws CapstanError `invalid_argument` that names the invalid default. */
export function checkSamplingDefaults(param: string, defaults: SamplingDefaults): SamplingDefaults {
  checkKnownKeys(param, checkObject(param, defaults), ['temperature', 'topP', 'topK', 'repetitionPenalty']);
  const { temperature, topP, topK, repetitionPenalty } = defaults;
  if (temperature !== undefined) checkNumber(`${param}.temperature`, temperature, TEMPERATURE);
  if (topP !== undefined) checkNumber(`${param}.topP`, topP, TOP_P);
  if (topK !== undefined) checkNumber(`${param}.topK`, topK, TOP_K);
  if (repetitionPenalty !== undefined) checkNumber(`${param}.repetitionPenalty`, repetitionPenalty, REPETITION_PENALTY);
  return defaults;
}

/** Cuts the prompt as `truncatePrompt` and `truncationSide` say. */
export function truncatePrompt(
  promptTokenIds: Int32Array,
  { truncatePrompt: limit, truncationSide, maxTokens = 1 }: SamplingParams,
  maxModelLen: number,
): Int32Array {
  const side = checkOneOf('truncationSide', truncationSide ?? 'left', ['left', 'right']);
  if (limit === undefined) return promptTokenIds;
  const isValid = limit === -1 || (Number.isSafeInteger(limit) && limit >= 1);
  if (!isValid) throw CapstanError.argument('truncatePrompt', 'an integer of 1 or more, or -1', limit);
  const numKept = limit === -1 ? Math.max(maxModelLen - checkNumber('maxTokens', maxTokens, MAX_TOKENS), 1) : limit;
  if (promptTokenIds.length <= numKept) return promptTokenIds;
  return side === 'left' ? promptTokenIds.slice(-numKept) : promptTokenIds.slice(0, numKept);
}

/**
 * Returns the checked parameters: those of the request, else the model's defaults, else ours. The engine adds the
 * fields that need a tokenizer or a compiler (bad words, thinking budget, structured output).
 * @throws CapstanError `invalid_argument`, or `context_length_exceeded` when prompt and completion do not fit.
 */
export function resolveSampling(
  params: SamplingParams,
  defaults: SamplingDefaults,
  limits: SamplingLimits,
): { sampling: NativeSampling; numChoices: number } {
  checkKnownKeys('options', checkObject('options', params), SAMPLING_KEYS);
  const maxTokens = resolveMaxTokens(params, limits);
  const temperature = checkNumber('temperature', params.temperature ?? defaults.temperature ?? 1, TEMPERATURE);
  const numChoices = checkNumber('n', params.n ?? 1, { min: 1, max: MAX_CHOICES, isInteger: true });
  if (numChoices > 1 && temperature === 0)
    throw CapstanError.argument('n', '1 at temperature 0, where all choices are equal', numChoices);
  const [logitBiasIds, logitBiasValues] = resolveLogitBias(params.logitBias, limits.vocabSize);
  const sampling: NativeSampling = {
    temperature: temperature === 0 ? 0 : clamp(temperature, MIN_TEMPERATURE, MAX_FLOAT),
    topK: Math.max(checkNumber('topK', params.topK ?? defaults.topK ?? 0, TOP_K), 0),
    topP: clamp(checkNumber('topP', params.topP ?? defaults.topP ?? 1, TOP_P), MIN_FLOAT, 1),
    minP: checkNumber('minP', params.minP ?? 0, { min: 0, max: 1 }),
    presencePenalty: checkNumber('presencePenalty', params.presencePenalty ?? 0, { min: -2, max: 2 }),
    frequencyPenalty: checkNumber('frequencyPenalty', params.frequencyPenalty ?? 0, { min: -2, max: 2 }),
    repetitionPenalty: clamp(
      checkNumber('repetitionPenalty', params.repetitionPenalty ?? defaults.repetitionPenalty ?? 1, REPETITION_PENALTY),
      MIN_FLOAT,
      MAX_FLOAT,
    ),
    seed: resolveSeed(params.seed),
    maxTokens,
    minTokens: checkNumber('minTokens', params.minTokens ?? 0, { min: 0, max: maxTokens, isInteger: true }),
    ignoreEos: checkBoolean('ignoreEos', params.ignoreEos ?? false),
    stopTokenIds: checkTokenIds('stopTokenIds', params.stopTokenIds ?? [], limits.vocabSize),
    stop: resolveStop(params.stop),
    includeStopInOutput: checkBoolean('includeStopInOutput', params.includeStopInOutput ?? false),
    skipSpecialTokens: checkBoolean('skipSpecialTokens', params.skipSpecialTokens ?? true),
    logitBiasIds,
    logitBiasValues,
    allowedTokenIds: resolveAllowedTokenIds(params.allowedTokenIds, limits.vocabSize),
    logprobs: resolveNumAlternatives('logprobs', params.logprobs, limits.vocabSize),
    promptLogprobs: resolveNumAlternatives('promptLogprobs', params.promptLogprobs, limits.vocabSize),
    badWords: [],
    thinkingBudget: null,
  };
  if (params.spacesBetweenSpecialTokens !== undefined)
    checkBoolean('spacesBetweenSpecialTokens', params.spacesBetweenSpecialTokens);
  return { sampling, numChoices };
}

/** @throws CapstanError `context_length_exceeded` if the texts together are longer than `maxBytes`. */
export function checkTextLength(texts: readonly string[], maxModelLen: number, maxBytes: number): void {
  // A UTF-16 code unit takes at most 3 bytes in UTF-8.
  if (texts.reduce((sum, { length }) => sum + length * 3, 0) <= maxBytes) return;
  const numBytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  if (numBytes <= maxBytes) return;
  throw new CapstanError(
    'context_length_exceeded',
    `This model's maximum context length is ${maxModelLen} tokens (at most ${maxBytes} bytes of text), but the prompt has ${numBytes} bytes`,
    { param: 'prompt', expected: `at most ${maxBytes} bytes`, received: `${numBytes} bytes` },
  );
}

function resolveMaxTokens(
  { maxTokens, clampMaxTokens = false }: SamplingParams,
  { maxModelLen, numPromptTokens }: SamplingLimits,
): number {
  const rest = maxModelLen - numPromptTokens;
  if (rest < 1 && !(rest === 0 && maxTokens === 0)) {
    // NOTE: keep the first words. Some clients (litellm) recognize this error by its text instead of its code.
    throw new CapstanError(
      'context_length_exceeded',
      `This model's maximum context length is ${maxModelLen} tokens, so a prompt may have at most ${maxModelLen - 1}, but it has ${numPromptTokens}`,
      { param: 'prompt', expected: `at most ${maxModelLen - 1} prompt tokens`, received: String(numPromptTokens) },
    );
  }
  if (maxTokens === undefined) return rest;
  checkNumber('maxTokens', maxTokens, MAX_TOKENS);
  if (checkBoolean('clampMaxTokens', clampMaxTokens)) return Math.min(maxTokens, rest);
  if (maxTokens > rest) {
    throw new CapstanError(
      'context_length_exceeded',
      `This model's maximum context length is ${maxModelLen} tokens, but the request needs ${numPromptTokens} prompt tokens and ${maxTokens} completion tokens`,
      { param: 'maxTokens', expected: `at most ${rest}`, received: String(maxTokens) },
    );
  }
  return maxTokens;
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(Math.max(value, min), max);
}

function resolveSeed(seed: number | bigint | undefined): bigint | null {
  if (seed === undefined) return null;
  if (typeof seed === 'number' && Number.isInteger(seed) && !Number.isSafeInteger(seed))
    throw CapstanError.argument('seed', 'a bigint for an integer this large', seed);
  const value = typeof seed === 'bigint' ? seed : BigInt(checkNumber('seed', seed, { isInteger: true }));
  if (value < INT64_MIN || value > INT64_MAX) throw CapstanError.argument('seed', 'a 64-bit integer', seed);
  return value;
}

function resolveStop(stop: SamplingParams['stop']): string[] {
  if (stop === undefined) return [];
  const strings: unknown = typeof stop === 'string' ? [stop] : stop;
  if (!Array.isArray(strings)) throw CapstanError.argument('stop', 'a string or an array of strings', stop);
  return strings.map((value: unknown, i) => {
    if (typeof value !== 'string' || value === '')
      throw CapstanError.argument(`stop[${i}]`, 'a string of at least one character', value);
    return value;
  });
}

function resolveLogitBias(logitBias: SamplingParams['logitBias'], vocabSize: number): [Int32Array, Float32Array] {
  if (logitBias === undefined) return [new Int32Array(0), new Float32Array(0)];
  const entries = types.isMap(logitBias)
    ? [...logitBias]
    : Object.entries(checkObject('logitBias', logitBias)).map(parseBiasKey);
  const ids = checkTokenIds(
    'logitBias',
    entries.map(([id]) => id),
    vocabSize,
  );
  return [
    ids,
    Float32Array.from(entries, ([id, value]) => clamp(checkNumber(`logitBias[${id}]`, value), -MAX_FLOAT, MAX_FLOAT)),
  ];
}

function parseBiasKey([key, value]: [string, unknown]): [number, unknown] {
  if (!/^\d+$/.test(key)) throw CapstanError.argument('logitBias', 'token ids as keys', key);
  return [Number(key), value];
}

function resolveAllowedTokenIds(ids: SamplingParams['allowedTokenIds'], vocabSize: number): Int32Array | null {
  if (ids === undefined) return null;
  const checked = checkTokenIds('allowedTokenIds', ids, vocabSize);
  if (checked.length === 0) throw CapstanError.argument('allowedTokenIds', 'at least one token id', ids);
  return checked;
}

function resolveNumAlternatives(param: string, value: number | undefined, vocabSize: number): number {
  return value === undefined ? -1 : checkNumber(param, value, { min: 0, max: vocabSize, isInteger: true });
}
