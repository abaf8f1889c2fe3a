import type { Choice, FinishEvent, GenerationResult, ToolCall, ToolCallEvent } from '../../../ts';
import { customInput } from '../conversation/custom-tools';
import type { ChatCall } from './chat-request';
import { chatLogprobs, promptLogprobs, type TokenWords } from './logprobs';
import { type WireUsage, wireUsage } from './usage';

/** The fields that the response of a request and all its chunks share. */
export interface CompletionHead {
  id: string;
  /** When the request was accepted, in seconds since 1970. */
  created: number;
  model: string;
}

/** Server-wide properties of chat responses. */
export interface ChatStyle {
  role: string;
  hasPrefixCache: boolean;
  words: TokenWords;
}

/** The parts of the prompt that the client asked for. */
export interface PromptEcho {
  tokenIds: Int32Array | undefined;
  text: string | undefined;
}

/** Returns the response of a request without `stream`. Optional keys come after the keys that are always present. */
export function chatCompletion(
  head: CompletionHead,
  call: ChatCall,
  result: GenerationResult,
  prompt: PromptEcho,
  style: ChatStyle,
): object {
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created,
    model: head.model,
    choices: result.choices.map((choice) => wireChoice(choice, call, style)),
    usage: wireUsage(result.usage, style.hasPrefixCache),
    prompt_logprobs: result.promptLogprobs === undefined ? null : promptLogprobs(result.promptLogprobs, style.words),
    ...promptFields(prompt),
  };
}

function wireChoice(choice: Choice, call: ChatCall, { role, words }: ChatStyle): object {
  const reasoning = call.showsReasoning ? choice.reasoning : undefined;
  return {
    index: choice.index,
    message: {
      role,
      reasoning_content: reasoning ?? null,
      content: choice.text,
      tool_calls: choice.toolCalls.map((toolCall) => wireToolCall(toolCall, call.customNames)),
      ...(reasoning === undefined ? {} : { reasoning }),
    },
    logprobs: choice.logprobs === undefined ? null : chatLogprobs(choice.logprobs, words),
    finish_reason: choice.finishReason,
    stop_reason: choice.stopReason,
    ...(call.returnsTokenIds ? { token_ids: [...choice.tokenIds] } : {}),
  };
}

function wireToolCall({ id, name, arguments: args }: ToolCall, customNames: ChatCall['customNames']): object {
  return customNames.includes(name)
    ? { id, type: 'custom', custom: { name, input: customInput(args) } }
    : { id, type: 'function', function: { name, arguments: args } };
}

export function promptFields({ tokenIds, text }: PromptEcho): object {
  return {
    ...(tokenIds === undefined ? {} : { prompt_token_ids: [...tokenIds] }),
    ...(text === undefined ? {} : { prompt_text: text }),
  };
}

/** Returns one chunk of a stream. The usage chunk has no choices. */
export function chatChunk(
  head: CompletionHead,
  choices: readonly object[],
  usage?: WireUsage,
  extraFields: object = {},
): string {
  return JSON.stringify({
    id: head.id,
    object: 'chat.completion.chunk',
    created: head.created,
    model: head.model,
    choices,
    ...(usage === undefined ? {} : { usage }),
    ...extraFields,
  });
}

export function deltaChoice(
  index: number,
  delta: object,
  logprobs: object | null = null,
  tokenIds?: readonly number[],
): object {
  return { index, delta, logprobs, finish_reason: null, ...(tokenIds === undefined ? {} : { token_ids: tokenIds }) };
}

export function finishChoice({ index, finishReason, stopReason }: FinishEvent): object {
  return { index, delta: {}, logprobs: null, finish_reason: finishReason, stop_reason: stopReason };
}

/** Returns the deltas of a tool call. The first delta of a call holds its name, the others hold arguments. */
export function toolCallDeltas({ callIndex, id, name, argumentsDelta }: ToolCallEvent, isFirst: boolean): object[] {
  const head = { tool_calls: [{ index: callIndex, id, type: 'function', function: { name, arguments: '' } }] };
  const rest =
    argumentsDelta === '' ? [] : [{ tool_calls: [{ index: callIndex, function: { arguments: argumentsDelta } }] }];
  return isFirst ? [head, ...rest] : rest;
}

/** Returns the only delta of a call of a custom tool. The event holds all arguments. */
export function customCallDelta({ callIndex, id, name, argumentsDelta: args }: ToolCallEvent): object {
  return { tool_calls: [{ index: callIndex, id, type: 'custom', custom: { name, input: customInput(args) } }] };
}
