import type { GenerateOptions } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { ParseLimits } from '../settings';
import type { JsonText } from '../../base/json/json-text';
import { GENERATION_NULLS } from '../../base/json/nulls';
import { type Prompt, toPrompts } from './prompts';
import {
  checkGenerationFields,
  CLIENT_NAMES,
  numAlternatives,
  type StreamUsage,
  streamUsage,
  toSamplingParams,
} from './sampling-request';
import { COMPLETION_REQUEST, MAX_PROMPTS } from './schema';
import { requestedOutput } from './structured-output';
import { COMPLETION_UNSUPPORTED, refuseUnsupported } from './unsupported';
import { validate } from '../../base/json/validate';

/** A completion request as library options, the same for every prompt. */
export interface CompletionCall {
  model: string | undefined;
  prompts: Prompt[];
  sampling: GenerateOptions;
  isStream: boolean;
  usage: StreamUsage;
  /** Whether the response repeats the prompt. */
  isEcho: boolean;
  /** Alternatives per token. Undefined: no log-probabilities. */
  numLogprobs: number | undefined;
  /** Alternatives per prompt token, from `prompt_logprobs`. */
  numPromptLogprobs: number | undefined;
  returnsTokenIds: boolean;
  tokensAsIds: boolean;
  cacheSalt: string | undefined;
  requestId: string | undefined;
  /** Client names of library fields, for errors. */
  names: Readonly<Record<string, string>>;
}

/** The default of OpenAI. */
const DEFAULT_MAX_TOKENS = 16;

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseCompletionRequest(
  { value, seed }: JsonText,
  { settings, vocabSize }: ParseLimits,
): Promise<CompletionCall> {
  const request = await validate(COMPLETION_REQUEST, value, GENERATION_NULLS);
  refuseUnsupported(value, COMPLETION_UNSUPPORTED);
  checkGenerationFields(request);
  const prompts = toPrompts('prompt', request.prompt, MAX_PROMPTS);
  const {
    max_tokens: maxTokens = DEFAULT_MAX_TOKENS,
    echo: isEcho = false,
    logprobs,
    prompt_logprobs: promptLogprobs,
    stream = false,
  } = request;
  const limits = { maxLogprobs: settings.maxLogprobs, vocabSize };
  const numLogprobs = logprobs === undefined ? undefined : numAlternatives('logprobs', logprobs, limits);
  const numPromptLogprobs =
    promptLogprobs === undefined || stream ? undefined : numAlternatives('prompt_logprobs', promptLogprobs, limits);
  if (maxTokens === 0 && !isEcho && numPromptLogprobs === undefined) {
    throw new ApiError(
      'invalid_value',
      'max_tokens: expected 1 or more, got 0. Only "echo": true and prompt_logprobs allow 0.',
      { param: 'max_tokens' },
    );
  }
  const structured = requestedOutput(request);
  const numPromptAlternatives = Math.max(numPromptLogprobs ?? -1, isEcho ? (numLogprobs ?? -1) : -1);
  return {
    model: request.model === '' ? undefined : request.model,
    prompts,
    sampling: {
      ...toSamplingParams(request, seed),
      addSpecialTokens: request.add_special_tokens !== false,
      maxTokens,
      ...(numLogprobs === undefined ? {} : { logprobs: numLogprobs }),
      ...(numPromptAlternatives < 0 ? {} : { promptLogprobs: numPromptAlternatives }),
      ...(structured === undefined ? {} : { structuredOutput: structured.output }),
    },
    isStream: stream,
    usage: streamUsage(request, settings.forceIncludeUsage),
    isEcho,
    numLogprobs,
    numPromptLogprobs,
    returnsTokenIds: request.return_token_ids === true,
    tokensAsIds: request.return_tokens_as_token_ids ?? settings.tokensAsTokenIds,
    cacheSalt: request.cache_salt,
    requestId: request.request_id,
    names: {
      ...CLIENT_NAMES,
      structured_output: structured?.param ?? 'response_format',
      token_ids: 'prompt',
      text: 'prompt',
    },
  };
}
