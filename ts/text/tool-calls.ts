import { JsonScanner } from './json-scanner';

/** What a completion's text is made of. */
export type OutputPart =
  | { type: 'text'; text: string }
  | { type: 'toolCall'; name: string; /** JSON text of an object, as the model wrote it. */ arguments: string };

/** How a family writes tool calls. Adding a format is adding a row. */
export interface ToolCallFormat {
  name: string;
  open: string;
  close: string;
  newBody: () => ToolCallBody;
}

/** What stands between the markers, read character by character. */
export interface ToolCallBody {
  /** False if no call goes on like this. */
  push(char: string): boolean;
  readonly isComplete: boolean;
  /** The call, once complete; undefined if the text is well-formed and yet no call. */
  call(text: string): { name: string; arguments: string } | undefined;
}

/** Hermes, Qwen 2.5 and Qwen 3: a JSON object `{"name": …, "arguments": {…}}`. */
class HermesBody implements ToolCallBody {
  readonly #scanner = new JsonScanner();

  get isComplete(): boolean {
    return this.#scanner.isComplete;
  }

  push(char: string): boolean {
    return this.#scanner.push(char);
  }

  call(text: string): { name: string; arguments: string } | undefined {
    const { name, arguments: args } = JSON.parse(text) as { name?: unknown; arguments?: unknown };
    if (typeof name !== 'string' || name === '') return undefined;
    if (args === undefined || args === null) return { name, arguments: '{}' };
    // Some models write the arguments as a string of JSON.
    if (typeof args === 'string') return isJsonObject(args) ? { name, arguments: args } : undefined;
    if (typeof args !== 'object' || Array.isArray(args)) return undefined;
    const { start, end } = this.#scanner.members.findLast((member) => member.key === 'arguments')!;
    return { name, arguments: text.slice(start, end) };
  }
}

export const TOOL_CALL_FORMATS: readonly ToolCallFormat[] = [
  { name: 'hermes', open: '<tool_call>', close: '</tool_call>', newBody: () => new HermesBody() },
];

/**
 * Splits a completion into text and tool calls while it grows, at a cost of O(new characters); how the text is cut into pieces changes
 * nothing but where text parts are cut. What turns out to be no call comes back as text, character for character; blanks between calls
 * belong to no text.
 */
export class ToolCallMachine {
  readonly #format: ToolCallFormat;
  #parts: OutputPart[] = [];
  /** Blanks that a call may follow. */
  #blanks = '';
  /** Everything since the opening marker's first character. */
  #held = '';
  /** Characters of a marker matched so far. */
  #numMatched = 0;
  #state: 'text' | 'body' | 'close' = 'text';
  #body: ToolCallBody | undefined;
  #bodyText = '';
  #hasText = false;
  #isAfterCall = false;

  constructor(format: ToolCallFormat) {
    this.#format = format;
  }

  push(text: string): OutputPart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  /** The completion is over: a call that lacks only its closing marker counts, anything else held back is text. */
  end(): OutputPart[] {
    if (this.#body?.isComplete === true && this.#emitCall()) return this.#drain();
    this.#giveUp();
    if (!this.#isAfterCall) this.#flushBlanks();
    return this.#drain();
  }

  #take(char: string): void {
    if (this.#state === 'text') this.#takeText(char);
    else if (this.#state === 'body') this.#takeBody(char);
    else this.#takeClose(char);
  }

  // NOTE: a marker's first character occurs nowhere else in it, so that a failed match can only begin anew at the failing character.
  #takeText(char: string): void {
    const { open, newBody } = this.#format;
    if (char === open[this.#numMatched]) {
      this.#held += char;
      if (++this.#numMatched < open.length) return;
      this.#state = 'body';
      this.#numMatched = 0;
      this.#body = newBody();
      this.#bodyText = '';
      return;
    }
    if (this.#numMatched > 0) {
      this.#giveUp();
      return this.#takeText(char);
    }
    if (isBlank(char)) this.#blanks += char;
    else this.#emitText(char);
  }

  #takeBody(char: string): void {
    if (!this.#body!.push(char)) return this.#retryAsText(char);
    this.#held += char;
    this.#bodyText += char;
    if (this.#body!.isComplete) this.#state = 'close';
  }

  #takeClose(char: string): void {
    const { close } = this.#format;
    if (char === close[this.#numMatched]) {
      this.#held += char;
      if (++this.#numMatched < close.length) return;
      if (!this.#emitCall()) this.#giveUp();
    } else if (this.#numMatched === 0 && isBlank(char)) {
      this.#held += char;
    } else {
      this.#retryAsText(char);
    }
  }

  #retryAsText(char: string): void {
    this.#giveUp();
    this.#takeText(char);
  }

  #emitCall(): boolean {
    const call = this.#body!.call(this.#bodyText);
    if (call === undefined) return false;
    this.#parts.push({ type: 'toolCall', ...call });
    this.#blanks = '';
    this.#isAfterCall = true;
    this.#reset();
    return true;
  }

  /** What is held back is no call. */
  #giveUp(): void {
    const held = this.#held;
    this.#reset();
    if (held !== '') this.#emitText(held);
  }

  #reset(): void {
    this.#state = 'text';
    this.#held = '';
    this.#numMatched = 0;
    this.#body = undefined;
  }

  #emitText(text: string): void {
    // Blanks between a leading call and the first text would only begin that text.
    if (!this.#isAfterCall || this.#hasText) this.#flushBlanks();
    this.#blanks = '';
    this.#append(text);
    this.#hasText = true;
    this.#isAfterCall = false;
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

function isBlank(char: string): boolean {
  return char === ' ' || char === '\n' || char === '\t' || char === '\r';
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
