import type { EngineInfo, FinishReason, Usage } from '../../../ts';
import type { ApiError } from '../../base/errors';
import type { OutputItem } from './output';
import type { ResponsesCall } from './request';

/** The fields of a response that stay the same while it is made. */
export interface ResponseHead {
  id: string;
  /** Seconds since 1970. */
  created: number;
  model: string;
  isStored: boolean;
  call: ResponsesCall;
  defaults: EngineInfo['samplingDefaults'];
}

type ResponseStatus = 'in_progress' | 'completed' | 'incomplete' | 'failed';

interface ResponseEnd {
  status: ResponseStatus;
  output: readonly OutputItem[];
  usage?: Usage;
  error?: ApiError;
}

/** Returns the response object, in any state. */
export function wireResponse(
  { id, created, model, isStored, call, defaults }: ResponseHead,
  { status, output, usage, error }: ResponseEnd,
) {
  const { echo, previousResponseId } = call;
  return {
    id,
    object: 'response',
    created_at: created,
    status,
    background: false,
    error: error === undefined ? null : { code: errorCode(error), message: error.message },
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    model,
    output,
    ...echo,
    previous_response_id: previousResponseId ?? null,
    temperature: echo.temperature ?? defaults.temperature ?? 1,
    top_p: echo.top_p ?? defaults.topP ?? 1,
    top_logprobs: call.options.logprobs ?? 0,
    max_tool_calls: null,
    service_tier: 'default',
    store: isStored,
    truncation: 'disabled',
    usage: usage === undefined ? null : responseUsage(usage),
  };
}

export function statusOf(reason: FinishReason): ResponseStatus {
  return reason === 'length' ? 'incomplete' : 'completed';
}

function responseUsage({ promptTokens, completionTokens, totalTokens, cachedTokens, reasoningTokens = 0 }: Usage) {
  return {
    input_tokens: promptTokens,
    // The prefix cache costs nothing to write, and clients require the field.
    input_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: 0 },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: totalTokens,
  };
}

/** The codes of failed responses that clients know. */
function errorCode({ code, status }: ApiError): string {
  if (status === 429) return 'rate_limit_exceeded';
  return status >= 500 ? 'server_error' : code;
}
