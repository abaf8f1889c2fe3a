import type { ChatMessage, ChatOptions } from '../../ts';
import { ApiError } from '../errors';
import { CHAT_COMPLETION_REQUEST, type ChatCompletionRequest, type WireMessage } from './schema';
import { refuseUnsupported, unsupported } from './unsupported';
import { show, validate } from './validate';

/** A request in the library's terms. */
export interface ChatCall {
  model: string | undefined;
  messages: ChatMessage[];
  options: ChatOptions;
  isStream: boolean;
  includeUsage: boolean;
  continuousUsage: boolean;
  hasLogprobs: boolean;
  cacheSalt: string | undefined;
  requestId: string | undefined;
  /** The client's name for the length limit, for errors. */
  maxTokensParam: 'max_tokens' | 'max_completion_tokens';
}

/** Where null means "not given"; elsewhere (schemas of tools, template variables) it is a value. */
const NULLS: NullMap = {
  messages: { each: { tool_calls: { each: { function: {} } }, content: { each: {} } } },
  tools: { each: { function: {} } },
  stream_options: {},
  response_format: {},
};

interface NullMap { [field: string]: NullMap }

/** @throws ApiError naming the first field that is wrong. */
export async function parseChatRequest(body: unknown): Promise<ChatCall> {
  const request = await validate<ChatCompletionRequest>(CHAT_COMPLETION_REQUEST, withoutNulls(body, NULLS));
  refuseUnsupported(body as Record<string, unknown>);
  request.messages.forEach(checkContent);
  checkTools(request);
  checkStreamOptions(request);
  if (request.response_format !== undefined && request.response_format.type !== 'text') throw unsupported('response_format', request.response_format.type);
  if (request.add_generation_prompt === true && request.continue_final_message === true) {
    throw new ApiError('invalid_value', 'continue_final_message: expected false beside add_generation_prompt, got true', { param: 'continue_final_message' });
  }
  return {
    model: request.model === '' ? undefined : request.model,
    messages: request.messages.map(toMessage),
    options: toOptions(request),
    isStream: request.stream === true,
    includeUsage: request.stream_options?.include_usage === true,
    continuousUsage: request.stream_options?.include_usage === true && request.stream_options.continuous_usage_stats === true,
    hasLogprobs: request.logprobs === true,
    cacheSalt: request.cache_salt,
    requestId: request.request_id,
    maxTokensParam: request.max_completion_tokens === undefined ? 'max_tokens' : 'max_completion_tokens',
  };
}

function withoutNulls(value: unknown, map: NullMap): unknown {
  if (Array.isArray(value)) return map.each === undefined ? value : value.map((item) => withoutNulls(item, map.each));
  if (typeof value !== 'object' || value === null) return value;
  const kept = Object.entries(value).filter(([, field]) => field !== null);
  return Object.fromEntries(kept.map(([name, field]) => [name, Object.hasOwn(map, name) ? withoutNulls(field, map[name]) : field as unknown]));
}

function checkContent({ role, content }: WireMessage, index: number): void {
  const param = `messages[${index}].content`;
  if (content === undefined && role !== 'assistant') throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  if (!Array.isArray(content)) return;
  content.forEach((part, i) => {
    if (part.type !== 'text') throw new ApiError('unsupported_value', `${param}[${i}].type: expected text, which is all that this model reads, got ${show(part.type)}`, { param: `${param}[${i}].type` });
    if (part.text === undefined) throw new ApiError('missing_required_parameter', `${param}[${i}].text: expected a value, but it is missing`, { param: `${param}[${i}].text` });
  });
}

function checkTools({ tools = [], tool_choice: choice, parallel_tool_calls: isParallel }: ChatCompletionRequest): void {
  const param = 'tool_choice';
  if (choice !== undefined && choice !== 'none' && tools.length === 0) throw new ApiError('invalid_value', 'tool_choice: expected none, as there are no tools', { param });
  if (typeof choice === 'string' && !['none', 'auto', 'required'].includes(choice)) throw new ApiError('invalid_value', `tool_choice: expected none, auto, required or a function, got ${show(choice)}`, { param });
  if (choice === 'required' || typeof choice === 'object') throw unsupported(param, typeof choice === 'object' ? choice.type : choice);
  if (isParallel === false && tools.length > 0 && choice !== 'none') throw unsupported('parallel_tool_calls', false);
}

function checkStreamOptions({ stream, stream_options: options }: ChatCompletionRequest): void {
  if (options !== undefined && stream !== true) throw new ApiError('invalid_value', 'stream_options: expected only beside "stream": true', { param: 'stream_options' });
}

function toMessage({ role, content, name, tool_calls: toolCalls, tool_call_id: toolCallId, reasoning, reasoning_content: older }: WireMessage): ChatMessage {
  return {
    role,
    content: typeof content === 'string' ? content : content?.map((part) => ({ type: 'text' as const, text: part.text ?? '' })),
    name,
    toolCalls: toolCalls?.map((call) => ({ id: call.id, name: call.function.name, arguments: call.function.arguments })),
    toolCallId,
    reasoning: reasoning ?? older,
  };
}

function toOptions(request: ChatCompletionRequest): ChatOptions {
  const effort = request.reasoning_effort;
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) throw new ApiError('invalid_value', 'top_logprobs: expected only beside "logprobs": true', { param: 'top_logprobs' });
  return withoutUndefined({
    temperature: request.temperature,
    topP: request.top_p,
    topK: request.top_k,
    minP: request.min_p,
    presencePenalty: request.presence_penalty,
    frequencyPenalty: request.frequency_penalty,
    repetitionPenalty: request.repetition_penalty,
    // Beyond 2^53 a number of JSON has lost its last digits already; the nearest 64-bit seed is used.
    seed: request.seed === undefined || request.seed === -1 ? undefined : BigInt(request.seed),
    maxTokens: request.max_completion_tokens ?? request.max_tokens,
    minTokens: request.min_tokens,
    stop: request.stop,
    stopTokenIds: request.stop_token_ids,
    ignoreEos: request.ignore_eos,
    includeStopInOutput: request.include_stop_str_in_output,
    skipSpecialTokens: request.skip_special_tokens,
    logitBias: request.logit_bias,
    allowedTokenIds: request.allowed_token_ids,
    logprobs: request.logprobs === true ? request.top_logprobs ?? 0 : undefined,
    n: request.n,
    tools: request.tools,
    toolChoice: request.tool_choice === 'none' ? 'none' : undefined,
    templateKwargs: effort === undefined ? request.chat_template_kwargs : { enable_thinking: effort !== 'none', ...request.chat_template_kwargs },
    addGenerationPrompt: request.add_generation_prompt,
    continueFinalMessage: request.continue_final_message,
  });
}

function withoutUndefined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as T;
}
