import type { Tool } from '../messages';
import type { CallPlace, CallSink, ToolCallFormat } from './format';
import { CallInput, type CallReading, isBlank } from './input';
import { TextBuffer } from './text-buffer';

/** What a completion's text is made of. Calls come whole, or as a start and the parts of their arguments, which are those of the call started last. */
export type OutputPart =
  | { type: 'text'; text: string }
  | {
      type: 'toolCall';
      name: string;
      /** JSON text of an object; as the model wrote it, where it writes JSON. */ arguments: string;
    }
  | { type: 'toolCallStart'; name: string }
  | { type: 'toolCallArguments'; text: string };

export interface ToolCallOptions {
  /** The functions that may be called; undefined: any. */
  tools?: readonly Tool[];
  /** A grammar holds the text to well-formed calls: they are told while they grow. Default false: whole. */
  isConstrained?: boolean;
}

/**
 * Splits a completion into text and tool calls while it grows, at a cost of O(new characters); how the text is cut into pieces changes
 * nothing but where parts are cut. What turns out to be no call comes back as text, character for character; blanks between calls
 * belong to no text.
 */
export class ToolCallMachine {
  readonly #format: ToolCallFormat;
  readonly #sink: WholeSink | LiveSink;
  #parts: OutputPart[] = [];
  /** Blanks that a call may follow. */
  #blanks = '';
  #reading: CallReading | undefined;
  #input = new CallInput();
  /** Everything since the first character of what is being read. */
  #held = new TextBuffer();
  /** Of what is held, characters that were told as part of a call. */
  #numTold = 0;
  #place: CallPlace = 'start';
  #hasText = false;

  constructor(format: ToolCallFormat, { tools, isConstrained = false }: ToolCallOptions = {}) {
    this.#format = format;
    this.#sink = isConstrained ? new LiveSink(tools, (part) => this.#tell(part)) : new WholeSink(tools);
  }

  push(text: string): OutputPart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  /** The completion is over: a call that lacks only its closing marker counts, anything else held back is text. */
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

  /** Gives the reader one more character, and looks anew at the one that it leaves. */
  #read(char: string | undefined): void {
    if (char !== undefined) this.#held.add(char);
    const step = this.#reading!.next(char);
    if (step.done !== true) return;
    const rest = this.#input.ahead ?? '';
    const hasMoved = this.#held.length > rest.length;
    if (step.value) this.#endCalls();
    else this.#giveUp(rest);
    if (rest === '') return;
    if (hasMoved) this.#take(rest);
    else this.#takeText(rest);
  }

  #takeText(char: string): void {
    if (isBlank(char)) this.#blanks += char;
    else this.#emitText(char);
  }

  #endCalls(): void {
    for (const call of this.#sink.takeCalls()) this.#tell({ type: 'toolCall', ...call });
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#reset();
  }

  /** What is held back is no call. What was told of one stands; `rest` is still to be looked at. */
  #giveUp(rest: string): void {
    const text = this.#held.toString().slice(this.#numTold, this.#held.length - rest.length);
    this.#sink.takeCalls();
    this.#reset();
    if (text !== '') this.#emitText(text);
  }

  #reset(): void {
    this.#reading = undefined;
    this.#held = new TextBuffer();
    this.#numTold = 0;
  }

  #tell(part: OutputPart): void {
    const last = this.#parts.at(-1);
    if (part.type === 'toolCallArguments' && last?.type === part.type) last.text += part.text;
    else this.#parts.push(part);
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#numTold = this.#held.length;
  }

  #emitText(text: string): void {
    // Blanks between a leading call and the first text would only begin that text.
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

/** Keeps calls until all that was read turns out to be calls. */
class WholeSink implements CallSink {
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

/** Tells of calls at once. */
class LiveSink implements CallSink {
  readonly isConstrained = true;
  readonly #tell: (part: OutputPart) => void;
  #hasArguments = false;

  constructor(
    readonly tools: readonly Tool[] | undefined,
    tell: (part: OutputPart) => void,
  ) {
    this.#tell = tell;
  }

  begin(name: string): void {
    this.#hasArguments = false;
    this.#tell({ type: 'toolCallStart', name });
  }

  add(text: string): void {
    this.#hasArguments = true;
    this.#tell({ type: 'toolCallArguments', text });
  }

  finish(): void {
    if (!this.#hasArguments) this.add('{}');
  }

  takeCalls(): Call[] {
    return [];
  }
}
