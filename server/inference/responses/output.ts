import type { ChatEvent, ChatMessage, TokenLogprob, ToolCallEvent } from '../../../ts';
import { customInput } from '../conversation/custom-tools';
import { tokenLogprobs, type TokenWords } from '../openai/logprobs';
import { outputItemId } from '../../storage/responses/ids';
import { type CallForm, type CallForms, modelName } from './tools';

type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

interface OutputPart {
  type: 'output_text' | 'reasoning_text';
  text: string;
  annotations?: [];
  logprobs?: object[];
}

interface ContentItem {
  type: 'message' | 'reasoning';
  id: string;
  status: ItemStatus;
  role?: 'assistant';
  summary?: [];
  content: OutputPart[];
  encrypted_content?: null;
}

interface CallItem extends CallForm {
  id: string;
  status: ItemStatus;
  call_id: string;
  arguments?: string;
  input?: string;
}

export type OutputItem = ContentItem | CallItem;
/** Receives each event of the stream: its type and its fields. Writes it at once, because the fields change later. */
export type Emit = (type: string, fields: object) => void;

export interface OutputOptions {
  responseId: string;
  callForms: CallForms;
  /** Spells the tokens of log-probabilities. */
  words: TokenWords;
  emit: Emit;
}

/** Builds the output items of one response from the events of its generation, and emits the events of the stream. */
export class Output {
  readonly items: OutputItem[] = [];
  readonly #responseId: string;
  readonly #callForms: CallForms;
  readonly #emit: Emit;
  /** The arguments of the open call, as the model writes them. */
  #arguments = '';
  #openCallId: string | undefined;
  readonly #words: TokenWords;
  /** Log-probabilities of tokens whose text has not arrived. */
  #logprobs: TokenLogprob[] = [];

  constructor({ responseId, callForms, words, emit }: OutputOptions) {
    this.#responseId = responseId;
    this.#callForms = callForms;
    this.#words = words;
    this.#emit = emit;
  }

  take(event: ChatEvent): void {
    switch (event.type) {
      case 'delta':
        this.#logprobs.push(...(event.logprobs ?? []));
        return this.#addText('message', event.textDelta);
      case 'reasoning':
        return this.#addText('reasoning', event.textDelta);
      case 'toolCall':
        return this.#addCall(event);
      case 'finish':
        return this.#closeLast(event.finishReason === 'length' ? 'incomplete' : 'completed');
    }
  }

  /** The model's turn, for the next request of the conversation. */
  get message(): ChatMessage {
    const textOf = (type: string) =>
      this.items.flatMap((item) => (item.type === type ? (item as ContentItem).content : [])).map(({ text }) => text);
    const reasoning = textOf('reasoning').join('\n');
    const toolCalls = this.items.flatMap((item) => ('call_id' in item ? [toToolCall(item)] : []));
    return {
      role: 'assistant',
      content: textOf('message').join('\n'),
      ...(reasoning === '' ? {} : { reasoning }),
      ...(toolCalls.length === 0 ? {} : { toolCalls }),
    };
  }

  get #last(): OutputItem | undefined {
    const item = this.items.at(-1);
    return item?.status === 'in_progress' ? item : undefined;
  }

  #addText(type: 'message' | 'reasoning', delta: string): void {
    if (delta === '') return;
    const last = this.#last;
    const item = last?.type === type ? last : this.#openContent(type);
    item.content[0].text += delta;
    const [{ type: partType, logprobs }] = item.content;
    const added = logprobs === undefined ? undefined : this.#takeLogprobs(delta);
    if (added !== undefined) logprobs?.push(...added);
    this.#emit(`response.${partType}.delta`, {
      ...this.#place(item),
      content_index: 0,
      delta,
      ...(added === undefined ? {} : { logprobs: added }),
    });
  }

  /** Returns the log-probabilities of the tokens of a text, without those of reasoning and of markers before it. */
  #takeLogprobs(text: string): object[] {
    const tokens = this.#logprobs;
    this.#logprobs = [];
    let first = tokens.length;
    for (let numBytes = Buffer.byteLength(text); first > 0 && numBytes > 0; first--)
      numBytes -= this.#words.bytes(tokens[first - 1].tokenId).length;
    return tokenLogprobs(tokens.slice(first), this.#words);
  }

  #openContent(type: 'message' | 'reasoning'): ContentItem {
    const isMessage = type === 'message';
    const item = this.#open<ContentItem>({
      type,
      id: this.#newId(type),
      status: 'in_progress',
      ...(isMessage ? { role: 'assistant' } : { summary: [] }),
      content: [],
      ...(isMessage ? {} : { encrypted_content: null }),
    });
    const part: OutputPart = isMessage
      ? { type: 'output_text', text: '', annotations: [], logprobs: [] }
      : { type: 'reasoning_text', text: '' };
    this.#emit('response.content_part.added', { ...this.#place(item), content_index: 0, part });
    item.content.push(part);
    return item;
  }

  #addCall({ id, name, argumentsDelta }: ToolCallEvent): void {
    const last = this.#last;
    const item = id === this.#openCallId && last !== undefined ? (last as CallItem) : this.#openCall(id, name);
    this.#arguments += argumentsDelta;
    if (item.type === 'custom_tool_call' || argumentsDelta === '') return;
    item.arguments = this.#arguments;
    this.#emit('response.function_call_arguments.delta', { ...this.#place(item), delta: argumentsDelta });
  }

  #openCall(callId: string, name: string): CallItem {
    const form = this.#callForms.get(name) ?? { type: 'function_call', name };
    const item = this.#open<CallItem>({
      ...form,
      id: this.#newId(form.type),
      status: 'in_progress',
      call_id: callId,
      ...(form.type === 'custom_tool_call' ? { input: '' } : { arguments: '' }),
    });
    this.#openCallId = callId;
    this.#arguments = '';
    return item;
  }

  #open<Item extends OutputItem>(item: Item): Item {
    this.#closeLast('completed');
    this.items.push(item);
    this.#emit('response.output_item.added', { output_index: this.items.length - 1, item });
    return item;
  }

  #closeLast(status: ItemStatus): void {
    const item = this.#last;
    if (item === undefined) return;
    if ('content' in item) this.#closeContent(item);
    else this.#closeCall(item);
    item.status = status;
    this.#emit('response.output_item.done', { output_index: this.items.length - 1, item });
  }

  #closeContent(item: ContentItem): void {
    const [part] = item.content;
    const place = { ...this.#place(item), content_index: 0 };
    const isMessage = item.type === 'message';
    this.#emit(`response.${part.type}.done`, {
      ...place,
      text: part.text,
      ...(isMessage ? { logprobs: part.logprobs } : {}),
    });
    this.#emit('response.content_part.done', { ...place, part });
  }

  #closeCall(item: CallItem): void {
    const place = this.#place(item);
    if (item.type === 'function_call') {
      const { name, arguments: args } = item;
      return this.#emit('response.function_call_arguments.done', { ...place, name, arguments: args });
    }
    const input = customInput(this.#arguments);
    item.input = input;
    if (input !== '') this.#emit('response.custom_tool_call_input.delta', { ...place, delta: input });
    this.#emit('response.custom_tool_call_input.done', { ...place, input });
  }

  #place({ id }: OutputItem): { item_id: string; output_index: number } {
    return { item_id: id, output_index: this.items.length - 1 };
  }

  #newId(type: OutputItem['type']): string {
    return outputItemId(type, this.#responseId, this.items.length);
  }
}

function toToolCall({ call_id: id, arguments: args, input, ...form }: CallItem) {
  return { id, name: modelName(form), arguments: args ?? { input: input ?? '' } };
}
