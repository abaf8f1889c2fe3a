import type { NativeSampling } from './addon-types';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkOneOf, checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { StructuredOutput } from './structured-output';

/** How tokens are chosen and when a completion ends. What is left out takes the model's default, else the one named here. */
export interface SamplingParams {
  /** 0 takes the most likely token; default: the model's, else 1. Values between 0 and 0.01 count as 0.01. */
  temperature?: number;
  /** Smallest set of tokens whose probability reaches this, in (0, 1]; default: the model's, else 1. */
  topP?: number;
  /** Most likely tokens considered; 0 or -1 = all; default: the model's, else 0. */
  topK?: number;
  /** Tokens below this share of the most likely one's probability are left out, 0 to 1; default 0. */
  minP?: number;
  /** Subtracted once from tokens of the completion, -2 to 2; default 0. */
  presencePenalty?: number;
  /** Subtracted per occurrence from tokens of the completion, -2 to 2; default 0. */
  frequencyPenalty?: number;
  /** Divides the score of tokens of prompt and completion, above 0; default: the model's, else 1. */
  repetitionPenalty?: number;
  /** 64-bit; the same seed and request give the same tokens. Default: drawn at submit. */
  seed?: number | bigint;
  /** Most completion tokens; default: the rest of the context. 0 completes nothing: for the prompt's log-probabilities alone. */
  maxTokens?: number;
  /** No stop before this many completion tokens; default 0. */
  minTokens?: number;
  /** Strings that end the completion. */
  stop?: string | readonly string[];
  /** Token ids that end it, beside the model's own. */
  stopTokenIds?: readonly number[] | Int32Array;
  /** Go on past the model's end-of-sequence tokens; default false. */
  ignoreEos?: boolean;
  /** Leave the stop string in the text; default false. */
  includeStopInOutput?: boolean;
  /** Leave special tokens out of the text; default true. */
  skipSpecialTokens?: boolean;
  /** Taken for other engines' sake, where slow tokenizers write special tokens apart; the tokenizers used here never do, so both values give the same text. */
  spacesBetweenSpecialTokens?: boolean;
  /** Added to the scores of token ids. */
  logitBias?: Readonly<Record<string, number>> | ReadonlyMap<number, number>;
  /** Only these token ids are ever chosen. */
  allowedTokenIds?: readonly number[] | Int32Array;
  /** Texts that are never produced, as the token sequences that they are at the beginning of a text and after a space. */
  badWords?: readonly string[];
  /** What the text is held to; with a reasoning model, what follows the thought. */
  structuredOutput?: StructuredOutput;
  /** Keep at most this many tokens of the prompt; -1 = what the context holds besides `maxTokens`. Default: a prompt that is too long is refused. */
  truncatePrompt?: number;
  /** The end of the prompt that `truncatePrompt` cuts off; default 'left'. */
  truncationSide?: 'left' | 'right';
  /** Alternatives with log-probabilities per completion token; 0 = the chosen token's only; default: none at all. */
  logprobs?: number;
  /** The same for the prompt's tokens. */
  promptLogprobs?: number;
  /** Choices of one prompt, 1 to 128; default 1. More than one needs a temperature above 0. */
  n?: number;
}

/** What `generation_config.json` sets. */
export type SamplingDefaults = Pick<SamplingParams, 'temperature' | 'topP' | 'topK' | 'repetitionPenalty'>;

/** What a request is checked against. */
export interface SamplingLimits {
  vocabSize: number;
  maxModelLen: number;
  numPromptTokens: number;
}

export const SAMPLING_KEYS = [
  'temperature',
  'topP',
  'topK',
  'minP',
  'presencePenalty',
  'frequencyPenalty',
  'repetitionPenalty',
  'seed',
  'maxTokens',
  'minTokens',
  'stop',
  'stopTokenIds',
  'ignoreEos',
  'includeStopInOutput',
  'skipSpecialTokens',
  'spacesBetweenSpecialTokens',
  'logitBias',
  'allowedTokenIds',
  'badWords',
  'structuredOutput',
  'truncatePrompt',
  'truncationSide',
  'logprobs',
  'promptLogprobs',
  'n',
] as const satisfies readonly (keyof SamplingParams)[];

const MAX_CHOICES = 128;
const TEMPERATURE = { min: 0 } as const;
const TOP_P = { min: 0, max: 1, isMinOpen: true } as const;
const TOP_K = { min: -1, max: 2 ** 31 - 1, isInteger: true } as const;
const REPETITION_PENALTY = { min: 0, isMinOpen: true } as const;
const MAX_TOKENS = { min: 0, isInteger: true } as const;
/** Below it scores overflow without changing the choice; vLLM's floor. */
const MIN_TEMPERATURE = 0.01;
/** What the engine's 32-bit numbers hold with room to count; beyond it a score changes no choice any more. */
const MIN_FLOAT = 1e-30;
const MAX_FLOAT = 1e30;
const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

