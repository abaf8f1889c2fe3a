import type { ChatMessage, ChatOptions, SamplingParams, ToolChoice } from '../../../ts';
import { withoutUndefined } from '../openai/sampling-request';
import { refused } from './refused';

/** A conversation for another server. */
export interface OutgoingCall {
  model: string;
  messages: readonly ChatMessage[];
  options: ChatOptions;
  isStream: boolean;
  /** The interface of the client. */
  client: 'chat' | 'responses' | 'messages';
}

/** The name of each sampling parameter that chat completions of other servers may have. */
const FIELDS = {
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  minP: 'min_p',
  presencePenalty: 'presence_penalty',
  frequencyPenalty: 'frequency_penalty',
  repetitionPenalty: 'repetition_penalty',
  minTokens: 'min_tokens',
  stop: 'stop',
  stopTokenIds: 'stop_token_ids',
  ignoreEos: 'ignore_eos',
  logitBias: 'logit_bias',
  allowedTokenIds: 'allowed_token_ids',
  badWords: 'bad_words',
} as const satisfies Partial<Record<keyof SamplingParams, string>>;

/**
 * Returns the body of a request for a chat completion, without the seed, which JSON.stringify cannot write: it may have
 * 64 bits. Reasoning of earlier turns is left out: most servers refuse it.
 * Throws ApiError for what chat completions cannot express.
 */
export function toChatBody(
  { model, messages, options, isStream, client }: OutgoingCall,
  maxTokensField: string,
): object {
  if (options.continueFinalMessage === true)
    throw refused('messages', 'a last message of the user', 'one of the assistant');
  if (options.logprobs !== undefined) throw refused('top_logprobs', '0', String(options.logprobs));
  const sampling = Object.entries(FIELDS).map(([name, field]) => [field, options[name as keyof typeof FIELDS]]);
  return withoutUndefined({
    model,
    messages: messages.map(toWireMessage),
    [maxTokensField]: options.maxTokens,
    ...(Object.fromEntries(sampling) as object),
    tools: options.tools === undefined || options.tools.length === 0 ? undefined : options.tools,
    tool_choice: toWireChoice(options.toolChoice),
    parallel_tool_calls: options.parallelToolCalls,
    // The messages interface has no model without thinking, so its clients send it to any model.
    reasoning_effort: client === 'messages' ? undefined : options.reasoningEffort,
    response_format: toResponseFormat(options.structuredOutput),
    stream: isStream ? true : undefined,
    stream_options: isStream ? { include_usage: true } : undefined,
  });
}

function toWireMessage({ role, content, name, toolCalls = [], toolCallId }: ChatMessage): object {
  const calls = toolCalls.map((call, i) => ({
    id: call.id ?? `call_${i}`,
    type: 'function',
    function: {
      name: call.name,
      arguments: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments),
    },
  }));
  return {
    role,
    content: content ?? (calls.length > 0 ? null : ''),
    ...(name === undefined ? {} : { name }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
  };
}

function toWireChoice(choice: ToolChoice | undefined): unknown {
  return typeof choice === 'object' ? { type: 'function', function: { name: choice.name } } : choice;
}

function toResponseFormat(output: ChatOptions['structuredOutput']): object | undefined {
  if (output === undefined) return undefined;
  if (output.type !== 'json') throw refused('structured_outputs', 'a JSON schema', output.type);
  if (output.schema === undefined) return { type: 'json_object' };
  return { type: 'json_schema', json_schema: { name: 'output', strict: true, schema: output.schema } };
}
