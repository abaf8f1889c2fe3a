import type { ChatMessage, ChatOptions, ReasoningEffort, ToolCallInput } from '../../../ts';
import { withoutUndefined } from '../openai/sampling-request';
import { withSystemFirst } from '../conversation/system-message';
import { isObject } from './upstream-reader';
import { refused } from './refused';
import type { OutgoingCall } from './to-chat';

/** Anthropic's interface needs a limit. All of its models accept this one. */
const DEFAULT_MAX_TOKENS = 4_096;

/** Options that Anthropic's interface cannot express, their names in requests, and the values that have no effect. */
const REFUSED: readonly [option: keyof ChatOptions, param: string, harmless: readonly unknown[]][] = [
  ['n', 'n', [1]],
  ['logprobs', 'logprobs', []],
  ['promptLogprobs', 'prompt_logprobs', []],
  ['presencePenalty', 'presence_penalty', [0]],
  ['frequencyPenalty', 'frequency_penalty', [0]],
  ['repetitionPenalty', 'repetition_penalty', [1]],
  ['minP', 'min_p', [0]],
  ['minTokens', 'min_tokens', [0]],
  ['logitBias', 'logit_bias', []],
  ['stopTokenIds', 'stop_token_ids', []],
  ['ignoreEos', 'ignore_eos', [false]],
  ['allowedTokenIds', 'allowed_token_ids', []],
  ['badWords', 'bad_words', []],
];

/**
 * Returns the body of a request for a message of Anthropic's interface. Thoughts of earlier turns are left out: their
 * signatures are unknown. Throws ApiError for what the interface cannot express.
 */
export function toMessagesBody({ model, messages, options, isStream }: OutgoingCall): object {
  for (const [option, param, harmless] of REFUSED) {
    const value = options[option];
    if (value !== undefined && !harmless.includes(value)) throw refused(param, 'no value', JSON.stringify(value));
  }
  const all = withSystemFirst(undefined, messages.map(withKnownRole));
  const [first] = all;
  const hasSystem = first?.role === 'system';
  const { temperature, topP, topK, stop, maxTokens, tools } = options;
  return withoutUndefined({
    model,
    max_tokens: maxTokens ?? DEFAULT_MAX_TOKENS,
    system: hasSystem ? textOf(first) : undefined,
    messages: joined(all.slice(hasSystem ? 1 : 0)),
    temperature,
    top_p: topP,
    top_k: topK === undefined || topK < 1 ? undefined : topK,
    stop_sequences: typeof stop === 'string' ? [stop] : stop,
    tools:
      tools === undefined || tools.length === 0
        ? undefined
        : tools.map(({ function: { name, description, parameters } }) =>
            withoutUndefined({ name, description, input_schema: parameters ?? { type: 'object', properties: {} } }),
          ),
    tool_choice: toWireChoice(options),
    output_config: toOutputConfig(options),
    stream: isStream ? true : undefined,
  });
}

function withKnownRole(message: ChatMessage): ChatMessage {
  return message.role === 'developer' ? { ...message, role: 'system' } : message;
}

interface Turn {
  role: 'user' | 'assistant';
  content: object[];
}

/** The roles of turns alternate. Results of tools belong to the turn of the user. */
function joined(messages: readonly ChatMessage[]): Turn[] {
  const turns: Turn[] = [];
  for (const message of messages) {
    const role = message.role === 'assistant' ? 'assistant' : 'user';
    const content = blocksOf(message);
    if (content.length === 0) continue;
    const last = turns.at(-1);
    if (last?.role === role) last.content.push(...content);
    else turns.push({ role, content });
  }
  return turns;
}

function blocksOf(message: ChatMessage): object[] {
  const text = textOf(message);
  if (message.role === 'tool') return [{ type: 'tool_result', tool_use_id: message.toolCallId ?? '', content: text }];
  const { toolCalls = [] } = message;
  return [
    // Empty texts are refused.
    ...(text.trim() === '' ? [] : [{ type: 'text', text }]),
    ...toolCalls.map((call, i) => ({
      type: 'tool_use',
      id: call.id ?? `call_${i}`,
      name: call.name,
      input: inputOf(call),
    })),
  ];
}

function textOf({ content }: ChatMessage): string {
  return typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('\n');
}

/** Arguments that are not an object, such as truncated ones, become an empty object. */
function inputOf({ arguments: args }: ToolCallInput): object {
  if (typeof args !== 'string') return args;
  try {
    const value: unknown = JSON.parse(args);
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}

function toWireChoice({ tools = [], toolChoice, parallelToolCalls }: ChatOptions): object | undefined {
  if (tools.length === 0) return undefined;
  const isSerial = parallelToolCalls === false ? { disable_parallel_tool_use: true } : {};
  if (typeof toolChoice === 'object') return { type: 'tool', name: toolChoice.name, ...isSerial };
  if (toolChoice === 'none') return { type: 'none' };
  if (toolChoice === 'required') return { type: 'any', ...isSerial };
  return toolChoice === undefined && parallelToolCalls !== false ? undefined : { type: 'auto', ...isSerial };
}

const EFFORTS: Readonly<Partial<Record<ReasoningEffort, string>>> = {
  low: 'low',
  medium: 'medium',
  high: 'high',
  xhigh: 'xhigh',
  max: 'max',
};

function toOutputConfig({ reasoningEffort, structuredOutput }: ChatOptions): object | undefined {
  const effort = reasoningEffort === undefined ? undefined : EFFORTS[reasoningEffort];
  if (structuredOutput === undefined) return effort === undefined ? undefined : { effort };
  if (structuredOutput.type !== 'json' || structuredOutput.schema === undefined)
    throw refused('response_format', 'the type text or json_schema', 'a format without a schema');
  return withoutUndefined({ effort, format: { type: 'json_schema', schema: structuredOutput.schema } });
}
