import type { SamplingParams } from '../../ts';
import { ApiError } from '../errors';
import type { GenerationFields } from './requests';
import { show } from './validate';

/** What alternatives are counted against. */
export interface LogprobLimits {
  /** -1 = no limit of the server's. */
  maxLogprobs: number;
  vocabSize: number;
}

/** What every kind of completion says of its tokens, in the library's terms; lengths, log-probabilities and constraints are the caller's to add. */
export function toSamplingParams(request: GenerationFields, seed: bigint | undefined): SamplingParams {
  return withoutUndefined<SamplingParams>({
    temperature: request.temperature,
    topP: request.top_p,
    topK: request.top_k,
    minP: request.min_p,
    presencePenalty: request.presence_penalty,
    frequencyPenalty: request.frequency_penalty,
    repetitionPenalty: request.repetition_penalty ?? request.repeat_penalty,
    seed: request.seed === undefined || request.seed === -1 ? undefined : (seed ?? BigInt(request.seed)),
    minTokens: request.min_tokens,
    stop: request.stop,
    stopTokenIds: request.stop_token_ids,
    ignoreEos: request.ignore_eos,
    includeStopInOutput: request.include_stop_str_in_output,
    skipSpecialTokens: request.skip_special_tokens,
    spacesBetweenSpecialTokens: request.spaces_between_special_tokens,
    logitBias: request.logit_bias,
    allowedTokenIds: request.allowed_token_ids,
    badWords: request.bad_words,
    truncatePrompt: request.truncate_prompt_tokens,
    truncationSide: request.truncation_side,
    n: request.n,
  });
}

/** The library's names of what clients call otherwise; the rest differs in spelling alone. */
export const CLIENT_NAMES: Readonly<Record<string, string>> = {
  include_stop_in_output: 'include_stop_str_in_output',
  truncate_prompt: 'truncate_prompt_tokens',
  thinking_budget: 'thinking_token_budget',
  template_kwargs: 'chat_template_kwargs',
};

/** @throws ApiError for more alternatives than the server gives. */
export function numAlternatives(param: string, asked: number, { maxLogprobs, vocabSize }: LogprobLimits): number {
  if (maxLogprobs === -1) return asked === -1 ? vocabSize : Math.min(asked, vocabSize);
  if (asked === -1 || asked > maxLogprobs)
    throw new ApiError(
      'invalid_value',
      `${param}: expected an integer from 0 to ${maxLogprobs}, which is this server's limit, got ${show(asked)}`,
      { param },
    );
  return Math.min(asked, vocabSize);
}

/** @throws ApiError for what contradicts itself. */
export function checkGenerationFields({
  stream,
  stream_options: streamOptions,
  prompt_logprobs: promptLogprobs = 0,
  best_of: bestOf,
  n = 1,
}: GenerationFields): void {
  if (streamOptions !== undefined && stream !== true)
    throw new ApiError('invalid_value', 'stream_options: expected only beside "stream": true', {
      param: 'stream_options',
    });
  if (promptLogprobs !== 0 && stream === true)
    throw new ApiError('invalid_value', 'prompt_logprobs: expected only without "stream": true', {
      param: 'prompt_logprobs',
    });
  if (bestOf !== undefined && bestOf !== n)
    throw new ApiError(
      'unsupported_value',
      `best_of: expected ${n}, the value of n, got ${bestOf}; more than are answered are not supported`,
      { param: 'best_of' },
    );
}

/** How a stream tells its usage. */
export interface StreamUsage {
  isAtEnd: boolean;
  isContinuous: boolean;
}

export function streamUsage({ stream_options: options }: GenerationFields, isForced: boolean): StreamUsage {
  const isAsked = options?.include_usage === true;
  return { isAtEnd: isAsked || isForced, isContinuous: isAsked && options?.continuous_usage_stats === true };
}

export function withoutUndefined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as T;
}
