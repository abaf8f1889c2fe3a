import type { ChatOptions, ReasoningEffort, ToolChoice } from '../../../ts';
import { EFFORT_VARIABLES, templateKwargs } from '../openai/chat-request';
import type { ConversationCall } from '../conversation/generate-chat';
import { ApiError } from '../../base/errors';
import type { JsonText } from '../../base/json/json-text';
import { CLIENT_NAMES, toSamplingParams, withoutUndefined } from '../openai/sampling-request';
import { requestedOutput } from '../openai/structured-output';
import { checkNotEmpty } from '../conversation/system-message';
import { MESSAGES_UNSUPPORTED, refuseUnsupported } from '../openai/unsupported';
import { validate } from '../../base/json/validate';
import { checkNamed, convertTools, type ConvertedTools, invalidChoice, pickTools } from '../conversation/tools';
import type { ParseLimits, ServerSettings } from '../settings';
import { foundTools, isPrefilled, toMessages } from './conversation';
import {
  type ConversationRequest,
  COUNT_TOKENS_REQUEST,
  MESSAGES_NULLS,
  MESSAGES_REQUEST,
  type WireMessage,
} from './schema';

/** A request for a message as library options. */
export interface MessagesCall extends ConversationCall {
  isStream: boolean;
  /** For each tool of the options, its path in the request. */
  toolPaths: readonly string[];
  droppedTypes: readonly string[];
}

const NAMES: Readonly<Record<string, string>> = {
  ...CLIENT_NAMES,
  prompt: 'messages',
  stop: 'stop_sequences',
  thinking_budget: 'thinking',
  reasoning_effort: 'output_config',
};

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseMessagesRequest(
  { value, seed }: JsonText,
  { settings }: ParseLimits,
): Promise<MessagesCall> {
  const request = await validate(MESSAGES_REQUEST, value, MESSAGES_NULLS);
  refuseUnsupported(value, MESSAGES_UNSUPPORTED);
  if (request.thread?.type === 'continue') throw threadNotFound();
  const call = toCall(request, settings);
  return {
    ...call,
    isStream: request.stream === true,
    cacheSalt: request.cache_salt,
    options: {
      ...call.options,
      ...toSamplingParams(request, seed),
      ...(request.stop_sequences === undefined ? {} : { stop: request.stop_sequences }),
      maxTokens: request.max_tokens,
      clampMaxTokens: true,
    },
  };
}

/** For a request that has only the new messages of a conversation: no server here stores the others. */
export function threadNotFound(): ApiError {
  return new ApiError(
    'thread_not_found',
    'thread: expected all messages of the conversation, because threads are not stored. Send them with "type": "create"',
    { param: 'thread' },
  );
}

/** Parses a request to count the tokens of a prompt. */
export async function parseCountTokensRequest({ value }: JsonText, { settings }: ParseLimits): Promise<MessagesCall> {
  const request = await validate(COUNT_TOKENS_REQUEST, value, MESSAGES_NULLS);
  refuseUnsupported(value, MESSAGES_UNSUPPORTED);
  return toCall(request, settings);
}

function toCall(request: ConversationRequest, settings: ServerSettings): MessagesCall {
  const { output_config: config = {}, output_format: format = config.format, tool_choice: choice } = request;
  const messages = toMessages(request);
  checkNotEmpty(messages, 'messages');
  const { tools, toolChoice, paths, droppedTypes } = readTools(request);
  const formatParam = config.format === undefined ? 'output_format' : 'output_config.format';
  const structured =
    format === undefined
      ? undefined
      : requestedOutput(
          { response_format: { type: format.type, json_schema: { schema: format.schema } } },
          formatParam,
        );
  const effort = effortOf(request, settings);
  return {
    model: request.model === '' ? undefined : request.model,
    messages,
    isStream: false,
    cacheSalt: undefined,
    toolPaths: paths,
    droppedTypes,
    names: { ...NAMES, structured_output: formatParam },
    options: {
      ...withoutUndefined<ChatOptions>({
        tools,
        toolChoice,
        parallelToolCalls: choice?.disable_parallel_tool_use === true ? false : undefined,
        reasoningEffort: effort,
        thinkingBudget: request.thinking?.budget_tokens,
        continueFinalMessage: isPrefilled(request.messages) ? true : undefined,
        structuredOutput: structured?.output,
      }),
      templateKwargs: templateKwargs(
        { reasoning_effort: effort, chat_template_kwargs: request.chat_template_kwargs },
        settings,
      ),
    },
  };
}

/** Thinking is off unless the request asks for it, or the server's defaults decide it. */
function effortOf(
  { thinking, output_config: config }: ConversationRequest,
  { templateKwargs: defaults }: ServerSettings,
): ReasoningEffort | undefined {
  if (thinking?.type === 'disabled') return 'none';
  if (thinking !== undefined) return config?.effort ?? 'high';
  if (EFFORT_VARIABLES.some((name) => Object.hasOwn(defaults, name))) return undefined;
  return 'none';
}

function readTools({ tools = [], tool_choice: choice, messages }: ConversationRequest): ConvertedTools {
  const converted = convertTools(
    tools.map(({ type = 'custom', name, description, input_schema: parameters, strict }, i) => ({
      path: `tools[${i}]`,
      type,
      name,
      description,
      parameters,
      strict,
    })),
    (type) => type === 'custom',
    'input_schema',
  );
  const deferred = new Set(tools.flatMap((tool, i) => (tool.defer_loading === true ? [`tools[${i}]`] : [])));
  const offered = withoutUnfound(converted, deferred, messages);
  return { ...offered, toolChoice: toToolChoice(choice, offered) };
}

type Converted = Omit<ConvertedTools, 'toolChoice'>;

/**
 * Leaves out each deferred tool until a result of the client's tool search names it. Found tools come last, so that the
 * prompt before them stays the same for the prefix cache.
 * @param deferred Paths of the deferred tools.
 */
function withoutUnfound(
  converted: Converted,
  deferred: ReadonlySet<string>,
  messages: readonly WireMessage[],
): Converted {
  if (deferred.size === 0) return converted;
  const always: number[] = [];
  const byName = new Map<string, number>();
  converted.tools.forEach((tool, i) => {
    if (deferred.has(converted.paths[i])) byName.set(tool.function.name, i);
    else always.push(i);
  });
  const found = foundTools(messages).flatMap((name) => byName.get(name) ?? []);
  return pickTools(converted, [...always, ...found]);
}

function toToolChoice(choice: ConversationRequest['tool_choice'], { tools }: Converted): ToolChoice | undefined {
  if (choice === undefined) return undefined;
  if (choice.type === 'auto' || choice.type === 'none') return choice.type;
  if (choice.type === 'tool') return { name: checkNamed(tools, choice.name, 'tool_choice.name') };
  if (tools.length === 0) throw invalidChoice('auto or none, because there are no tools that this server has', 'any');
  return 'required';
}
