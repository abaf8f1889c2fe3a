import type { ChatEvent, FinishReason } from '../../../ts';
import {
  countIn,
  errorMessageIn,
  isCount,
  isObject,
  type Json,
  listIn,
  objectIn,
  type Outcome,
  parseEvent,
  textIn,
  UpstreamFormatError,
  type UpstreamReader,
  type UpstreamUsage,
} from './upstream-reader';

const DONE = '[DONE]';

interface OpenCall {
  id: string;
  name: string;
}

/** Reads chat completions with one choice. */
export class ChatReader implements UpstreamReader {
  readonly #calls: (OpenCall | undefined)[] = [];
  #finishReason: string | undefined;
  usage: UpstreamUsage | undefined;

  get outcome(): Outcome | undefined {
    const reason = this.#finishReason;
    if (reason === undefined) return undefined;
    return {
      finishReason: toFinishReason(reason, this.#calls.length > 0),
      isFiltered: reason === 'content_filter',
      stopSequence: null,
      usage: this.usage,
    };
  }

  takeEvent(data: string): ChatEvent[] {
    if (data === DONE) return [];
    const chunk = parseEvent(data);
    if (chunk.error !== undefined && chunk.error !== null) throw failed(chunk);
    this.#takeUsage(chunk);
    const choice = listIn(chunk.choices)[0];
    return isObject(choice) ? this.#takeChoice(choice, choice.delta) : [];
  }

  takeWhole(body: unknown): ChatEvent[] {
    const response = objectIn(body, 'the response');
    const choice = objectIn(listIn(response.choices)[0], 'the first choice');
    this.#takeUsage(response);
    return this.#takeChoice(choice, choice.message);
  }

  #takeChoice(choice: Json, content: unknown): ChatEvent[] {
    const events = isObject(content) ? this.#takeContent(content) : [];
    if (typeof choice.finish_reason === 'string') this.#finishReason = choice.finish_reason;
    return events;
  }

  #takeContent({ reasoning_content: own, reasoning, content, refusal, tool_calls: calls }: Json): ChatEvent[] {
    const events: ChatEvent[] = [];
    const thought = textIn(own) || textIn(reasoning);
    if (thought !== '') events.push({ type: 'reasoning', index: 0, textDelta: thought });
    const text = textOf(content) + textIn(refusal);
    if (text !== '') events.push({ type: 'delta', index: 0, textDelta: text, tokenIds: [] });
    for (const [place, call] of listIn(calls).entries()) if (isObject(call)) events.push(this.#takeCall(call, place));
    return events;
  }

  #takeCall({ index, id, function: called }: Json, place: number): ChatEvent {
    const callIndex = typeof index === 'number' ? index : place;
    if (!Number.isInteger(callIndex) || callIndex < 0 || callIndex > this.#calls.length)
      throw new UpstreamFormatError('the tool calls are not in order');
    const { name, arguments: args } = isObject(called) ? called : {};
    const known = this.#calls[callIndex];
    if (known === undefined && textIn(name) === '') throw new UpstreamFormatError('a tool call has no name');
    const open = known ?? { id: textIn(id) || `call_${callIndex}`, name: textIn(name) };
    this.#calls[callIndex] = open;
    const argumentsDelta = isObject(args) ? JSON.stringify(args) : textIn(args);
    return { type: 'toolCall', index: 0, callIndex, ...open, argumentsDelta };
  }

  #takeUsage({ usage }: Json): void {
    if (!isObject(usage)) return;
    const { prompt_tokens_details: prompt, completion_tokens_details: completion } = usage;
    const { prompt_tokens: promptTokens, completion_tokens: completionTokens } = usage;
    // Without both counts the usage is unknown, not 0.
    if (!isCount(promptTokens) || !isCount(completionTokens)) return;
    const reasoning = isObject(completion) ? completion.reasoning_tokens : undefined;
    this.usage = {
      promptTokens,
      completionTokens,
      totalTokens: promptTokens + completionTokens,
      cachedTokens: isObject(prompt) ? countIn(prompt.cached_tokens) : 0,
      ...(reasoning === undefined || reasoning === null ? {} : { reasoningTokens: countIn(reasoning) }),
    };
  }
}

function toFinishReason(reason: string, hasCalls: boolean): FinishReason {
  if (reason === 'length') return 'length';
  return reason === 'tool_calls' || reason === 'function_call' || hasCalls ? 'tool_calls' : 'stop';
}

/** Some servers send a list of parts. */
function textOf(content: unknown): string {
  if (!Array.isArray(content)) return textIn(content);
  return content.map((part) => (isObject(part) ? textIn(part.text) : '')).join('');
}

function failed(chunk: Json): UpstreamFormatError {
  return new UpstreamFormatError(errorMessageIn(chunk) ?? 'the stream reported an error');
}