/** @throws CapstanError `invalid_argument` naming the default that is wrong. */
export function checkSamplingDefaults(param: string, defaults: SamplingDefaults): SamplingDefaults {
  checkKnownKeys(param, checkObject(param, defaults), ['temperature', 'topP', 'topK', 'repetitionPenalty']);
  const { temperature, topP, topK, repetitionPenalty } = defaults;
  if (temperature !== undefined) checkNumber(`${param}.temperature`, temperature, TEMPERATURE);
  if (topP !== undefined) checkNumber(`${param}.topP`, topP, TOP_P);
  if (topK !== undefined) checkNumber(`${param}.topK`, topK, TOP_K);
  if (repetitionPenalty !== undefined) checkNumber(`${param}.repetitionPenalty`, repetitionPenalty, REPETITION_PENALTY);
  return defaults;
}

/** The prompt as `truncatePrompt` leaves it. */
export function truncatePrompt(
  promptTokenIds: Int32Array,
  { truncatePrompt: most, truncationSide, maxTokens = 1 }: SamplingParams,
  maxModelLen: number,
): Int32Array {
  const side = checkOneOf('truncationSide', truncationSide ?? 'left', ['left', 'right']);
  if (most === undefined) return promptTokenIds;
  const isCount = most === -1 || (Number.isSafeInteger(most) && most >= 1);
  if (!isCount) throw CapstanError.argument('truncatePrompt', 'an integer of 1 or more, or -1', most);
  const numKept = most === -1 ? Math.max(maxModelLen - checkNumber('maxTokens', maxTokens, MAX_TOKENS), 1) : most;
  if (promptTokenIds.length <= numKept) return promptTokenIds;
  return side === 'left' ? promptTokenIds.slice(-numKept) : promptTokenIds.slice(0, numKept);
}

/**
 * The request's parameters over the model's defaults over ours, checked. What takes a tokenizer or a compiler (bad words, structured output) is
 * the engine's to add.
 * @throws CapstanError `invalid_argument`, or `context_length_exceeded` when prompt and completion cannot fit.
 */
export function resolveSampling(
  params: SamplingParams,
  defaults: SamplingDefaults,
  limits: SamplingLimits,
): { sampling: NativeSampling; numChoices: number } {
  checkKnownKeys('sampling', checkObject('sampling', params), SAMPLING_KEYS);
  const maxTokens = resolveMaxTokens(params.maxTokens, limits);
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

/** @throws CapstanError `context_length_exceeded` when so many of the longest tokens are not as long as the text. */
export function checkTextLength(text: string, maxModelLen: number, maxTokenBytes: number): void {
  const mostBytes = maxModelLen * maxTokenBytes;
  if (text.length * 3 <= mostBytes) return;
  const numBytes = Buffer.byteLength(text);
  if (numBytes <= mostBytes) return;
  throw new CapstanError(
    'context_length_exceeded',
    `This model's maximum context length is ${maxModelLen} tokens, and the prompt has ${numBytes} bytes of text: at most ${mostBytes} could fit`,
    { param: 'prompt', expected: `at most ${mostBytes} bytes`, received: `${numBytes} bytes` },
  );
}

function resolveMaxTokens(maxTokens: number | undefined, { maxModelLen, numPromptTokens }: SamplingLimits): number {
  const rest = maxModelLen - numPromptTokens;
  if (rest < 1 && !(rest === 0 && maxTokens === 0)) {
    // NOTE: clients without eyes for codes (litellm among them) know this error by its first words.
    throw new CapstanError(
      'context_length_exceeded',
      `This model's maximum context length is ${maxModelLen} tokens, and the prompt has ${numPromptTokens}: at most ${maxModelLen - 1} leave room for a completion`,
      { param: 'prompt', expected: `at most ${maxModelLen - 1} prompt tokens`, received: String(numPromptTokens) },
    );
  }
  if (maxTokens === undefined) return rest;
  checkNumber('maxTokens', maxTokens, MAX_TOKENS);
  if (maxTokens > rest) {
    throw new CapstanError(
      'context_length_exceeded',
      `This model's maximum context length is ${maxModelLen} tokens, and ${numPromptTokens} prompt tokens and ${maxTokens} completion tokens were asked for`,
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
  const entries =
    logitBias instanceof Map
      ? [...(logitBias as ReadonlyMap<number, number>)]
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
