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

interface OpenBlock {
  callIndex: number;
  id: string;
  name: string;
}

/** The arguments of a call without any. Clients parse them. */
const NO_ARGUMENTS = '{}';

/** Reads messages of Anthropic's interface. */
export class MessagesReader implements UpstreamReader {
  /** Tool calls by the index of their block. */
  readonly #calls = new Map<number, OpenBlock>();
  /** Indices of the blocks of tool calls whose arguments have not begun. */
  readonly #withoutArguments = new Set<number>();
  #stopReason: string | undefined;
  #stopSequence: string | null = null;
  #isOver = false;
  #counts: Json | undefined;

  get usage(): UpstreamUsage | undefined {
    const counts = this.#counts;
    // Without both counts the usage is unknown, not 0.
    const isKnown = isCount(counts?.input_tokens) && isCount(counts.output_tokens);
    return counts !== undefined && isKnown ? toUsage(counts) : undefined;
  }

  get outcome(): Outcome | undefined {
    const reason = this.#stopReason;
    if (reason === undefined || !this.#isOver) return undefined;
    return {
      finishReason: toFinishReason(reason),
      isFiltered: reason === 'refusal',
      stopSequence: this.#stopSequence,
      usage: this.usage,
    };
  }

  takeEvent(data: string): ChatEvent[] {
    const event = parseEvent(data);
    switch (event.type) {
      case 'message_start':
        this.#takeUsage(isObject(event.message) ? event.message : {});
        return [];
      case 'content_block_start':
        return this.#takeBlock(objectIn(event.content_block, 'a block'), countIn(event.index));
      case 'content_block_delta':
        return this.#takeDelta(objectIn(event.delta, 'a delta'), countIn(event.index));
      case 'content_block_stop':
        return this.#endArguments(countIn(event.index));
      case 'message_delta':
        this.#takeStop(isObject(event.delta) ? event.delta : {});
        this.#takeUsage(event);
        return [];
      case 'message_stop':
        this.#isOver = true;
        return [];
      case 'error':
        throw new UpstreamFormatError(errorMessageIn(event) ?? 'the stream reported an error');
      default:
        return [];
    }
  }

  takeWhole(body: unknown): ChatEvent[] {
    const message = objectIn(body, 'the response');
    if (!Array.isArray(message.content))
      throw new UpstreamFormatError('expected the response to have a list of blocks');
    this.#takeStop(message);
    this.#takeUsage(message);
    this.#isOver = true;
    return listIn(message.content).flatMap((block, i) =>
      isObject(block) ? [...this.#takeBlock(block, i), ...this.#endArguments(i)] : [],
    );
  }

  #takeBlock({ type, text, thinking, id, name, input }: Json, index: number): ChatEvent[] {
    if (type === 'text') return textIn(text) === '' ? [] : [delta(textIn(text))];
    if (type === 'thinking') return textIn(thinking) === '' ? [] : [reasoning(textIn(thinking))];
    if (type !== 'tool_use') return [];
    if (textIn(name) === '') throw new UpstreamFormatError('a tool call has no name');
    const callIndex = this.#calls.size;
    const open = { callIndex, id: textIn(id) || `call_${callIndex}`, name: textIn(name) };
    this.#calls.set(index, open);
    // A stream begins with an empty object, and sends the text afterwards.
    const argumentsDelta = isObject(input) && Object.keys(input).length > 0 ? JSON.stringify(input) : '';
    if (argumentsDelta === '') this.#withoutArguments.add(index);
    return [{ type: 'toolCall', index: 0, ...open, argumentsDelta }];
  }

  #takeDelta({ type, text, thinking, partial_json: json }: Json, index: number): ChatEvent[] {
    if (type === 'text_delta' && textIn(text) !== '') return [delta(textIn(text))];
    if (type === 'thinking_delta' && textIn(thinking) !== '') return [reasoning(textIn(thinking))];
    if (type !== 'input_json_delta' || textIn(json) === '') return [];
    const open = this.#calls.get(index);
    if (open === undefined) throw new UpstreamFormatError('arguments belong to no tool call');
    this.#withoutArguments.delete(index);
    return [{ type: 'toolCall', index: 0, ...open, argumentsDelta: textIn(json) }];
  }

  /** Completes the tool call of a block that ends without arguments. */
  #endArguments(index: number): ChatEvent[] {
    const open = this.#calls.get(index);
    if (open === undefined || !this.#withoutArguments.delete(index)) return [];
    return [{ type: 'toolCall', index: 0, ...open, argumentsDelta: NO_ARGUMENTS }];
  }

  #takeStop({ stop_reason: reason, stop_sequence: sequence }: Json): void {
    if (typeof reason === 'string') this.#stopReason = reason;
    if (typeof sequence === 'string') this.#stopSequence = sequence;
  }

  /** The last event may count the output alone. */
  #takeUsage({ usage }: Json): void {
    if (isObject(usage))
      this.#counts = {
        ...this.#counts,
        ...Object.fromEntries(Object.entries(usage).filter(([, count]) => count !== null)),
      };
  }
}

/** Input tokens leave out those of the cache. */
function toUsage(counts: Json): UpstreamUsage {
  const cachedTokens = countIn(counts.cache_read_input_tokens);
  const promptTokens = countIn(counts.input_tokens) + countIn(counts.cache_creation_input_tokens) + cachedTokens;
  const completionTokens = countIn(counts.output_tokens);
  return { promptTokens, completionTokens, totalTokens: promptTokens + completionTokens, cachedTokens };
}

function toFinishReason(reason: string): FinishReason {
  if (reason === 'tool_use') return 'tool_calls';
  return reason === 'max_tokens' || reason === 'model_context_window_exceeded' ? 'length' : 'stop';
}

function delta(textDelta: string): ChatEvent {
  return { type: 'delta', index: 0, textDelta, tokenIds: [] };
}

function reasoning(textDelta: string): ChatEvent {
  return { type: 'reasoning', index: 0, textDelta };
}
