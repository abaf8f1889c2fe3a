import type { Choice, FinishEvent, TokenLogprob, ToolCallEvent, Usage } from '../../ts';

/** What all answers and chunks of one request share. */
export interface AnswerHead {
  id: string;
  /** Seconds since 1970 at which the request was accepted. */
  created: number;
  model: string;
}

/** Bytes of a token, for `logprobs`. */
export type TokenBytes = (tokenId: number) => Uint8Array;

/** The answer of a call without `stream`, in the source document's key order. */
export function chatCompletion(head: AnswerHead, choices: readonly Choice[], usage: WireUsage, tokenBytes: TokenBytes): object {
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created,
    model: head.model,
    choices: choices.map((choice) => ({
      index: choice.index,
      message: {
        role: 'assistant',
        reasoning_content: choice.reasoning ?? null,
        content: choice.text,
        tool_calls: choice.toolCalls.map(({ id, name, arguments: args }) => ({ id, type: 'function', function: { name, arguments: args } })),
        ...(choice.reasoning === undefined ? {} : { reasoning: choice.reasoning }),
      },
      logprobs: choice.logprobs === undefined ? null : wireLogprobs(choice.logprobs, tokenBytes),
      finish_reason: choice.finishReason,
      stop_reason: choice.stopReason,
    })),
    usage,
    prompt_logprobs: null,
  };
}

/** One chunk of a stream; without choices it is the usage chunk. */
export function chunk(head: AnswerHead, choices: readonly object[], usage?: WireUsage): string {
  return JSON.stringify({ id: head.id, object: 'chat.completion.chunk', created: head.created, model: head.model, choices, ...(usage === undefined ? {} : { usage }) });
}

export function deltaChoice(index: number, delta: object, logprobs: object | null = null): object {
  return { index, delta, logprobs, finish_reason: null };
}

export function finishChoice({ index, finishReason, stopReason }: FinishEvent): object {
  return { index, delta: {}, logprobs: null, finish_reason: finishReason, stop_reason: stopReason };
}

/** The first delta of a call names it; the arguments follow. */
export function toolCallDeltas({ callIndex, id, name, argumentsDelta }: ToolCallEvent, isFirst: boolean): object[] {
  const head = { tool_calls: [{ index: callIndex, id, type: 'function', function: { name, arguments: '' } }] };
  const rest = { tool_calls: [{ index: callIndex, function: { arguments: argumentsDelta } }] };
  return isFirst ? [head, rest] : [rest];
}

export interface WireUsage {
  prompt_tokens: number;
  total_tokens: number;
  completion_tokens: number;
  prompt_tokens_details: { cached_tokens: number } | null;
}

/** `cachedTokens` null: the prefix cache is off. */
export function wireUsage(promptTokens: number, completionTokens: number, cachedTokens: number | null): WireUsage {
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
    prompt_tokens_details: cachedTokens === null ? null : { cached_tokens: cachedTokens },
  };
}

export function toWireUsage({ promptTokens, completionTokens, cachedTokens }: Usage, hasPrefixCache: boolean): WireUsage {
  return wireUsage(promptTokens, completionTokens, hasPrefixCache ? cachedTokens : null);
}

/** JSON has no infinity. */
const LEAST_LOGPROB = -9999;

export function wireLogprobs(logprobs: readonly TokenLogprob[], tokenBytes: TokenBytes): object {
  const entry = ({ tokenId, logprob }: { tokenId: number; logprob: number }) => {
    const bytes = tokenBytes(tokenId);
    return { token: Buffer.from(bytes).toString('utf8'), logprob: Math.max(logprob, LEAST_LOGPROB), bytes: [...bytes] };
  };
  return { content: logprobs.map((token) => ({ ...entry(token), top_logprobs: token.topLogprobs.map(entry) })) };
}
