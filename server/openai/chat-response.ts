import type { Choice, FinishEvent, GenerationResult, ToolCallEvent } from '../../ts';
import type { ChatCall } from './chat-request';
import { chatLogprobs, promptLogprobs, type TokenWords } from './logprobs';
import { type WireUsage, wireUsage } from './usage';

/** What all answers and chunks of one request share. */
export interface AnswerHead {
  id: string;
  /** Seconds since 1970 at which the request was accepted. */
  created: number;
  model: string;
}

/** What the answers of a server share. */
export interface AnswerStyle {
  role: string;
  hasPrefixCache: boolean;
  words: TokenWords;
}

/** What a client may ask to see of its prompt. */
export interface PromptEcho {
  tokenIds: Int32Array | undefined;
  text: string | undefined;
}

/** The answer of a call without `stream`, in the source document's key order; what clients ask for comes after its keys. */
export function chatCompletion(
  head: AnswerHead,
  call: ChatCall,
  result: GenerationResult,
  prompt: PromptEcho,
  style: AnswerStyle,
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

function wireChoice(choice: Choice, call: ChatCall, { role, words }: AnswerStyle): object {
  const reasoning = call.showsReasoning ? choice.reasoning : undefined;
  return {
    index: choice.index,
    message: {
      role,
      reasoning_content: reasoning ?? null,
      content: choice.text,
      tool_calls: choice.toolCalls.map(({ id, name, arguments: args }) => ({
        id,
        type: 'function',
        function: { name, arguments: args },
      })),
      ...(reasoning === undefined ? {} : { reasoning }),
    },
    logprobs: choice.logprobs === undefined ? null : chatLogprobs(choice.logprobs, words),
    finish_reason: choice.finishReason,
    stop_reason: choice.stopReason,
    ...(call.returnsTokenIds ? { token_ids: [...choice.tokenIds] } : {}),
  };
}

export function promptFields({ tokenIds, text }: PromptEcho): object {
  return {
    ...(tokenIds === undefined ? {} : { prompt_token_ids: [...tokenIds] }),
    ...(text === undefined ? {} : { prompt_text: text }),
  };
}

/** One chunk of a stream; without choices it is the usage chunk. */
export function chatChunk(
  head: AnswerHead,
  choices: readonly object[],
  usage?: WireUsage,
  further: object = {},
): string {
  return JSON.stringify({
    id: head.id,
    object: 'chat.completion.chunk',
    created: head.created,
    model: head.model,
    choices,
    ...(usage === undefined ? {} : { usage }),
    ...further,
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

/** The first delta of a call names it; the arguments follow. */
export function toolCallDeltas({ callIndex, id, name, argumentsDelta }: ToolCallEvent, isFirst: boolean): object[] {
  const head = { tool_calls: [{ index: callIndex, id, type: 'function', function: { name, arguments: '' } }] };
  const rest =
    argumentsDelta === '' ? [] : [{ tool_calls: [{ index: callIndex, function: { arguments: argumentsDelta } }] }];
  return isFirst ? [head, ...rest] : rest;
}
