import { ApiError } from 'capstan/internal';

const [QUOTE, BACKSLASH, COLON, COMMA] = Buffer.from('"\\:,');
const [OPENING_BRACE, CLOSING_BRACE, OPENING_BRACKET, CLOSING_BRACKET] = Buffer.from('{}[]');
const BLANKS = new Set(Buffer.from(' \t\n\r'));
const BYTE_ORDER_MARK = Buffer.from('\ufeff');
/** Longer keys are no fields that matter. */
const MAX_KEY_BYTES = 200;

/** The value of a field of a JSON object: bytes `start` to `end` of the text. */
export interface JsonField {
  /** In lower case: some servers do not distinguish. */
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

export interface JsonObjectFields {
  readonly fields: readonly JsonField[];
  /** Behind the opening brace. */
  readonly contentStart: number;
  readonly isEmpty: boolean;
}

/**
 * Finds fields of a JSON object without parsing it, so that everything else keeps its bytes. A field may occur twice.
 * Throws ApiError for text that is no JSON object.
 */
export function findFields(text: Buffer, names: ReadonlySet<string>): JsonObjectFields {
  const scanner = new Scanner(text);
  const fields: JsonField[] = [];
  scanner.expect(OPENING_BRACE);
  const contentStart = scanner.at;
  let isEmpty = true;
  if (!scanner.takes(CLOSING_BRACE))
    do {
      isEmpty = false;
      const name = scanner.key();
      scanner.expect(COLON);
      const { start, end } = scanner.value();
      if (names.has(name)) fields.push({ name, start, end });
    } while (scanner.continues());
  scanner.expectEnd();
  return { fields, contentStart, isEmpty };
}

/** Reads the tokens of JSON text. Values inside others are skipped. */
class Scanner {
  at: number;
  readonly #text: Buffer;

  constructor(text: Buffer) {
    this.#text = text;
    this.at = text.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK) ? BYTE_ORDER_MARK.length : 0;
  }

  expect(byte: number): void {
    if (!this.takes(byte)) throw notAnObject();
  }

  takes(byte: number): boolean {
    this.#skipBlanks();
    if (this.#text[this.at] !== byte) return false;
    this.at++;
    return true;
  }

  /** Whether another field follows. */
  continues(): boolean {
    if (this.takes(COMMA)) return true;
    this.expect(CLOSING_BRACE);
    return false;
  }

  expectEnd(): void {
    this.#skipBlanks();
    if (this.at < this.#text.length) throw notAnObject();
  }

  key(): string {
    this.#skipBlanks();
    const start = this.at;
    if (this.#text[start] !== QUOTE) throw notAnObject();
    this.#skipString();
    if (this.at - start > MAX_KEY_BYTES) return '';
    return String(jsonOf(this.#text.subarray(start, this.at))).toLowerCase();
  }

  value(): { start: number; end: number } {
    this.#skipBlanks();
    const start = this.at;
    let depth = 0;
    do {
      const byte = this.#text[this.at];
      if (byte === undefined) throw notAnObject();
      if (byte === QUOTE) this.#skipString();
      else if (byte === OPENING_BRACE || byte === OPENING_BRACKET) {
        depth++;
        this.at++;
      } else if (depth > 0) {
        if (byte === CLOSING_BRACE || byte === CLOSING_BRACKET) depth--;
        this.at++;
      } else this.#skipWord();
    } while (depth > 0);
    if (this.at === start) throw notAnObject();
    return { start, end: this.at };
  }

  #skipBlanks(): void {
    while (BLANKS.has(this.#text[this.at])) this.at++;
  }

  /** A number, `true`, `false` or `null`. */
  #skipWord(): void {
    for (; this.at < this.#text.length; this.at++) {
      const byte = this.#text[this.at];
      if (byte === COMMA || byte === CLOSING_BRACE || byte === CLOSING_BRACKET || BLANKS.has(byte)) return;
    }
  }

  /** Stops behind the closing quote. */
  #skipString(): void {
    for (let from = this.at + 1; ;) {
      const quote = this.#text.indexOf(QUOTE, from);
      if (quote < 0) throw notAnObject();
      let numBackslashes = 0;
      while (this.#text[quote - numBackslashes - 1] === BACKSLASH) numBackslashes++;
      from = quote + 1;
      if (numBackslashes % 2 === 0) {
        this.at = from;
        return;
      }
    }
  }
}

/** Returns the value of a field. Throws ApiError. */
export function jsonOf(text: Buffer): unknown {
  try {
    return JSON.parse(text.toString()) as unknown;
  } catch {
    throw notAnObject();
  }
}

function notAnObject(): ApiError {
  return new ApiError(
    'invalid_json',
    'The body is not valid JSON: expected an object, because a budget limits the request',
  );
}
