import type { ChatOptions } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { ParseLimits, ServerSettings } from '../settings';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import type { ConversationCall } from '../conversation/generate-chat';
import type { JsonText } from '../../base/json/json-text';
import { CHAT_NULLS } from '../../base/json/nulls';
import {
  checkGenerationFields,
  CLIENT_NAMES,
  numAlternatives,
  type StreamUsage,
  streamUsage,
  toSamplingParams,
  withoutUndefined,
} from './sampling-request';
import { checkToolTypes, customNames, toToolChoice, withAllowedTools, withTools } from './chat-tools';
import { CHAT_COMPLETION_REQUEST, type ChatCompletionRequest } from './schema';
import { requestedOutput } from './structured-output';
import { CHAT_UNSUPPORTED, refuseUnsupported } from './unsupported';
import { validate } from '../../base/json/validate';
import { type CompletionRequest, readCompletionRequest } from '../../storage/responses/completions';

/** A chat request as library options. */
export interface ChatCall extends ConversationCall {
  isStream: boolean;
  usage: StreamUsage;
  showsReasoning: boolean;
  /** Whether reasoning is sent in one piece. */
  holdsReasoning: boolean;
  returnsTokenIds: boolean;
  returnsPromptText: boolean;
  tokensAsIds: boolean;
  requestId: string | undefined;
  /** Names of tools whose calls have the type `custom`. */
  customNames: readonly string[];
  /** For each tool of the options, its path in the request. */
  toolPaths: readonly string[];
  /** What is stored of the request. Undefined: the completion is not stored. */
  stored: CompletionRequest | undefined;
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseChatRequest(
  { value, seed }: JsonText,
  { settings, vocabSize }: ParseLimits,
): Promise<ChatCall> {
  checkToolTypes(value);
  const sent = withTools(await validate(CHAT_COMPLETION_REQUEST, value, CHAT_NULLS));
  refuseUnsupported(value, CHAT_UNSUPPORTED);
  checkConversation(sent);
  const { request, toolPaths } = withAllowedTools(sent);
  checkGenerationFields(request);
  const structured = requestedOutput(request);
  const { max_completion_tokens: maxCompletionTokens } = request;
  return {
    model: request.model === '' ? undefined : request.model,
    messages: request.messages.map(toMessage),
    options: {
      ...toSamplingParams(request, seed),
      ...conversationOptions(request),
      ...chatOptions(request, { maxLogprobs: settings.maxLogprobs, vocabSize }),
      templateKwargs: templateKwargs(request, settings),
      ...(structured === undefined ? {} : { structuredOutput: structured.output }),
    },
    isStream: request.stream === true,
    usage: streamUsage(request, settings.forceIncludeUsage),
    showsReasoning: request.include_reasoning !== false,
    holdsReasoning: request.stream_reasoning === false,
    returnsTokenIds: request.return_token_ids === true,
    returnsPromptText: request.return_prompt_text === true,
    tokensAsIds: request.return_tokens_as_token_ids ?? settings.tokensAsTokenIds,
    cacheSalt: request.cache_salt,
    requestId: request.request_id,
    customNames: customNames(request.tools),
    toolPaths,
    stored: await readCompletionRequest(value),
    names: {
      ...CLIENT_NAMES,
      prompt: 'messages',
      logprobs: 'top_logprobs',
      structured_output: structured?.param ?? 'response_format',
      ...(maxCompletionTokens === undefined ? {} : { max_tokens: 'max_completion_tokens' }),
      ...(request.functions === undefined ? {} : { tools: 'functions', tool_choice: 'function_call' }),
    },
  };
}

/** Returns the options that only chat requests have. */
function chatOptions(request: ChatCompletionRequest, limits: { maxLogprobs: number; vocabSize: number }): ChatOptions {
  const {
    logprobs,
    top_logprobs: topLogprobs = 0,
    prompt_logprobs: promptLogprobs,
    reasoning_effort: reasoningEffort,
    thinking_token_budget: budget,
  } = request;
  if (topLogprobs !== 0 && logprobs !== true)
    throw new ApiError('invalid_value', 'top_logprobs: only allowed with "logprobs": true', {
      param: 'top_logprobs',
    });
  const hasPromptLogprobs = promptLogprobs !== undefined && request.stream !== true;
  return withoutUndefined<ChatOptions>({
    maxTokens: request.max_completion_tokens ?? request.max_tokens,
    logprobs: logprobs === true ? numAlternatives('top_logprobs', topLogprobs, limits) : undefined,
    promptLogprobs: hasPromptLogprobs ? numAlternatives('prompt_logprobs', promptLogprobs, limits) : undefined,
    toolChoice: toToolChoice(request),
    parallelToolCalls: request.parallel_tool_calls,
    separateReasoning: request.separate_reasoning === false || request.reasoning_format === 'none' ? false : undefined,
    reasoningEffort,
    thinkingBudget: budget === -1 ? undefined : budget,
    addSpecialTokens: request.add_special_tokens,
  });
}

/** Variables that `reasoning_effort` sets, whatever the server's defaults are. */
export const EFFORT_VARIABLES = ['enable_thinking', 'thinking', 'thinking_budget', 'reasoning_effort'];

/** Returns the template variables: the server's defaults, overridden by the client's own. */
export function templateKwargs(
  {
    reasoning_effort: effort,
    chat_template_kwargs: own,
  }: Pick<ChatCompletionRequest, 'reasoning_effort' | 'chat_template_kwargs'>,
  settings: ServerSettings,
): Record<string, unknown> {
  const defaults = Object.entries(settings.templateKwargs);
  const kept = defaults.filter(([name]) => effort === undefined || !EFFORT_VARIABLES.includes(name));
  return { ...Object.fromEntries(kept), ...own };
}
