import { ApiError } from 'capstan/internal';

const [QUOTE, BACKSLASH, COLON, COMMA] = Buffer.from('"\\:,');
const [OPENING_BRACE, CLOSING_BRACE, OPENING_BRACKET, CLOSING_BRACKET] = Buffer.from('{}[]');
const NUMBER_STARTS = new Set(Buffer.from('-0123456789'));
const OTHER_BYTE = 0;
const [BLANK, OPENING, CLOSING] = [1, 2, 3];
/** The kind of each byte outside strings. */
const KINDS = new Uint8Array(256).fill(OTHER_BYTE);
for (const byte of Buffer.from(' \t\n\r')) KINDS[byte] = BLANK;
for (const byte of Buffer.from('{[')) KINDS[byte] = OPENING;
for (const byte of Buffer.from('}]')) KINDS[byte] = CLOSING;
const BYTE_ORDER_MARK = Buffer.from('\ufeff');
/** A search for the end of a longer string takes less time than a loop. */
const SHORT_STRING_BYTES = 32;
/** Longer keys are no fields that matter. */
const MAX_KEY_BYTES = 200;

/** The value of a field of a JSON object: bytes `start` to `end` of the text. */
export interface JsonField {
  /** In lower case: some servers do not distinguish. */
  readonly name: string;
  /** Whether the text has the name in lower case. */
  readonly isLowerCase: boolean;
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
      const key = scanner.key();
      const name = key.toLowerCase();
      scanner.expect(COLON);
      const { start, end } = scanner.value();
      if (names.has(name)) fields.push({ name, isLowerCase: name === key, start, end });
    } while (scanner.continues());
  scanner.expectEnd();
  return { fields, contentStart, isEmpty };
}

/** Elements of a list, and whether all of them are numbers. */
export interface JsonListSize {
  readonly numElements: number;
  readonly isOfNumbers: boolean;
}

/** Returns undefined for a value that is no list. Takes linear time and no memory: nothing is parsed. */
export function listSize(value: Buffer): JsonListSize | undefined {
  if (value[0] !== OPENING_BRACKET) return undefined;
  let numElements = 0;
  let isOfNumbers = true;
  for (let at = 1; ; at++) {
    while (KINDS[value[at]] === BLANK) at++;
    if (numElements === 0 && value[at] === CLOSING_BRACKET) break;
    numElements++;
    isOfNumbers &&= NUMBER_STARTS.has(value[at]);
    at = valueEnd(value, at);
    while (KINDS[value[at]] === BLANK) at++;
    if (value[at] !== COMMA) break;
  }
  return { numElements, isOfNumbers };
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
    this.at = stringEnd(this.#text, start);
    if (this.at - start > MAX_KEY_BYTES) return '';
    return String(jsonOf(this.#text.subarray(start, this.at)));
  }

  value(): { start: number; end: number } {
    this.#skipBlanks();
    const start = this.at;
    this.at = valueEnd(this.#text, start);
    return { start, end: this.at };
  }

  #skipBlanks(): void {
    while (KINDS[this.#text[this.at]] === BLANK) this.at++;
  }
}

/** Returns the place behind a value, in one loop over local variables: bodies have up to 64 MiB. */
function valueEnd(text: Buffer, start: number): number {
  let at = start;
  let depth = 0;
  do {
    const byte = text[at];
    if (byte === undefined) throw notAnObject();
    const kind = KINDS[byte];
    if (byte === QUOTE) at = stringEnd(text, at);
    else if (kind === OPENING) {
      depth++;
      at++;
    } else if (depth > 0) {
      if (kind === CLOSING) depth--;
      at++;
    } else at = wordEnd(text, at);
  } while (depth > 0);
  if (at === start) throw notAnObject();
  return at;
}

/** Returns the place behind a number, `true`, `false` or `null`. */
function wordEnd(text: Buffer, start: number): number {
  let at = start;
  while (at < text.length && text[at] !== COMMA && KINDS[text[at]] !== CLOSING && KINDS[text[at]] !== BLANK) at++;
  return at;
}

/** Returns the place behind the closing quote. */
function stringEnd(text: Buffer, start: number): number {
  let at = start + 1;
  // Most strings are short, or have no escapes.
  for (const end = at + SHORT_STRING_BYTES; at < end; at++) {
    if (text[at] === QUOTE) return at + 1;
    if (text[at] === BACKSLASH) break;
  }
  for (;;) {
    const quote = text.indexOf(QUOTE, at);
    if (quote < 0) throw notAnObject();
    let numBackslashes = 0;
    while (text[quote - numBackslashes - 1] === BACKSLASH) numBackslashes++;
    at = quote + 1;
    if (numBackslashes % 2 === 0) return at;
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
