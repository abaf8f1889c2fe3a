import type { ChatEvent, DeltaEvent, FinishEvent, ReasoningEvent, ToolCallEvent } from '../../../ts';
import type { ChatCall } from './chat-request';
import {
  type CompletionHead,
  type ChatStyle,
  chatChunk,
  customCallDelta,
  deltaChoice,
  finishChoice,
  promptFields,
  type PromptEcho,
  toolCallDeltas,
} from './chat-response';
import { chatLogprobs } from './logprobs';
import { runningUsage } from './usage';

/** Converts the events of one generation to chunks. */
export class ChatChunks {
  readonly #head: CompletionHead;
  readonly #call: ChatCall;
  readonly #style: ChatStyle;
  readonly #promptTokens: number;
  /** Ids of tool calls whose name was sent. */
  readonly #named = new Set<string>();
  /** Reasoning to send in one piece, by choice index. */
  readonly #held = new Map<number, string>();
  /** The calls of custom tools with their arguments so far, by choice and call index. */
  readonly #customCalls = new Map<string, ToolCallEvent>();
  #completionTokens = 0;

  constructor(head: CompletionHead, call: ChatCall, promptTokens: number, style: ChatStyle) {
    this.#head = head;
    this.#call = call;
    this.#style = style;
    this.#promptTokens = promptTokens;
  }

  /** Returns one chunk per choice with the role. The first chunk also holds the requested parts of the prompt. */
  begin(prompt: PromptEcho): string[] {
    const { tools = [], toolChoice, n = 1 } = this.#call.options;
    // From an empty text, clients such as the AI SDK make an empty part before a tool call.
    const content = tools.length > 0 && toolChoice !== 'none' ? null : '';
    const delta = { role: this.#style.role, content };
    return Array.from({ length: n }, (_, index) =>
      this.#chunk(deltaChoice(index, delta), index === 0 ? promptFields(prompt) : {}),
    );
  }

  /** Returns the chunks of one group of events. Their running usage is the count after the group. */
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
    const released = textDelta === '' ? [] : this.#releaseReasoning(index);
    const hasLogprobs = logprobs !== undefined && logprobs.length > 0;
    // Tokens without text get a separate chunk only if they carry log-probabilities or requested token ids.
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
    const { index, callIndex, id, name, argumentsDelta } = event;
    if (this.#call.customNames.includes(name)) {
      const key = `${index} ${callIndex}`;
      const before = this.#customCalls.get(key)?.argumentsDelta ?? '';
      this.#customCalls.set(key, { ...event, argumentsDelta: before + argumentsDelta });
      return this.#releaseReasoning(index);
    }
    const isFirst = !this.#named.has(id);
    this.#named.add(id);
    return [
      ...this.#releaseReasoning(index),
      ...toolCallDeltas(event, isFirst).map((delta) => this.#chunk(deltaChoice(index, delta))),
    ];
  }

  #takeFinish(event: FinishEvent): string[] {
    const { index } = event;
    const calls = [...this.#customCalls.values()].filter((call) => call.index === index);
    return [
      ...this.#releaseReasoning(index),
      ...calls.map((call) => this.#chunk(deltaChoice(index, customCallDelta(call)))),
      this.#chunk(finishChoice(event)),
    ];
  }

  #releaseReasoning(index: number): string[] {
    const reasoning = this.#held.get(index);
    this.#held.delete(index);
    return reasoning === undefined ? [] : [this.#reasoningChunk(index, reasoning)];
  }

  #reasoningChunk(index: number, text: string): string {
    return this.#chunk(deltaChoice(index, { reasoning_content: text, reasoning: text }));
  }

  #chunk(choice: object, extraFields: object = {}): string {
    const usage = this.#call.usage.isContinuous ? runningUsage(this.#promptTokens, this.#completionTokens) : undefined;
    return chatChunk(this.#head, [choice], usage, extraFields);
  }
}
