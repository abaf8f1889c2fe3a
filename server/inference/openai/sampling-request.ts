import type { SamplingParams } from '../../../ts';
import { ApiError } from '../../base/errors';
import { toSnakeCase } from '../../base/to-api-error';
import type { GenerationFields, SamplingFields } from './schema';
import { show } from '../../base/json/validate';

/** The fields of `SamplingParams` that can hold a value of a request field. */
type LibraryName<Value> = {
  [Name in keyof SamplingParams]-?: [Value] extends [SamplingParams[Name]] ? Name : never;
}[keyof SamplingParams];

/** The name in `SamplingParams` of every sampling field. Null means that code below reads the field. */
const LIBRARY_NAMES: { readonly [Field in keyof SamplingFields]-?: LibraryName<SamplingFields[Field]> | null } = {
  temperature: 'temperature',
  top_p: 'topP',
  top_k: 'topK',
  min_p: 'minP',
  n: 'n',
  best_of: null,
  stop: 'stop',
  stop_token_ids: 'stopTokenIds',
  seed: null,
  presence_penalty: 'presencePenalty',
  frequency_penalty: 'frequencyPenalty',
  repetition_penalty: 'repetitionPenalty',
  repeat_penalty: null,
  min_tokens: 'minTokens',
  ignore_eos: 'ignoreEos',
  include_stop_str_in_output: 'includeStopInOutput',
  skip_special_tokens: 'skipSpecialTokens',
  spaces_between_special_tokens: 'spacesBetweenSpecialTokens',
  logit_bias: 'logitBias',
  allowed_token_ids: 'allowedTokenIds',
  bad_words: 'badWords',
  truncate_prompt_tokens: 'truncatePrompt',
  truncation_side: 'truncationSide',
};

const MAPPED_FIELDS = (Object.keys(LIBRARY_NAMES) as (keyof SamplingFields)[]).flatMap((field) => {
  const name = LIBRARY_NAMES[field];
  return name === null ? [] : [{ field, name }];
});

/** The client's name of each library field, both in snake case. Errors of the library are reported under it. */
export const CLIENT_NAMES: Readonly<Record<string, string>> = {
  ...Object.fromEntries(MAPPED_FIELDS.map(({ field, name }) => [toSnakeCase(name), field])),
  adapter: 'model',
  thinking_budget: 'thinking_token_budget',
  template_kwargs: 'chat_template_kwargs',
};

/**
 * Returns the sampling fields of a request as library options. Lengths, log-probabilities and structured output are
 * left to the caller.
 * @param seed The request's seed as an exact integer.
 */
export function toSamplingParams(request: SamplingFields, seed: bigint | undefined): SamplingParams {
  const hasSeed = request.seed !== undefined && request.seed !== -1;
  return withoutUndefined<SamplingParams>({
    ...Object.fromEntries(MAPPED_FIELDS.map(({ field, name }) => [name, request[field]])),
    repetitionPenalty: request.repetition_penalty ?? request.repeat_penalty,
    seed: hasSeed ? (seed ?? BigInt(request.seed!)) : undefined,
  });
}

/** Limits of the number of alternatives per token that a request may ask for. */
export interface LogprobLimits {
  /** The limit of this server. -1 = the whole vocabulary. */
  maxLogprobs: number;
  vocabSize: number;
}

/**
 * Returns the number of alternatives per token. Throws an ApiError if the request asks for more than the server allows.
 */
export function numAlternatives(param: string, requested: number, { maxLogprobs, vocabSize }: LogprobLimits): number {
  if (maxLogprobs === -1) return requested === -1 ? vocabSize : Math.min(requested, vocabSize);
  if (requested === -1 || requested > maxLogprobs)
    throw new ApiError(
      'invalid_value',
      `${param}: expected an integer from 0 to ${maxLogprobs}, which is this server's limit, got ${show(requested)}`,
      { param },
    );
  return Math.min(requested, vocabSize);
}

/** Throws an ApiError for fields that contradict each other. */
export function checkGenerationFields({
  stream,
  stream_options: streamOptions,
  prompt_logprobs: promptLogprobs = 0,
  best_of: bestOf,
  n = 1,
}: GenerationFields): void {
  if (streamOptions !== undefined && stream !== true)
    throw new ApiError('invalid_value', 'stream_options: only allowed with "stream": true', {
      param: 'stream_options',
    });
  if (promptLogprobs !== 0 && stream === true)
    throw new ApiError('invalid_value', 'prompt_logprobs: not allowed with "stream": true', {
      param: 'prompt_logprobs',
    });
  // Clients send 1, their default, beside another n.
  if (bestOf !== undefined && bestOf !== n && bestOf !== 1)
    throw new ApiError(
      'unsupported_value',
      `best_of: expected ${n === 1 ? '1' : `1 or ${n}, the value of n`}, got ${bestOf}. This server returns all choices that it generates.`,
      { param: 'best_of' },
    );
}

/** Which chunks of a stream carry usage. */
export interface StreamUsage {
  isAtEnd: boolean;
  isContinuous: boolean;
}

export function streamUsage({ stream_options: options }: GenerationFields, isForced: boolean): StreamUsage {
  const isRequested = options?.include_usage === true;
  return {
    isAtEnd: isRequested || isForced,
    isContinuous: isRequested && options?.continuous_usage_stats === true,
  };
}

export function withoutUndefined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as T;
}
