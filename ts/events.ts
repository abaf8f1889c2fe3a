import type { NativeFinish, NativeTokenLogprob } from './addon-types';
import type { ToolCall } from './text/messages';

/** How a choice ended; a call that is aborted or fails throws instead. */
export type FinishReason = 'stop' | 'length' | 'tool_calls';

/** Natural logarithms of probabilities, of the model's raw scores. */
export interface TokenLogprob {
  tokenId: number;
  logprob: number;
  /** 1 = most likely. */
  rank: number;
  topLogprobs: { tokenId: number; logprob: number }[];
}

/** New text of one choice, with the tokens that came since its last event; either may be empty. */
export interface DeltaEvent {
  type: 'delta';
  index: number;
  textDelta: string;
  tokenIds: number[];
  /** One per entry of `tokenIds`, when asked for. */
  logprobs?: TokenLogprob[];
}

/** New reasoning text of one choice, of models that think before they answer. */
export interface ReasoningEvent {
  type: 'reasoning';
  index: number;
  textDelta: string;
}

/** Part of a tool call; the deltas of one `callIndex` together are its arguments. */
export interface ToolCallEvent {
  type: 'toolCall';
  index: number;
  /** Counts the calls of this choice. */
  callIndex: number;
  id: string;
  name: string;
  argumentsDelta: string;
}

/** The end of one choice. */
export interface FinishEvent {
  type: 'finish';
  index: number;
  finishReason: FinishReason;
  /** The stop string or stop token id that ended it, else null. */
  stopReason: string | number | null;
  usage: Usage;
}

export type GenerateEvent = DeltaEvent | FinishEvent;
export type ChatEvent = GenerateEvent | ReasoningEvent | ToolCallEvent;

/** Counted in tokens and milliseconds. */
export interface Usage {
  promptTokens: number;
  completionTokens: number;
  totalTokens: number;
  /** Prompt tokens that the prefix cache held. */
  cachedTokens: number;
  /** Completion tokens between a thought's markers; only in chats of a model whose reasoning is read. */
  reasoningTokens?: number;
  timings: {
    /** Submit to first schedule. */
    queueMs: number;
    prefillMs: number;
    decodeMs: number;
  };
  numPreemptions: number;
}

/** One whole choice. */
export interface Choice {
  index: number;
  /** Without reasoning and tool calls. */
  text: string;
  toolCalls: ToolCall[];
  /** Present when the model thought. */
  reasoning?: string;
  tokenIds: number[];
  logprobs?: TokenLogprob[];
  finishReason: FinishReason;
  stopReason: string | number | null;
}

/** The whole answer to a call. */
export interface GenerationResult {
  id: string;
  /** As the engine took them: truncated, with special tokens. */
  promptTokenIds: Int32Array;
  choices: Choice[];
  /** Prompt tokens counted once, completion tokens over all choices. */
  usage: Usage;
  /** Per prompt token, the first null; when asked for. */
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

/** Of a whole call: the first choice's prompt, all choices' completions, the longest times. */
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
