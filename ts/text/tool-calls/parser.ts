import type { Tool } from '../messages';
import type { CallPlace, CallSink, ToolCallFormat } from './format';
import { CallInput, type CallReading, isBlank } from './input';
import { TextBuffer } from './text-buffer';

/**
 * Part of a completion. A call is one complete part, or a start followed by parts of its arguments. `arguments` is the
 * JSON text of an object, unchanged if the model writes JSON.
 */
export type OutputPart =
  | { type: 'text'; text: string }
  | { type: 'toolCall'; name: string; arguments: string }
  | { type: 'toolCallStart'; name: string }
  | { type: 'toolCallArguments'; text: string };

/** Options of {@link ToolCallParser}. */
export interface ToolCallOptions {
  /** Functions that may be called; undefined: any. */
  tools?: readonly Tool[];
  /** A grammar guarantees well-formed calls, so they are emitted while they are incomplete. Default: false. */
  isConstrained?: boolean;
}

/**
 * Splits a streamed completion into text and tool calls, in time linear in the new characters. The result does not
 * depend on how the stream is cut. Text that is not a valid call stays text, character for character. Blanks between
 * calls are dropped.
 */
export class ToolCallParser {
  readonly #format: ToolCallFormat;
  readonly #sink: BufferedSink | StreamingSink;
  #parts: OutputPart[] = [];
  /** Held-back blanks, which are dropped if a call follows. */
  #blanks = '';
  /** The reader of a possible call. */
  #reading: CallReading | undefined;
  #input = new CallInput();
  /** Text of the possible call. */
  #held = new TextBuffer();
  /** Number of held characters that were emitted as part of a call. */
  #numEmitted = 0;
  #place: CallPlace = 'start';
  #hasText = false;

  constructor(format: ToolCallFormat, { tools, isConstrained = false }: ToolCallOptions = {}) {
    this.#format = format;
    this.#sink = isConstrained ? new StreamingSink(tools, (part) => this.#emit(part)) : new BufferedSink(tools);
  }

  push(text: string): OutputPart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  /** Ends the completion. A call that lacks only its closing marker is complete; other held text is emitted as text. */
  end(): OutputPart[] {
    if (this.#reading !== undefined) this.#read(undefined);
    if (this.#place !== 'afterCall') this.#flushBlanks();
    return this.#drain();
  }

  #take(char: string): void {
    if (this.#reading !== undefined) return this.#read(char);
    if (!this.#format.begins(char, this.#place)) return this.#takeText(char);
    this.#input = new CallInput();
    this.#reading = this.#format.read(this.#input, this.#sink, this.#place);
    this.#reading.next();
    this.#read(char);
  }

  /** Passes a character to the reader, and processes the character that the reader does not consume. */
  #read(char: string | undefined): void {
    if (char !== undefined) this.#held.add(char);
    const step = this.#reading!.next(char);
    if (step.done !== true) return;
    const rest = this.#input.ahead ?? '';
    const hasConsumed = this.#held.length > rest.length;
    if (step.value) this.#endCalls();
    else this.#reject(rest);
    if (rest === '') return;
    if (hasConsumed) this.#take(rest);
    else this.#takeText(rest);
  }

  #takeText(char: string): void {
    if (isBlank(char)) this.#blanks += char;
    else this.#emitText(char);
  }

  #endCalls(): void {
    for (const call of this.#sink.takeCalls()) this.#emit({ type: 'toolCall', ...call });
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#reset();
  }

  /** The held text is not a call: emits it as text, except what was emitted already and `rest`. */
  #reject(rest: string): void {
    const text = this.#held.toString().slice(this.#numEmitted, this.#held.length - rest.length);
    this.#sink.takeCalls();
    this.#reset();
    if (text !== '') this.#emitText(text);
  }

  #reset(): void {
    this.#reading = undefined;
    this.#held = new TextBuffer();
    this.#numEmitted = 0;
  }

  #emit(part: OutputPart): void {
    const last = this.#parts.at(-1);
    if (part.type === 'toolCallArguments' && last?.type === part.type) last.text += part.text;
    else this.#parts.push(part);
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#numEmitted = this.#held.length;
  }

  #emitText(text: string): void {
    // Drops the blanks between leading calls and the first text.
    if (this.#place !== 'afterCall' || this.#hasText) this.#flushBlanks();
    this.#blanks = '';
    this.#append(text);
    this.#hasText = true;
    this.#place = 'text';
  }

  #flushBlanks(): void {
    this.#append(this.#blanks);
    this.#blanks = '';
  }

  #append(text: string): void {
    const last = this.#parts.at(-1);
    if (text === '') return;
    if (last?.type === 'text') last.text += text;
    else this.#parts.push({ type: 'text', text });
  }

  #drain(): OutputPart[] {
    const parts = this.#parts;
    this.#parts = [];
    return parts;
  }
}

interface Call {
  name: string;
  arguments: string;
}

/** Keeps calls until the reader has accepted the text. */
class BufferedSink implements CallSink {
  readonly isConstrained = false;
  #calls: { name: string; arguments: TextBuffer }[] = [];

  constructor(readonly tools: readonly Tool[] | undefined) {}

  begin(name: string): void {
    this.#calls.push({ name, arguments: new TextBuffer() });
  }

  add(text: string): void {
    this.#calls[this.#calls.length - 1].arguments.add(text);
  }

  finish(): void {
    if (this.#calls[this.#calls.length - 1].arguments.length === 0) this.add('{}');
  }

  takeCalls(): Call[] {
    const calls = this.#calls;
    this.#calls = [];
    return calls.map((call) => ({ name: call.name, arguments: call.arguments.toString() }));
  }
}

/** Emits calls at once. */
class StreamingSink implements CallSink {
  readonly isConstrained = true;
  readonly #emit: (part: OutputPart) => void;
  #hasArguments = false;

  constructor(
    readonly tools: readonly Tool[] | undefined,
    emit: (part: OutputPart) => void,
  ) {
    this.#emit = emit;
  }

  begin(name: string): void {
    this.#hasArguments = false;
    this.#emit({ type: 'toolCallStart', name });
  }

  add(text: string): void {
    this.#hasArguments = true;
    this.#emit({ type: 'toolCallArguments', text });
  }

  finish(): void {
    if (!this.#hasArguments) this.add('{}');
  }

  takeCalls(): Call[] {
    return [];
  }
}
