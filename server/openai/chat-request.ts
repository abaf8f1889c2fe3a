import type { ChatMessage, ChatOptions } from '../../ts';
import { ApiError } from '../errors';
import type { ServerSettings } from '../settings';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import type { JsonText } from './json-text';
import { CHAT_NULLS } from './nulls';
import type { ChatCompletionRequest, WireTool } from './requests';
import {
  checkGenerationFields,
  CLIENT_NAMES,
  numAlternatives,
  type StreamUsage,
  streamUsage,
  toSamplingParams,
  withoutUndefined,
} from './sampling-request';
import { CHAT_COMPLETION_REQUEST } from './schema';
import { requestedOutput } from './structured-output';
import { CHAT_UNSUPPORTED, refuseUnsupported, unsupported } from './unsupported';
import { show, validate } from './validate';

/** A request in the library's terms. */
export interface ChatCall {
  model: string | undefined;
  messages: ChatMessage[];
  options: ChatOptions;
  isStream: boolean;
  usage: StreamUsage;
  showsReasoning: boolean;
  /** Reasoning comes in one piece. */
  holdsReasoning: boolean;
  returnsTokenIds: boolean;
  returnsPromptText: boolean;
  tokensAsIds: boolean;
  cacheSalt: string | undefined;
  requestId: string | undefined;
  /** The client's names of what the library calls otherwise, for errors. */
  names: Readonly<Record<string, string>>;
}

/** @throws ApiError naming the first field that is wrong. */
export async function parseChatRequest(
  { value, seed }: JsonText,
  settings: ServerSettings,
  vocabSize: number,
): Promise<ChatCall> {
  const request = withTools(await validate<ChatCompletionRequest>(CHAT_COMPLETION_REQUEST, value, CHAT_NULLS));
  refuseUnsupported(value, CHAT_UNSUPPORTED);
  checkConversation(request);
  checkToolChoice(request);
  checkGenerationFields(request);
  const structured = requestedOutput(request);
  const { tools = [], tool_choice: choice, max_completion_tokens: maxCompletionTokens } = request;
  // A text cannot be held to a form and be free to be a call.
  if (structured !== undefined && tools.length > 0 && choice !== 'none') {
    throw new ApiError('invalid_value', `${structured.param}: expected none beside tools, unless tool_choice is none`, {
      param: structured.param,
    });
  }
  return {
    model: request.model === '' ? undefined : request.model,
    messages: request.messages.map(toMessage),
    options: {
      ...toSamplingParams(request, seed),
      ...conversationOptions(request),
      ...ownOptions(request, { maxLogprobs: settings.maxLogprobs, vocabSize }),
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

/** `functions` and `function_call` of older clients, as tools. */
function withTools(request: ChatCompletionRequest): ChatCompletionRequest {
  const { functions, function_call: call, tools, tool_choice: choice, ...rest } = request;
  if (tools !== undefined)
    return request.functions === undefined
      ? request
      : { ...rest, tools, ...(choice === undefined ? {} : { tool_choice: choice }) };
  const asTools = functions?.map((definition): WireTool => ({ type: 'function', function: definition }));
  const asChoice = choice ?? (typeof call === 'object' ? { type: 'function', function: call } : call);
  return {
    ...rest,
    ...(asTools === undefined ? {} : { tools: asTools, functions }),
    ...(asChoice === undefined ? {} : { tool_choice: asChoice }),
  };
}

function checkToolChoice({ tools = [], tool_choice: choice, functions }: ChatCompletionRequest): void {
  const param = functions === undefined ? 'tool_choice' : 'function_call';
  const wrong = (expected: string, received: unknown) =>
    new ApiError('invalid_value', `${param}: expected ${expected}, got ${show(received)}`, { param });
  if (choice === undefined) return;
  if (typeof choice === 'string' && !['none', 'auto', 'required'].includes(choice))
    throw wrong('none, auto, required or a function', choice);
  if (typeof choice === 'object' && choice.type !== 'function')
    throw choice.type === 'allowed_tools' || choice.type === 'custom'
      ? unsupported(param, choice.type)
      : wrong('the type function', choice.type);
  if (choice !== 'none' && tools.length === 0) throw wrong('none, as there are no tools', choice);
  if (typeof choice !== 'object') return;
  const name = choice.function?.name;
  if (name === undefined)
    throw new ApiError('missing_required_parameter', `${param}.function.name: expected a value, but it is missing`, {
      param: `${param}.function.name`,
    });
  if (!tools.some((tool) => tool.function.name === name)) throw wrong('the name of one of the tools', name);
}

/** What completions without a conversation do not have. */
function ownOptions(request: ChatCompletionRequest, limits: { maxLogprobs: number; vocabSize: number }): ChatOptions {
  const {
    logprobs,
    top_logprobs: topLogprobs = 0,
    prompt_logprobs: promptLogprobs,
    tool_choice: choice,
    thinking_token_budget: budget,
  } = request;
  if (topLogprobs !== 0 && logprobs !== true)
    throw new ApiError('invalid_value', 'top_logprobs: expected only beside "logprobs": true', {
      param: 'top_logprobs',
    });
  return withoutUndefined<ChatOptions>({
    maxTokens: request.max_completion_tokens ?? request.max_tokens,
    logprobs: logprobs === true ? numAlternatives('top_logprobs', topLogprobs, limits) : undefined,
    promptLogprobs:
      promptLogprobs === undefined || request.stream === true
        ? undefined
        : numAlternatives('prompt_logprobs', promptLogprobs, limits),
    toolChoice:
      typeof choice === 'object'
        ? { name: choice.function!.name }
        : (choice as 'none' | 'auto' | 'required' | undefined),
    parallelToolCalls: request.parallel_tool_calls,
    separateReasoning: request.separate_reasoning === false || request.reasoning_format === 'none' ? false : undefined,
    thinkingBudget: budget === -1 ? undefined : budget,
    addSpecialTokens: request.add_special_tokens,
  });
}

/** The client's own variables go before what its effort says of them, and both before the server's. */
function templateKwargs(
  { reasoning_effort: effort, chat_template_kwargs: own }: ChatCompletionRequest,
  settings: ServerSettings,
): Record<string, unknown> {
  return {
    ...settings.templateKwargs,
    ...(effort === undefined ? {} : { enable_thinking: effort !== 'none', reasoning_effort: effort }),
    ...own,
  };
}
