import { createHash } from 'node:crypto';
import type { ChatEvent, FinishEvent, ToolCallEvent } from '../../../ts';

interface TextBlock {
  type: 'text';
  text: string;
}

interface ThinkingBlock {
  type: 'thinking';
  thinking: string;
  signature: string;
}

interface ToolUseBlock {
  type: 'tool_use';
  id: string;
  name: string;
  input: object;
}

export type Block = TextBlock | ThinkingBlock | ToolUseBlock;
/** Receives each event of the stream. Writes it at once, because the data changes later. */
export type Emit = (type: string, fields: object) => void;

/** Builds the content blocks of a message from the events of its generation, and emits the events of the stream. */
export class Content {
  readonly blocks: Block[] = [];
  readonly #emit: Emit;
  #isOpen = false;
  /** The arguments of the open call, as the model writes them. */
  #json = '';
  finish: FinishEvent | undefined;

  constructor(emit: Emit) {
    this.#emit = emit;
  }

  take(event: ChatEvent): void {
    switch (event.type) {
      case 'delta':
        return this.#addText(event.textDelta);
      case 'reasoning':
        return this.#addThinking(event.textDelta);
      case 'toolCall':
        return this.#addCall(event);
      case 'finish':
        this.finish = event;
        return this.#close();
    }
  }

  #addText(text: string): void {
    if (text === '') return;
    const block = this.#openBlock('text') ?? this.#begin<TextBlock>({ type: 'text', text: '' });
    block.text += text;
    this.#delta({ type: 'text_delta', text });
  }

  #addThinking(thinking: string): void {
    if (thinking === '') return;
    const block =
      this.#openBlock('thinking') ?? this.#begin<ThinkingBlock>({ type: 'thinking', thinking: '', signature: '' });
    block.thinking += thinking;
    this.#delta({ type: 'thinking_delta', thinking });
  }

  #addCall({ id, name, argumentsDelta }: ToolCallEvent): void {
    if (this.#openBlock('tool_use')?.id !== id) {
      this.#begin<ToolUseBlock>({ type: 'tool_use', id, name, input: {} });
      this.#json = '';
    }
    if (argumentsDelta === '') return;
    this.#json += argumentsDelta;
    this.#delta({ type: 'input_json_delta', partial_json: argumentsDelta });
  }

  #openBlock<Type extends Block['type']>(type: Type): Extract<Block, { type: Type }> | undefined {
    const last = this.blocks.at(-1);
    return this.#isOpen && last?.type === type ? (last as Extract<Block, { type: Type }>) : undefined;
  }

  #begin<T extends Block>(block: T): T {
    this.#close();
    this.blocks.push(block);
    this.#isOpen = true;
    this.#emit('content_block_start', { index: this.#index, content_block: block });
    return block;
  }

  #delta(delta: object): void {
    this.#emit('content_block_delta', { index: this.#index, delta });
  }

  #close(): void {
    if (!this.#isOpen) return;
    const block = this.blocks.at(-1)!;
    if (block.type === 'tool_use') block.input = parseInput(this.#json);
    if (block.type === 'thinking') {
      block.signature = sign(block.thinking);
      this.#delta({ type: 'signature_delta', signature: block.signature });
    }
    this.#isOpen = false;
    this.#emit('content_block_stop', { index: this.#index });
  }

  get #index(): number {
    return this.blocks.length - 1;
  }
}

/** Arguments that are not an object, such as truncated ones, become an empty object. */
function parseInput(json: string): object {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : {};
  } catch {
    return {};
  }
}

/** Clients keep a thinking block only with a signature. Nothing checks it. */
function sign(thinking: string): string {
  return createHash('sha256').update(thinking).digest('base64');
}
