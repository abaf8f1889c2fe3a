import { randomBytes } from 'node:crypto';
import type { NativeEvent, NativeFinish } from './addon-types';
import { type ChatEvent, type DeltaEvent, type FinishReason, toTokenLogprob } from './events';
import type { ToolCall } from './text/messages';
import {
  type ReasoningFormat,
  type ReasoningPart,
  type ReasoningSplitter,
  ReasoningTokenCounter,
  type ThinkingState,
} from './text/reasoning';
import { type OutputPart, type ToolCallFormat, ToolCallParser, type ToolCallOptions } from './text/tool-calls';

/** How the text of a choice is split into text, reasoning and tool calls. */
export interface ChoiceReaderOptions {
  /** undefined: tool calls stay in the text. */
  toolCallFormat?: ToolCallFormat;
  toolCallOptions?: ToolCallOptions;
  /** The end of the first tool call ends the choice. */
  stopsAfterCall?: boolean;
  /** The caller named the function, so the choice finishes with `stop`, not `tool_calls`. */
  isCallNamed?: boolean;
  /** How reasoning is written, and where the completion starts; undefined: reasoning is not parsed. */
  reasoning?: { format: ReasoningFormat; state: ThinkingState };
  /** Reports reasoning as text. It is parsed anyway, because tool calls in it do not count. */
  keepsReasoningInText?: boolean;
  /** Bytes of a token, empty for special tokens. Required with `reasoning`. */
  tokenBytes?: (tokenId: number) => Uint8Array;
}

type ContentEvent = Exclude<ChatEvent, { type: 'finish' }>;

/** Converts the addon's events of one choice into public events, and collects the complete choice. */
export class ChoiceReader {
  readonly #index: number;
  readonly #reasoningSplitter?: ReasoningSplitter;
  readonly #toolCallParser?: ToolCallParser;
  readonly #newToolCallId: () => string;
  readonly #reasoningTokenCounter?: ReasoningTokenCounter;
  readonly #options: ChoiceReaderOptions;
  readonly toolCalls: ToolCall[] = [];
  readonly tokenIds: number[] = [];
  readonly logprobs: NonNullable<DeltaEvent['logprobs']> = [];
  text = '';
  reasoning = '';
  /** Whether the last call is complete. */
  #hasEndedCall = false;
  /** Whether the choice is complete, so later events are ignored. */
  hasStopped = false;

  constructor(index: number, options: ChoiceReaderOptions) {
    const { toolCallFormat, toolCallOptions, reasoning, keepsReasoningInText = false } = options;
    this.#index = index;
    this.#options = options;
    this.#newToolCallId = toolCallFormat?.newId ?? newToolCallId;
    if (toolCallFormat !== undefined) this.#toolCallParser = new ToolCallParser(toolCallFormat, toolCallOptions);
    if (reasoning === undefined) return;
    this.#reasoningSplitter = reasoning.format.split(reasoning.state, keepsReasoningInText);
    this.#reasoningTokenCounter = new ReasoningTokenCounter(reasoning.format, reasoning.state);
  }

  /** undefined if reasoning is not parsed. */
  get reasoningTokens(): number | undefined {
    return this.#reasoningTokenCounter?.numTokens;
  }

