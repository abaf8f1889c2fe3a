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
import { CHAT_COMPLETION_REQUEST, type ChatCompletionRequest, type WireTool } from './schema';
import { requestedOutput } from './structured-output';
import { CHAT_UNSUPPORTED, refuseUnsupported } from './unsupported';
import { show, validate } from '../../base/json/validate';

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
  toolPlaces: AllowedTools['toolPlaces'];
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
  const { request, toolPlaces } = withAllowedTools(sent);
  checkToolChoice(request);
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
    toolPlaces,
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

/** Converts the older `functions` and `function_call` to `tools` and `tool_choice`. */
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

/** Throws an ApiError for a tool that is no function, because the model would not get it. */
function checkToolTypes(body: unknown): void {
  const { tools } = (body ?? {}) as { tools?: unknown };
  if (!Array.isArray(tools)) return;
  for (const [i, tool] of tools.entries()) {
    const type = (tool as { type?: unknown } | null)?.type;
    if (typeof type !== 'string' || type === 'function') continue;
    const param = `tools[${i}].type`;
    throw new ApiError('invalid_value', `${param}: expected function, got ${show(type)}`, { param });
  }
}

interface AllowedTools {
  request: ChatCompletionRequest;
  /** For each tool, its index in the request of the client. undefined: the same. */
  toolPlaces: readonly number[] | undefined;
}

/** Leaves the tools of a `tool_choice` of the type `allowed_tools`, and its mode as the choice. */
function withAllowedTools(request: ChatCompletionRequest): AllowedTools {
  const { tools = [], tool_choice: choice } = request;
  if (typeof choice !== 'object' || choice.type !== 'allowed_tools') return { request, toolPlaces: undefined };
  const { allowed_tools: allowed } = choice;
  const param = 'tool_choice.allowed_tools';
  if (allowed === undefined)
    throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  const { mode = 'auto' } = allowed;
  if (mode !== 'auto' && mode !== 'required')
    throw new ApiError('invalid_value', `${param}.mode: expected auto or required, got ${show(mode)}`, {
      param: `${param}.mode`,
    });
  const names = allowed.tools.map(({ function: called }, i) => {
    const name = (called as { name?: unknown } | undefined)?.name;
    if (tools.some((tool) => tool.function.name === name)) return name;
    const path = `${param}.tools[${i}].function.name`;
    throw new ApiError('invalid_value', `${path}: expected the name of a tool in the request, got ${show(name)}`, {
      param: path,
    });
  });
  const toolPlaces = tools.flatMap((tool, i) => (names.includes(tool.function.name) ? [i] : []));
  return {
    request: { ...request, tools: toolPlaces.map((i) => tools[i]), tool_choice: names.length === 0 ? 'none' : mode },
    toolPlaces,
  };
}

function checkToolChoice({ tools = [], tool_choice: choice, functions }: ChatCompletionRequest): void {
  const param = functions === undefined ? 'tool_choice' : 'function_call';
  const invalid = (expected: string, received: unknown) =>
    new ApiError('invalid_value', `${param}: expected ${expected}, got ${show(received)}`, { param });
  if (choice === undefined) return;
  if (typeof choice === 'string' && !['none', 'auto', 'required'].includes(choice))
    throw invalid('none, auto, required or a function', choice);
  if (typeof choice === 'object' && choice.type !== 'function')
    throw invalid('the type function or allowed_tools', choice.type);
  if (choice !== 'none' && tools.length === 0) throw invalid('none, because there are no tools', choice);
  if (typeof choice !== 'object') return;
  const name = choice.function?.name;
  if (name === undefined)
    throw new ApiError('missing_required_parameter', `${param}.function.name: expected a value, but it is missing`, {
      param: `${param}.function.name`,
    });
  if (!tools.some((tool) => tool.function.name === name)) throw invalid('the name of a tool in the request', name);
}

type NamedToolChoice = 'none' | 'auto' | 'required';

/** Returns the options that only chat requests have. */
function chatOptions(request: ChatCompletionRequest, limits: { maxLogprobs: number; vocabSize: number }): ChatOptions {
  const {
    logprobs,
    top_logprobs: topLogprobs = 0,
    prompt_logprobs: promptLogprobs,
    tool_choice: choice,
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
    toolChoice: typeof choice === 'object' ? { name: choice.function!.name } : (choice as NamedToolChoice | undefined),
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
