import type {
  LanguageModelV4Content,
  LanguageModelV4FinishReason,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
} from '@ai-sdk/provider' with { 'resolution-mode': 'import' };
import type { ChatEvent, Choice, FinishReason, Usage } from '../events';

/** The content of a complete choice, in the order in which models write it. */
export function toContent({ text, reasoning, toolCalls }: Choice): LanguageModelV4Content[] {
  return [
    ...(reasoning === undefined ? [] : [{ type: 'reasoning' as const, text: reasoning }]),
    ...(text === '' ? [] : [{ type: 'text' as const, text }]),
    ...toolCalls.map(({ id, name, arguments: input }) => ({
      type: 'tool-call' as const,
      toolCallId: id,
      toolName: name,
      input,
    })),
  ];
}

/** A choice that was forced to call a function by its name ends with `stop`, which the AI SDK takes for an answer. */
export function toFinishReason(reason: FinishReason, hasCalls: boolean): LanguageModelV4FinishReason {
  return { unified: reason === 'length' || !hasCalls ? plain(reason) : 'tool-calls', raw: reason };
}

function plain(reason: FinishReason): LanguageModelV4FinishReason['unified'] {
  return reason === 'tool_calls' ? 'tool-calls' : reason;
}

export function toUsage({
  promptTokens,
  completionTokens,
  cachedTokens,
  reasoningTokens,
}: Usage): LanguageModelV4Usage {
  return {
    inputTokens: {
      total: promptTokens,
      noCache: promptTokens - cachedTokens,
      cacheRead: cachedTokens,
      cacheWrite: undefined,
    },
    outputTokens: {
      total: completionTokens,
      text: completionTokens - (reasoningTokens ?? 0),
      reasoning: reasoningTokens,
    },
  };
}

/** Converts the events of a call to parts: each text, reasoning and call has a start, deltas and an end. */
export class PartWriter {
  #open: { id: string; kind: 'text' | 'reasoning' } | undefined;
  #call: { id: string; name: string; input: string } | undefined;
  #numBlocks = 0;
  #hasCalls = false;

  *write(event: ChatEvent): Generator<LanguageModelV4StreamPart> {
    switch (event.type) {
      case 'delta':
        if (event.textDelta !== '') yield* this.#writeText('text', event.textDelta);
        return;
      case 'reasoning':
        yield* this.#writeText('reasoning', event.textDelta);
        return;
      case 'toolCall':
        if (this.#call?.id !== event.id) {
          yield* this.#end();
          this.#hasCalls = true;
          this.#call = { id: event.id, name: event.name, input: '' };
          yield { type: 'tool-input-start', id: event.id, toolName: event.name };
        }
        this.#call.input += event.argumentsDelta;
        if (event.argumentsDelta !== '') yield { type: 'tool-input-delta', id: event.id, delta: event.argumentsDelta };
        return;
      case 'finish':
        yield* this.#end();
        yield {
          type: 'finish',
          finishReason: toFinishReason(event.finishReason, this.#hasCalls),
          usage: toUsage(event.usage),
        };
    }
  }

  *#writeText(kind: 'text' | 'reasoning', delta: string): Generator<LanguageModelV4StreamPart> {
    if (this.#open?.kind !== kind) {
      yield* this.#end();
      this.#open = { id: String(this.#numBlocks++), kind };
      yield { type: `${kind}-start`, id: this.#open.id };
    }
    yield { type: `${kind}-delta`, id: this.#open.id, delta };
  }

  /** Ends what is open. */
  *#end(): Generator<LanguageModelV4StreamPart> {
    const [open, call] = [this.#open, this.#call];
    this.#open = undefined;
    this.#call = undefined;
    if (open !== undefined) yield { type: `${open.kind}-end`, id: open.id };
    if (call === undefined) return;
    yield { type: 'tool-input-end', id: call.id };
    yield { type: 'tool-call', toolCallId: call.id, toolName: call.name, input: call.input };
  }
}
