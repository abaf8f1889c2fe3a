import type { ChatMessage, TextPart, ToolCallInput } from '../../../ts';
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import type { ContentPart, InputItem } from './schema';
import { modelName } from './tools';

const TYPES = [
  'message',
  'function_call',
  'function_call_output',
  'custom_tool_call',
  'custom_tool_call_output',
  'reasoning',
] as const;
type ItemType = (typeof TYPES)[number];

/** Types of text in messages, of the user and of the model. */
const TEXT_TYPES = ['input_text', 'output_text', 'text', 'summary_text', 'reasoning_text'];

/**
 * Converts items to the messages of a conversation. The reasoning, text and calls of one turn of the model become one
 * message. Throws an ApiError that names the first invalid item.
 * @param at The name of an item in errors.
 */
export function toMessages(
  items: readonly InputItem[],
  at: (index: number) => string = (index) => `input[${index}]`,
): ChatMessage[] {
  const builder = new MessageBuilder();
  items.forEach((item, i) => builder.add(item, at(i)));
  return builder.messages;
}

class MessageBuilder {
  readonly messages: ChatMessage[] = [];

  add(item: InputItem, path: string): void {
    switch (typeOf(item, path)) {
      case 'message':
        return this.#addMessage(item, path);
      case 'reasoning':
        return this.#addReasoning(item, path);
      case 'function_call':
        return this.#addCall(item, path, required(item.arguments, `${path}.arguments`));
      case 'custom_tool_call':
        return this.#addCall(item, path, { input: required(item.input, `${path}.input`) });
      case 'function_call_output':
      case 'custom_tool_call_output':
        this.messages.push({
          role: 'tool',
          content: toContent(required(item.output, `${path}.output`), `${path}.output`),
          toolCallId: required(item.call_id, `${path}.call_id`),
        });
    }
  }

  #addMessage({ role, content }: InputItem, path: string): void {
    const text = toContent(required(content, `${path}.content`), `${path}.content`);
    const known = required(role, `${path}.role`);
    if (known !== 'assistant') {
      this.messages.push({ role: known === 'user' ? 'user' : 'system', content: text });
      return;
    }
    const { content: earlier, toolCalls = [], ...turn } = this.#turn();
    if (earlier === undefined && toolCalls.length === 0) this.#replace({ ...turn, content: text });
    else this.messages.push({ role: 'assistant', content: text });
  }

  #addReasoning({ content, summary = [] }: InputItem, path: string): void {
    if (typeof content === 'string') throw invalid(`${path}.content`, 'an array of text parts', content);
    const parts = content === undefined || content.length === 0 ? summary : content;
    const text = parts.map((part, i) => textOf(part, `${path}.content[${i}]`)).join('\n');
    if (text === '') return;
    const { content: earlier, toolCalls = [], reasoning, ...turn } = this.#turn();
    if (earlier !== undefined || toolCalls.length > 0) this.messages.push({ role: 'assistant', reasoning: text });
    else this.#replace({ ...turn, reasoning: reasoning === undefined ? text : `${reasoning}\n${text}` });
  }

  #addCall({ call_id: id, namespace, name }: InputItem, path: string, args: ToolCallInput['arguments']): void {
    const call = {
      id: required(id, `${path}.call_id`),
      name: modelName({ namespace, name: required(name, `${path}.name`) }),
      arguments: args,
    };
    const turn = this.#turn();
    this.#replace({ ...turn, toolCalls: [...(turn.toolCalls ?? []), call] });
  }

  /** The message of the model's turn in progress. A new one if the last message has another role. */
  #turn(): ChatMessage {
    const last = this.messages.at(-1);
    if (last?.role === 'assistant') return last;
    const turn: ChatMessage = { role: 'assistant' };
    this.messages.push(turn);
    return turn;
  }

  #replace(message: ChatMessage): void {
    this.messages[this.messages.length - 1] = message;
  }
}

function typeOf({ type = 'message' }: InputItem, path: string): ItemType {
  const known = TYPES.find((candidate) => candidate === type);
  if (known !== undefined) return known;
  throw new ApiError('unsupported_value', `${path}.type: expected one of ${TYPES.join(', ')}, got ${show(type)}`, {
    param: `${path}.type`,
  });
}

function toContent(content: string | readonly ContentPart[], path: string): string | TextPart[] {
  if (typeof content === 'string') return content;
  return content.map((part, i) => ({ type: 'text', text: textOf(part, `${path}[${i}]`) }));
}

function textOf({ type, text, refusal }: ContentPart, path: string): string {
  if (type === 'refusal') return required(refusal, `${path}.refusal`);
  if (TEXT_TYPES.includes(type)) return required(text, `${path}.text`);
  throw new ApiError(
    'unsupported_value',
    `${path}.type: expected input_text, the only input of this model, got ${show(type)}`,
    { param: `${path}.type` },
  );
}

function required<T>(value: T | undefined, param: string): T {
  if (value !== undefined) return value;
  throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
}

function invalid(param: string, expected: string, received: unknown): ApiError {
  return new ApiError('invalid_type', `${param}: expected ${expected}, got ${show(received)}`, { param });
}
