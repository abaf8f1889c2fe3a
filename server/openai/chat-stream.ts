import type { ChatEvent, DeltaEvent, FinishEvent, ReasoningEvent, ToolCallEvent } from '../../ts';
import type { ChatCall } from './chat-request';
import {
  type AnswerHead,
  type AnswerStyle,
  chatChunk,
  deltaChoice,
  finishChoice,
  promptFields,
  type PromptEcho,
  toolCallDeltas,
} from './chat-response';
import { chatLogprobs } from './logprobs';
import { runningUsage } from './usage';

/** Turns the events of one call into chunks. */
export class ChatChunks {
  readonly #head: AnswerHead;
  readonly #call: ChatCall;
  readonly #style: AnswerStyle;
  readonly #promptTokens: number;
  /** Tool calls that were named already. */
  readonly #begun = new Set<string>();
  /** Reasoning to be sent in one piece, by choice. */
  readonly #held = new Map<number, string>();
  #completionTokens = 0;

  constructor(head: AnswerHead, call: ChatCall, promptTokens: number, style: AnswerStyle) {
    this.#head = head;
    this.#call = call;
    this.#style = style;
    this.#promptTokens = promptTokens;
  }

  /** One chunk per choice that says who speaks; the first also carries what was asked of the prompt. */
  begin(prompt: PromptEcho): string[] {
    const delta = { role: this.#style.role, content: '' };
    return Array.from({ length: this.#call.options.n ?? 1 }, (_, index) =>
      this.#chunk(deltaChoice(index, delta), index === 0 ? promptFields(prompt) : {}),
    );
  }

  /** The chunks of events that came together, which all tell the count after them. */
  take(events: readonly ChatEvent[]): string[] {
    const before = this.#completionTokens;
    for (const event of events) if (event.type === 'delta') this.#completionTokens += event.tokenIds.length;
    const chunks = events.flatMap((event) => this.#takeOne(event));
    if (chunks.length > 0 || !this.#call.usage.isContinuous || this.#completionTokens === before) return chunks;
    return [this.#chunk(deltaChoice(events[0].index, {}))];
  }

  #takeOne(event: ChatEvent): string[] {
    switch (event.type) {
      case 'delta':
        return this.#takeText(event);
      case 'reasoning':
        return this.#takeReasoning(event);
      case 'toolCall':
        return this.#takeToolCall(event);
      case 'finish':
        return this.#takeFinish(event);
    }
  }

  #takeText({ index, textDelta, tokenIds, logprobs }: DeltaEvent): string[] {
    const { returnsTokenIds } = this.#call;
    const released = textDelta === '' ? [] : this.#release(index);
    const hasLogprobs = logprobs !== undefined && logprobs.length > 0;
    // Tokens without text have a chunk of their own where what was said of them would be lost.
    if (textDelta === '' && !hasLogprobs && !(returnsTokenIds && tokenIds.length > 0)) return released;
    const choice = deltaChoice(
      index,
      textDelta === '' ? {} : { content: textDelta },
      hasLogprobs ? chatLogprobs(logprobs, this.#style.words) : null,
      returnsTokenIds ? tokenIds : undefined,
    );
    return [...released, this.#chunk(choice)];
  }

  #takeReasoning({ index, textDelta }: ReasoningEvent): string[] {
    if (!this.#call.showsReasoning) return [];
    if (!this.#call.holdsReasoning) return [this.#reasoningChunk(index, textDelta)];
    this.#held.set(index, (this.#held.get(index) ?? '') + textDelta);
    return [];
  }

  #takeToolCall(event: ToolCallEvent): string[] {
    const isFirst = !this.#begun.has(event.id);
    this.#begun.add(event.id);
    return [
      ...this.#release(event.index),
      ...toolCallDeltas(event, isFirst).map((delta) => this.#chunk(deltaChoice(event.index, delta))),
    ];
  }

  #takeFinish(event: FinishEvent): string[] {
    return [...this.#release(event.index), this.#chunk(finishChoice(event))];
  }

  #release(index: number): string[] {
    const reasoning = this.#held.get(index);
    this.#held.delete(index);
    return reasoning === undefined ? [] : [this.#reasoningChunk(index, reasoning)];
  }

  #reasoningChunk(index: number, text: string): string {
    return this.#chunk(deltaChoice(index, { reasoning_content: text, reasoning: text }));
  }

  #chunk(choice: object, further: object = {}): string {
    const usage = this.#call.usage.isContinuous ? runningUsage(this.#promptTokens, this.#completionTokens) : undefined;
    return chatChunk(this.#head, [choice], usage, further);
  }
}
