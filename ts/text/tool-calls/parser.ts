import type { Tool } from '../messages';
import type { CallPlace, CallSink, ToolCallFormat } from './format';
import { CallInput, type CallReading, isBlank } from './input';
import { TextBuffer } from './text-buffer';

/**
 * Part of a completion. A call is a start, parts of its arguments, and an end, which is missing if the call is cut. The
 * arguments are the JSON text of an object, unchanged if the model writes JSON.
 */
export type OutputPart =
  | { type: 'text'; text: string }
  | { type: 'toolCallStart'; name: string }
  | { type: 'toolCallArguments'; text: string }
  | { type: 'toolCallEnd' };

/** Options of {@link ToolCallParser}. */
export interface ToolCallOptions {
  /** Functions that may be called; undefined: any. */
  tools?: readonly Tool[];
  /** A grammar guarantees that text which starts like a call is one. Default: false. */
  isConstrained?: boolean;
  /** The completion consists of calls, or it is text without calls. Default: false. */
  isCallsOrText?: boolean;
}

/**
 * Splits a streamed completion into text and tool calls, in time linear in the new characters. The result does not
 * depend on how the stream is cut. A call begins when the name of a known tool was read. From then on the text belongs
 * to its arguments, even if it is malformed. What follows complete arguments is dropped up to the marker that ends the
 * call. All other text stays text, character for character, except blanks between calls.
 */
export class ToolCallParser {
  readonly #format: ToolCallFormat;
  readonly #isCallsOrText: boolean;
  readonly #sink: CallParts;
  #parts: OutputPart[] = [];
  /** Held-back blanks, which are dropped if a call follows. */
  #blanks = '';
  /** The reader of a possible call. */
  #reading: CallReading | undefined;
  #input = new CallInput();
  /** Text of the reader that was not emitted as part of a call. */
  #held = new TextBuffer();
  /** Whether the reader has emitted a part of a call. */
  #hasEmitted = false;
  /** Whether the call that the reader has emitted began with a marker. */
  #isMarked = false;
  /** Whether the reader skips the rest of a call. */
  #isSkipping = false;
  #place: CallPlace = 'start';
  #hasText = false;

  constructor(format: ToolCallFormat, { tools, isConstrained = false, isCallsOrText = false }: ToolCallOptions = {}) {
    this.#format = format;
    this.#isCallsOrText = isCallsOrText;
    this.#sink = new CallParts(tools, isConstrained, (part) => this.#emit(part));
  }

  push(text: string): OutputPart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  /**
   * Ends the completion. A call that lacks only its closing marker is complete.
   * @param isCut The completion is incomplete. A call is dropped if it was recognised, but has not begun. So is a part
   *   of a marker with two or more characters, and any part of a marker after a call.
   */
  end(isCut = false): OutputPart[] {
    this.#input.isCut = isCut;
    if (isCut && this.#isInCall()) this.#held = new TextBuffer();
    while (this.#reading !== undefined) this.#read(undefined);
    if (this.#place !== 'afterCall') this.#flushBlanks();
    return this.#drain();
  }

  #isInCall(): boolean {
    const text = this.#held.toString();
    const isAfterCall = this.#place === 'afterCall';
    // Calls may have a separator between them.
    const held = isAfterCall ? text.replace(/^[;,\s]+/, '') : text;
    const isLong = held.length > 1 || isAfterCall;
    const isMarker = (marker: string) => held.includes(marker) || (isLong && marker.startsWith(held));
    return this.#hasEmitted || this.#sink.isExpected || this.#format.markers.some(isMarker);
  }

  #take(char: string): void {
    if (this.#reading !== undefined) return this.#read(char);
    if ((this.#isCallsOrText && this.#hasText) || !this.#format.begins(char, this.#place)) return this.#takeText(char);
    this.#input = new CallInput();
    this.#reading = this.#format.read(this.#input, this.#sink, this.#place);
    this.#reading.next();
    this.#read(char);
  }

  /** Passes a character to the reader, and processes what the reader does not consume. */
  #read(char: string | undefined): void {
    if (char !== undefined) this.#held.add(char);
    const step = this.#reading!.next(char);
    if (step.done !== true) return;
    if (!step.value && char !== undefined) {
      if (this.#isSkipping) return this.#retakeMarker();
      if (this.#isMarked && !this.#sink.isOpen) return this.#skipRest();
    }
    if (!step.value && this.#sink.isOpen) return this.#readMalformed(char === undefined);
    const rest = this.#input.ahead ?? '';
    const hasConsumed = this.#hasEmitted || this.#held.length > rest.length;
    if (step.value) this.#endCalls();
    else this.#reject(rest);
    if (rest === '') return;
    if (!hasConsumed) return this.#takeText(rest);
    for (const next of rest) this.#take(next);
  }

  /** Reads on in a call that is malformed, from the last part that was emitted. */
  #readMalformed(isEnd: boolean): void {
    const text = this.#held.toString();
    this.#held = new TextBuffer();
    this.#input = new CallInput();
    this.#reading = readMalformed(this.#input, this.#sink, this.#format.callEnd);
    this.#reading.next();
    if (isEnd) this.#read(undefined);
    else for (const char of text) this.#take(char);
  }

  /** Skips what follows a complete call, up to the end of the call or to the next marker. */
  #skipRest(): void {
    const text = this.#held.toString();
    this.#held = new TextBuffer();
    this.#input = new CallInput();
    this.#isSkipping = true;
    this.#reading = skipUntil(this.#input, this.#format);
    this.#reading.next();
    for (const char of text) this.#take(char);
  }

  /** Drops the rest of a call before a marker that does not end the call. */
  #retakeMarker(): void {
    const text = this.#held.toString();
    this.#endCalls();
    for (const char of this.#format.markers.find((marker) => text.endsWith(marker)) ?? '') this.#take(char);
  }

  #takeText(char: string): void {
    if (isBlank(char)) this.#blanks += char;
    else this.#emitText(char);
  }

  #endCalls(): void {
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#reset();
  }

  /** The held text is not a call: emits it as text, except `rest`. */
  #reject(rest: string): void {
    const text = this.#held.toString();
    this.#reset();
    if (text.length > rest.length) this.#emitText(text.slice(0, text.length - rest.length));
  }

  #reset(): void {
    this.#reading = undefined;
    this.#held = new TextBuffer();
    this.#hasEmitted = false;
    this.#isMarked = false;
    this.#isSkipping = false;
    this.#sink.isExpected = false;
  }

