import type { NativeFinish, NativeTokenLogprob } from './addon-types';
import type { ToolCall } from './text/messages';

/**
 * How a choice ended: `stop` at an end-of-sequence token, stop string or stop token, `length` at `maxTokens` or the
 * context length, `tool_calls` after tool calls. A call that is aborted or fails throws instead.
 */
export type FinishReason = 'stop' | 'length' | 'tool_calls';

/** Log-probability of a token: natural logarithm of the softmax of the raw logits, before any sampling parameter. */
export interface TokenLogprob {
  /** Id of the token. */
  tokenId: number;
  /** At most 0. */
  logprob: number;
  /** Position among all tokens; 1 = most likely. */
  rank: number;
  /** The most likely alternatives, in descending order. */
  topLogprobs: {
    /** Id of the token. */
    tokenId: number;
    /** At most 0. */
    logprob: number;
  }[];
}

/** New text of one choice, and its tokens since the last event. Either may be empty. */
export interface DeltaEvent {
  /** Kind of the event. */
  type: 'delta';
  /** Index of the choice, from 0. */
  index: number;
  /** New text, in complete characters. */
  textDelta: string;
  /** New tokens. Those of a half-written character come before its text. */
  tokenIds: number[];
  /** One entry per element of `tokenIds`; present if `logprobs` was requested. */
  logprobs?: TokenLogprob[];
}

/** New reasoning text of one choice. Only models that reason before they answer send it. */
export interface ReasoningEvent {
  /** Kind of the event. */
  type: 'reasoning';
  /** Index of the choice, from 0. */
  index: number;
  /** New text of the reasoning. */
  textDelta: string;
}

/** Part of a tool call. Concatenate the `argumentsDelta` of equal `callIndex` to get the arguments. */
export interface ToolCallEvent {
  /** Kind of the event. */
  type: 'toolCall';
  /** Index of the choice, from 0. */
  index: number;
  /** Index of the tool call within the choice, from 0. */
  callIndex: number;
  /** Id of the call, the same in all its events. */
  id: string;
  /** Name of the function. */
  name: string;
  /** Part of the arguments' JSON text. */
  argumentsDelta: string;
}

/** The end of one choice. */
export interface FinishEvent {
  /** Kind of the event. */
  type: 'finish';
  /** Index of the choice, from 0. */
  index: number;
  /** How the choice ended. */
  finishReason: FinishReason;
  /** The stop string or stop token id that ended the choice, else null. */
  stopReason: string | number | null;
  /** Usage of this choice alone. */
  usage: Usage;
}

/** Events of {@link Engine.generate}. */
export type GenerateEvent = DeltaEvent | FinishEvent;
/** Events of {@link Engine.chat}. */
export type ChatEvent = GenerateEvent | ReasoningEvent | ToolCallEvent;

/** Token counts and times of a choice or of a whole call. */
export interface Usage {
  /** Tokens of the prompt, cached ones included. */
  promptTokens: number;
  /** Tokens of the completion, those of reasoning and tool calls included. */
  completionTokens: number;
  /** Prompt and completion tokens together. */
  totalTokens: number;
  /** Prompt tokens found in the prefix cache. */
  cachedTokens: number;
  /** Completion tokens between the reasoning markers. Present in chats with a model that has a reasoning format. */
  reasoningTokens?: number;
  /** Where the time went. */
  timings: {
    /** Milliseconds from submit to the first scheduled step. */
    queueMs: number;
    /** Milliseconds from the first scheduled step to the first completion token. */
    prefillMs: number;
    /** Milliseconds from the first completion token to the end. */
    decodeMs: number;
  };
  /** How often the sequence was preempted and recomputed. */
  numPreemptions: number;
}

/** One complete choice. */
export interface Choice {
  /** Index of the choice, from 0. */
  index: number;
  /** The text without reasoning and tool calls. */
  text: string;
  /** The calls that the model wrote, in order. Empty without calls. */
  toolCalls: ToolCall[];
  /** Present if the model produced reasoning. */
  reasoning?: string;
  /** All completion tokens, those of reasoning and tool calls included. */
  tokenIds: number[];
  /** One entry per element of `tokenIds`; present if `logprobs` was requested. */
  logprobs?: TokenLogprob[];
  /** How the choice ended. */
  finishReason: FinishReason;
  /** The stop string or stop token id that ended the choice, else null. */
  stopReason: string | number | null;
}

/** The complete result of a call. */
export interface GenerationResult {
  /** The `requestId` of the call. */
  id: string;
  /** The prompt as the engine computed it: truncated, with special tokens. */
  promptTokenIds: Int32Array;
  /** One entry per choice, in order. */
  choices: Choice[];
  /** Counts the prompt once and the completions of all choices. Times are the longest of all choices. */
  usage: Usage;
  /** One entry per prompt token, the first null; present if `promptLogprobs` was requested. */
  promptLogprobs?: (TokenLogprob | null)[];
}

export function toTokenLogprob({ tokenId, logprob, rank, top }: NativeTokenLogprob): TokenLogprob {
  return { tokenId, logprob, rank, topLogprobs: top };
}

export function toUsage(
  { promptTokens, completionTokens, cachedTokens, queueMs, prefillMs, decodeMs, numPreemptions }: NativeFinish,
  reasoningTokens?: number,
): Usage {
  return {
    promptTokens,
    completionTokens,
    totalTokens: promptTokens + completionTokens,
    cachedTokens,
    ...(reasoningTokens === undefined ? {} : { reasoningTokens }),
    timings: { queueMs, prefillMs, decodeMs },
    numPreemptions,
  };
}

/** Returns the usage of a whole call: the prompt counted once, completions added up, the longest times. */
export function sumUsage(usages: readonly Usage[]): Usage {
  const [{ promptTokens, cachedTokens, reasoningTokens }] = usages;
  const completionTokens = usages.reduce((sum, usage) => sum + usage.completionTokens, 0);
  const longest = (name: keyof Usage['timings']) => Math.max(...usages.map((usage) => usage.timings[name]));
  return {
    promptTokens,
    completionTokens,
    totalTokens: promptTokens + completionTokens,
    cachedTokens,
    ...(reasoningTokens === undefined
      ? {}
      : { reasoningTokens: usages.reduce((sum, usage) => sum + (usage.reasoningTokens ?? 0), 0) }),
    timings: { queueMs: longest('queueMs'), prefillMs: longest('prefillMs'), decodeMs: longest('decodeMs') },
    numPreemptions: usages.reduce((sum, usage) => sum + usage.numPreemptions, 0),
  };
}
