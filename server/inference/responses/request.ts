import type { ChatOptions, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import { templateKwargs } from '../openai/chat-request';
import type { ConversationCall } from '../conversation/generate-chat';
import type { JsonText } from '../../base/json/json-text';
import { CLIENT_NAMES, numAlternatives, toSamplingParams, withoutUndefined } from '../openai/sampling-request';
import { requestedOutput } from '../openai/structured-output';
import { checkNotEmpty, withSystemFirst } from '../conversation/system-message';
import { refuseUnsupported, RESPONSES_UNSUPPORTED } from '../openai/unsupported';
import { validate } from '../../base/json/validate';
import type { ParseLimits } from '../settings';
import { REFERENCE } from '../../storage/responses/history';
import { checkMetadata } from '../../storage/responses/metadata';
import { toMessages } from './input-items';
import { type InputItem, RESPONSES_NULLS, RESPONSES_REQUEST, type ResponsesRequest } from './schema';
import { type CallForms, readTools } from './tools';

/** A request for a response as library options. */
export interface ResponsesCall extends Omit<ConversationCall, 'messages'> {
  /** undefined: the conversation needs stored responses. `conversationOf` makes it from `items`. */
  messages: Messages | undefined;
  instructions: string | undefined;
  items: readonly InputItem[];
  previousResponseId: string | undefined;
  isStored: boolean;
  isStream: boolean;
  callForms: CallForms;
  /** For each tool of the options, its path in the request. */
  toolPaths: readonly string[];
  droppedTypes: readonly string[];
  /** The fields of the request that the response repeats. */
  echo: ResponseEcho;
}

/** The fields of a response that repeat the request. */
export type ResponseEcho = Readonly<Record<(typeof ECHOED)[number], unknown>>;

const ECHOED = [
  'instructions',
  'max_output_tokens',
  'metadata',
  'parallel_tool_calls',
  'previous_response_id',
  'prompt_cache_key',
  'reasoning',
  'safety_identifier',
  'temperature',
  'text',
  'tool_choice',
  'tools',
  'top_p',
  'user',
] as const;

const LOGPROBS = 'message.output_text.logprobs';

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseResponsesRequest(
  { value, seed }: JsonText,
  { settings, vocabSize }: ParseLimits,
): Promise<ResponsesCall> {
  const request = await validate(RESPONSES_REQUEST, value, RESPONSES_NULLS);
  refuseUnsupported(value, RESPONSES_UNSUPPORTED);
  checkFields(request);
  const { instructions, previous_response_id: previousResponseId, reasoning } = request;
  const items = toItems(request.input);
  const needsStore = previousResponseId !== undefined || items.some(({ type }) => type === REFERENCE);
  const { tools, toolChoice, paths, droppedTypes, callForms } = readTools(request);
  return {
    model: request.model === '' ? undefined : request.model,
    messages: needsStore ? undefined : conversation(instructions, items),
    instructions,
    items,
    previousResponseId,
    isStored: request.store !== false,
    isStream: request.stream === true,
    callForms,
    toolPaths: paths,
    droppedTypes,
    echo: toEcho(request, value as Readonly<Record<string, unknown>>),
    cacheSalt: request.cache_salt,
    options: {
      ...toSamplingParams(request, seed),
      ...withoutUndefined<ChatOptions>({
        maxTokens: request.max_output_tokens,
        clampMaxTokens: true,
        tools,
        toolChoice,
        parallelToolCalls: request.parallel_tool_calls,
        reasoningEffort: reasoning?.effort,
        thinkingBudget: request.thinking_token_budget === -1 ? undefined : request.thinking_token_budget,
        structuredOutput: structuredOutput(request),
        logprobs: numLogprobs(request, { maxLogprobs: settings.maxLogprobs, vocabSize }),
      }),
      templateKwargs: templateKwargs(
        { reasoning_effort: reasoning?.effort, chat_template_kwargs: request.chat_template_kwargs },
        settings,
      ),
    },
    names: {
      ...CLIENT_NAMES,
      prompt: 'input',
      messages: 'input',
      max_tokens: 'max_output_tokens',
      logprobs: 'top_logprobs',
      reasoning_effort: 'reasoning',
      structured_output: 'text.format',
    },
  };
}

function conversation(instructions: string | undefined, items: readonly InputItem[]): Messages {
  const messages = withSystemFirst(instructions, toMessages(items));
  checkNotEmpty(messages, 'input');
  return messages;
}

/** A text is the short form of one message of the user. */
function toItems(input: ResponsesRequest['input']): readonly InputItem[] {
  return typeof input === 'string' ? [{ type: 'message', role: 'user', content: input }] : input;
}

function checkFields({ stream, stream_options: streamOptions, metadata = {} }: ResponsesRequest): void {
  checkMetadata(metadata);
  if (streamOptions !== undefined && stream !== true)
    throw new ApiError('invalid_value', 'stream_options: only allowed with "stream": true', {
      param: 'stream_options',
    });
}

/** Returns the alternatives per token. undefined: the response has no log-probabilities. */
function numLogprobs(
  { include = [], top_logprobs: top = 0 }: ResponsesRequest,
  limits: Parameters<typeof numAlternatives>[2],
): number | undefined {
  return top > 0 || include.includes(LOGPROBS) ? numAlternatives('top_logprobs', top, limits) : undefined;
}

function structuredOutput({ text }: ResponsesRequest): ChatOptions['structuredOutput'] {
  const { type = 'text', schema } = text?.format ?? {};
  if (type === 'json_schema' && schema === undefined) {
    const param = 'text.format.schema';
    throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  }
  return requestedOutput({ response_format: { type, json_schema: { schema } } }, 'text.format')?.output;
}

function toEcho(request: ResponsesRequest, sent: Readonly<Record<string, unknown>>): ResponseEcho {
  const { reasoning, text } = request;
  const defaults: Partial<Record<keyof ResponseEcho, unknown>> = {
    metadata: {},
    parallel_tool_calls: true,
    tool_choice: 'auto',
    tools: [],
  };
  return {
    ...(Object.fromEntries(ECHOED.map((name) => [name, sent[name] ?? defaults[name] ?? null])) as ResponseEcho),
    reasoning: { effort: reasoning?.effort ?? null, summary: reasoning?.summary ?? null },
    text: { format: { type: 'text' }, ...withoutUndefined(text ?? {}) },
  };
}