  #emit(part: OutputPart): void {
    if (part.type === 'toolCallStart' && this.#format.callEnd !== undefined) {
      const text = this.#held.toString();
      this.#isMarked ||= this.#format.markers.some((marker) => text.startsWith(marker));
    }
    const last = this.#parts.at(-1);
    if (part.type === 'toolCallArguments' && last?.type === part.type) last.text += part.text;
    else this.#parts.push(part);
    this.#blanks = '';
    this.#place = 'afterCall';
    this.#held = new TextBuffer();
    // The reader has seen this character, but not consumed it.
    this.#held.add(this.#input.ahead ?? '');
    this.#hasEmitted = true;
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

/** Reads the rest of a malformed call as arguments. NOTE: `end` must not repeat its first character. */
function* readMalformed(input: CallInput, sink: CallSink, end = ''): CallReading {
  for (let numMatched = 0; ;) {
    const char = yield* input.next();
    if (numMatched > 0 && char !== end[numMatched]) {
      // A call that is cut in its marker holds no part of the marker.
      if (char === undefined) return true;
      sink.add(end.slice(0, numMatched));
      numMatched = 0;
    }
    if (char === undefined) return true;
    if (char !== end[numMatched]) sink.add(char);
    else if (++numMatched === end.length) break;
  }
  sink.finish();
  return true;
}

/** Skips the rest of a call. Returns false after a marker that does not end the call, and at the end of the text. */
function* skipUntil(input: CallInput, { markers, callEnd = '' }: ToolCallFormat): CallReading {
  const longest = Math.max(...[callEnd, ...markers].map((marker) => marker.length));
  for (let last = ''; ;) {
    const char = yield* input.next();
    if (char === undefined) return false;
    last = (last + char).slice(-longest);
    if (last.endsWith(callEnd)) return true;
    if (markers.some((marker) => last.endsWith(marker))) return false;
  }
}

/** Converts what a reader reports to parts. */
class CallParts implements CallSink {
  readonly #emit: (part: OutputPart) => void;
  #hasArguments = false;
  /** A call has begun and not ended. */
  isOpen = false;
  /** The name of a call is known. */
  isExpected = false;

  constructor(
    readonly tools: readonly Tool[] | undefined,
    readonly isConstrained: boolean,
    emit: (part: OutputPart) => void,
  ) {
    this.#emit = emit;
  }

  knows(name: string): boolean {
    return name !== '' && (this.tools === undefined || this.tools.some((tool) => tool.function.name === name));
  }

  expect(): void {
    this.isExpected = true;
  }

  begin(name: string): void {
    this.#hasArguments = false;
    this.isOpen = true;
    this.#emit({ type: 'toolCallStart', name });
  }

  add(text: string): void {
    if (text === '') return;
    this.#hasArguments = true;
    this.#emit({ type: 'toolCallArguments', text });
  }

  finish(): void {
    if (!this.#hasArguments) this.add('{}');
    this.isOpen = false;
    this.#emit({ type: 'toolCallEnd' });
  }
}