  /**
   * Returns the public events of one addon event. The tokens belong to the first delta, which has no text if the
   * parsers hold it back.
   */
  read({ textDelta, tokenIds, logprobs, finish }: NativeEvent): ContentEvent[] {
    if (this.hasStopped) return [];
    const events = this.#split(textDelta, finish).flatMap((part) => this.#toEvents(part));
    let delta = events.find((event) => event.type === 'delta');
    if (delta === undefined && tokenIds.length > 0) {
      delta = this.#delta('');
      events.push(delta);
    }
    if (delta !== undefined) {
      delta.tokenIds = tokenIds;
      if (logprobs !== null) delta.logprobs = logprobs.map(toTokenLogprob);
    }
    for (const id of tokenIds) {
      this.tokenIds.push(id);
      if (this.#reasoningTokenCounter !== undefined && this.#options.tokenBytes !== undefined)
        this.#reasoningTokenCounter.add(this.#options.tokenBytes(id));
    }
    for (const entry of delta?.logprobs ?? []) this.logprobs.push(entry);
    return events;
  }

  /** Returns `tool_calls` for a normal end if the last call is complete, and the reason itself otherwise. */
  finishReason(reason: 'stop' | 'length'): FinishReason {
    return reason === 'stop' && this.#hasEndedCall && this.#options.isCallNamed !== true ? 'tool_calls' : reason;
  }

  /** Corrects the finish of a choice that stopped after a call: the engine may have generated tokens after it. */
  toFinish(finish: NativeFinish): NativeFinish {
    if (!this.hasStopped || finish.reason === 'abort' || finish.reason === 'error') return finish;
    return { ...finish, reason: 'stop', stopReason: null, completionTokens: this.tokenIds.length };
  }

  /** Splits off reasoning first, because tool calls count only outside of it. */
  #split(textDelta: string, finish: NativeFinish | null): (OutputPart | ReasoningPart)[] {
    const isCut = finish !== null && finish.reason !== 'stop';
    const parts = this.#splitReasoning(textDelta, finish === null ? undefined : isCut);
    const calls = this.#toolCallParser;
    if (calls === undefined) return parts;
    const split = parts.flatMap((part): (OutputPart | ReasoningPart)[] =>
      part.type === 'text' ? calls.push(part.text) : [part],
    );
    return this.#untilStopped(finish === null ? split : [...split, ...calls.end(isCut)]);
  }

  #untilStopped<T extends OutputPart | ReasoningPart>(parts: T[]): T[] {
    const end = this.#options.stopsAfterCall === true ? parts.findIndex((part) => part.type === 'toolCallEnd') : -1;
    this.hasStopped = end >= 0;
    return this.hasStopped ? parts.slice(0, end + 1) : parts;
  }

  /** @param isCut At the end of the completion: whether it is incomplete. */
  #splitReasoning(textDelta: string, isCut: boolean | undefined): ReasoningPart[] {
    const splitter = this.#reasoningSplitter;
    if (splitter === undefined) return textDelta === '' ? [] : [{ type: 'text', text: textDelta }];
    return isCut === undefined ? splitter.push(textDelta) : [...splitter.push(textDelta), ...splitter.end(isCut)];
  }

  #toEvents(part: OutputPart | ReasoningPart): ContentEvent[] {
    switch (part.type) {
      case 'text':
        this.text += part.text;
        return [this.#delta(part.text)];
      case 'reasoning':
        if (this.#options.keepsReasoningInText === true) return this.#toEvents({ type: 'text', text: part.text });
        this.reasoning += part.text;
        return [{ type: 'reasoning', index: this.#index, textDelta: part.text }];
      case 'toolCallStart':
        return [this.#toCallEvent(this.#startCall(part.name), '')];
      case 'toolCallArguments':
        return [this.#toCallEvent(this.toolCalls.length - 1, part.text)];
      case 'toolCallEnd':
        this.#hasEndedCall = true;
        return [];
    }
  }

  #startCall(name: string): number {
    this.#hasEndedCall = false;
    return this.toolCalls.push({ id: this.#newToolCallId(), name, arguments: '' }) - 1;
  }

  #toCallEvent(callIndex: number, argumentsDelta: string): ContentEvent {
    const call = this.toolCalls[callIndex];
    call.arguments += argumentsDelta;
    return { type: 'toolCall', index: this.#index, callIndex, id: call.id, name: call.name, argumentsDelta };
  }

  #delta(textDelta: string): DeltaEvent {
    return { type: 'delta', index: this.#index, textDelta, tokenIds: [] };
  }
}

function newToolCallId(): string {
  return `call_${randomBytes(12).toString('hex')}`;
}
