import { randomBytes } from 'node:crypto';
import type { NativeEvent, NativeFinish } from './addon-types';
import { type ChatEvent, type DeltaEvent, type FinishReason, toTokenLogprob } from './events';
import type { ToolCall } from './text/messages';
import { ReasoningMachine, type ReasoningPart, type ThinkingState, ThoughtCounter } from './text/reasoning';
import { type OutputPart, type ToolCallFormat, ToolCallMachine, type ToolCallOptions } from './text/tool-calls';

/** How one choice's text is read: what the machines look for. */
export interface ChoiceReading {
  /** undefined: tool calls stay text. */
  toolCallFormat?: ToolCallFormat;
  toolCallOptions?: ToolCallOptions;
  /** The first complete call ends the choice. */
  stopsAfterCall?: boolean;
  /** One function was asked for: its call is a normal end, not `tool_calls`. */
  isCallNamed?: boolean;
  /** undefined: thoughts are text like any other. */
  thinking?: ThinkingState;
  /** Thoughts are told apart, for tool calls are not looked for in them, and yet stay in the text. */
  keepsThoughts?: boolean;
  /** Bytes of a token that make text, empty for special ones; where `thinking` is given. */
  tokenBytes?: (tokenId: number) => Uint8Array;
}

type ContentEvent = Exclude<ChatEvent, { type: 'finish' }>;

/** Turns the addon's events of one choice into ours, and keeps the whole choice. */
export class ChoiceReader {
  readonly #index: number;
  readonly #reasoningMachine?: ReasoningMachine;
  readonly #toolCallMachine?: ToolCallMachine;
  readonly #newToolCallId: () => string;
  readonly #thoughtCounter?: ThoughtCounter;
  readonly #reading: ChoiceReading;
  readonly toolCalls: ToolCall[] = [];
  readonly tokenIds: number[] = [];
  readonly logprobs: NonNullable<DeltaEvent['logprobs']> = [];
  text = '';
  reasoning = '';

  constructor(index: number, reading: ChoiceReading) {
    const { toolCallFormat, toolCallOptions, thinking, keepsThoughts = false } = reading;
    this.#index = index;
    this.#reading = reading;
    this.#newToolCallId = toolCallFormat?.newId ?? newToolCallId;
    if (toolCallFormat !== undefined) this.#toolCallMachine = new ToolCallMachine(toolCallFormat, toolCallOptions);
    if (thinking === undefined) return;
    this.#reasoningMachine = new ReasoningMachine(thinking, keepsThoughts);
    this.#thoughtCounter = new ThoughtCounter(thinking);
  }

  /** Whether the choice has all that was asked for, so that nothing of it is read any more. */
  get hasStopped(): boolean {
    return this.#reading.stopsAfterCall === true && this.toolCalls.length > 0;
  }

  /** undefined without a reasoning format. */
  get reasoningTokens(): number | undefined {
    return this.#thoughtCounter?.numTokens;
  }

  /** The tokens of an event go with its first text; where the machines hold all text back, with an empty one. */
  read({ textDelta, tokenIds, logprobs, finish }: NativeEvent): ContentEvent[] {
    if (this.hasStopped) return [];
    const events = this.#split(textDelta, finish !== null).map((part) => this.#toEvent(part));
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
      if (this.#thoughtCounter !== undefined && this.#reading.tokenBytes !== undefined)
        this.#thoughtCounter.add(this.#reading.tokenBytes(id));
    }
    for (const entry of delta?.logprobs ?? []) this.logprobs.push(entry);
    return events;
  }

  /** A normal end after at least one call is `tool_calls`; a call cut by the length limit stays `length`. */
  finishReason(reason: 'stop' | 'length'): FinishReason {
    return reason === 'stop' && this.toolCalls.length > 0 && this.#reading.isCallNamed !== true ? 'tool_calls' : reason;
  }

  /** How the choice ended: one that has stopped did so where it was last read, though the engine may have gone on for a step. */
  toFinish(finish: NativeFinish): NativeFinish {
    if (!this.hasStopped || finish.reason === 'abort' || finish.reason === 'error') return finish;
    return { ...finish, reason: 'stop', stopReason: null, completionTokens: this.tokenIds.length };
  }

  /** Reasoning first: tool calls are looked for in the rest only. */
  #split(textDelta: string, isEnd: boolean): (OutputPart | ReasoningPart)[] {
    const parts = this.#splitReasoning(textDelta, isEnd);
    const calls = this.#toolCallMachine;
    if (calls === undefined) return parts;
    const split = parts.flatMap((part): (OutputPart | ReasoningPart)[] =>
      part.type === 'text' ? calls.push(part.text) : [part],
    );
    return this.#untilStopped(isEnd ? [...split, ...calls.end()] : split);
  }

  #untilStopped<T extends OutputPart | ReasoningPart>(parts: T[]): T[] {
    const first = this.#reading.stopsAfterCall === true ? parts.findIndex((part) => part.type === 'toolCall') : -1;
    return first < 0 ? parts : parts.slice(0, first + 1);
  }

  #splitReasoning(textDelta: string, isEnd: boolean): ReasoningPart[] {
    const machine = this.#reasoningMachine;
    if (machine === undefined) return textDelta === '' ? [] : [{ type: 'text', text: textDelta }];
    return isEnd ? [...machine.push(textDelta), ...machine.end()] : machine.push(textDelta);
  }

  #toEvent(part: OutputPart | ReasoningPart): ContentEvent {
    switch (part.type) {
      case 'text':
        this.text += part.text;
        return this.#delta(part.text);
      case 'reasoning':
        if (this.#reading.keepsThoughts === true) return this.#toEvent({ type: 'text', text: part.text });
        this.reasoning += part.text;
        return { type: 'reasoning', index: this.#index, textDelta: part.text };
      case 'toolCall':
        return this.#toCallEvent(this.#startCall(part.name), part.arguments);
      case 'toolCallStart':
        return this.#toCallEvent(this.#startCall(part.name), '');
      case 'toolCallArguments':
        return this.#toCallEvent(this.toolCalls.length - 1, part.text);
    }
  }

  #startCall(name: string): number {
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
