import { ApiError } from 'capstan/internal';

const [QUOTE, BACKSLASH, COLON, COMMA] = Buffer.from('"\\:,');
const [OPENING_BRACE, CLOSING_BRACE, OPENING_BRACKET] = Buffer.from('{}[');
const MAX_ASCII = 0x7f;
const OTHER_BYTE = 0;
const [BLANK, OPENING, CLOSING] = [1, 2, 3];
/** The kind of each byte outside strings. */
const KINDS = new Uint8Array(256).fill(OTHER_BYTE);
for (const byte of Buffer.from(' \t\n\r')) KINDS[byte] = BLANK;
for (const byte of Buffer.from('{[')) KINDS[byte] = OPENING;
for (const byte of Buffer.from('}]')) KINDS[byte] = CLOSING;
const IS_NUMBER_START = new Uint8Array(256);
for (const byte of Buffer.from('-0123456789')) IS_NUMBER_START[byte] = 1;
const BYTE_ORDER_MARK = Buffer.from('\ufeff');
/** Longer keys and values are not kept. */
const MAX_KEPT_BYTES = 1_026;
/** More fields with the names of a search are refused: each needs memory. */
const MAX_FIELDS = 1_000;
/** A search for the end of a longer string takes less time than a loop. */
const SHORT_STRING_BYTES = 32;
/** Bytes that are read before other work gets a turn: a few milliseconds, even if all keys are short. */
const TURN_BYTES = 2 ** 16;

/** Where the scanner is. */
const [START, FIRST_KEY, KEY, IN_KEY, AT_COLON, VALUE, IN_VALUE, AFTER_VALUE, END] = Array(9).keys();

/** The value of a field of a JSON object: bytes `start` to `end` of the text. */
export interface JsonField {
  /** In lower case: some servers do not distinguish. */
  readonly name: string;
  /** Whether the text has the name in lower case. */
  readonly isLowerCase: boolean;
  readonly start: number;
  readonly end: number;
  /** The bytes of the value. undefined: more than {@link MAX_KEPT_BYTES}. */
  readonly text: Buffer | undefined;
  /** Of a list. */
  readonly list: JsonListSize | undefined;
}

/** Elements of a list, and whether all of them are numbers. */
export interface JsonListSize {
  numElements: number;
  isOfNumbers: boolean;
}

/** What a scanner looks for. Every method may throw. */
export interface FieldSearch {
  /** In lower case. */
  readonly names: ReadonlySet<string>;
  /** Called for each key with one of the names. */
  onKey?: (name: string, isLowerCase: boolean) => void;
  /** Called with the first byte of the value of such a key. */
  onValue?: (name: string, byte: number) => void;
  /** Called for such a value when it is too long to be kept. */
  onLongValue?: (name: string) => void;
  /** The error for text that is no JSON object. */
  notAnObject: () => ApiError;
}

/**
 * Finds fields of a JSON object that arrives in pieces, without parsing it: everything else keeps its bytes and is not
 * checked. A field may occur twice.
 */
export class FieldScanner {
  readonly fields: JsonField[] = [];
  /** Behind the opening brace. */
  contentStart = 0;
  isEmpty = true;
  readonly #search: FieldSearch;
  /** Of the names, in bytes. */
  readonly #lengths: ReadonlySet<number>;
  #place = START;
  /** Bytes of earlier pieces. */
  #numBytes = 0;
  /** Lists and objects around the next byte, within a value. */
  #depth = 0;
  #isInString = false;
  /** Whether the last byte was a backslash that escapes the next one. */
  #isEscaping = false;
  #name = '';
  #isLowerCase = true;
  #isWanted = false;
  #start = 0;
  /** Bytes of the key or of the wanted value. undefined: not kept. */
  #kept: Buffer[] | undefined;
  #numKept = 0;
  #list: JsonListSize | undefined;
  /** At depth 1: the next byte begins an element. */
  #isAtElement = false;

  constructor(search: FieldSearch) {
    this.#search = search;
    this.#lengths = new Set([...search.names].map((name) => Buffer.byteLength(name)));
  }

  get hasEnded(): boolean {
    return this.#place === END;
  }

  /** Throws an ApiError for text that is no JSON object. */
  take(piece: Buffer): void {
    for (let at = 0; at < piece.length;) {
      const from = at;
      let isAtEnd = false;
      if (this.#isInString) {
        at = this.#string(piece, at);
        isAtEnd = !this.#isInString && this.#depth === 0;
      } else if (this.#depth > 0) {
        at = this.#nested(piece, at);
        isAtEnd = this.#depth === 0;
      } else if (this.#place === IN_VALUE) {
        at = wordEnd(piece, at);
        isAtEnd = at < piece.length;
      } else {
        this.#step(piece[at], this.#numBytes + at);
        at++;
      }
      if (this.#kept !== undefined) this.#keep(piece.subarray(from, at));
      if (isAtEnd && this.#place === IN_KEY) this.#endKey();
      else if (isAtEnd) this.#endValue(this.#numBytes + at);
    }
    this.#numBytes += piece.length;
  }

  /** Call it after the last piece. */
  end(): void {
    if (!this.hasEnded) throw this.#search.notAnObject();
  }

  #step(byte: number, at: number): void {
    const isBlank = KINDS[byte] === BLANK || (this.#place === START && byte === BYTE_ORDER_MARK[at]);
    if (isBlank) return;
    switch (this.#place) {
      case START:
        this.#demand(byte === OPENING_BRACE);
        this.contentStart = at + 1;
        this.#place = FIRST_KEY;
        return;
      case FIRST_KEY:
        if (byte === CLOSING_BRACE) {
          this.#place = END;
          return;
        }
        this.isEmpty = false;
        return this.#beginKey(byte);
      case KEY:
        return this.#beginKey(byte);
      case AT_COLON:
        this.#demand(byte === COLON);
        this.#place = VALUE;
        return;
      case VALUE:
        return this.#beginValue(byte, at);
      case AFTER_VALUE:
        this.#demand(byte === COMMA || byte === CLOSING_BRACE);
        this.#place = byte === COMMA ? KEY : END;
        return;
      default:
        throw this.#search.notAnObject();
    }
  }

  #demand(isRight: boolean): void {
    if (!isRight) throw this.#search.notAnObject();
  }

  #beginKey(byte: number): void {
    this.#demand(byte === QUOTE);
    this.#place = IN_KEY;
    this.#isInString = true;
    this.#beginKeeping();
  }

  #beginValue(byte: number, at: number): void {
    if (this.#isWanted) this.#search.onValue?.(this.#name, byte);
    const kind = KINDS[byte];
    this.#demand(kind !== CLOSING && byte !== COMMA && byte !== COLON);
    this.#place = IN_VALUE;
    this.#start = at;
    this.#list = undefined;
    if (byte === QUOTE) this.#isInString = true;
    else if (kind === OPENING) {
      this.#depth = 1;
      this.#isAtElement = true;
      if (this.#isWanted && byte === OPENING_BRACKET) this.#list = { numElements: 0, isOfNumbers: true };
    }
    if (this.#isWanted) this.#beginKeeping();
  }

  #beginKeeping(): void {
    this.#kept = [];
    this.#numKept = 0;
  }

  #keep(bytes: Buffer): void {
    this.#numKept += bytes.length;
    if (this.#numKept <= MAX_KEPT_BYTES) return void this.#kept!.push(bytes);
    this.#kept = undefined;
    if (this.#place === IN_VALUE) this.#search.onLongValue?.(this.#name);
  }

  #endKey(): void {
    const key = this.#text();
    const name = key === undefined || !this.#mayBeWanted(key) ? '' : String(jsonOf(key, this.#search.notAnObject));
    // Go takes ſ for s.
    this.#name = name.toUpperCase().toLowerCase();
    this.#isLowerCase = this.#name === name;
    this.#isWanted = this.#search.names.has(this.#name);
    this.#place = AT_COLON;
    if (this.#isWanted) this.#search.onKey?.(this.#name, this.#isLowerCase);
  }

  /** Most keys need no parsing. @param key In quotes. */
  #mayBeWanted(key: Buffer): boolean {
    if (this.#lengths.has(key.length - 2)) return true;
    for (let i = 0; i < key.length; i++) if (key[i] === BACKSLASH || key[i] > MAX_ASCII) return true;
    return false;
  }

  #endValue(end: number): void {
    const text = this.#text();
    this.#place = AFTER_VALUE;
    if (!this.#isWanted) return;
    if (this.fields.length === MAX_FIELDS) throw tooManyFields(this.#name);
    const [name, isLowerCase, start, list] = [this.#name, this.#isLowerCase, this.#start, this.#list];
    this.fields.push({ name, isLowerCase, start, end, text, list });
  }

  #text(): Buffer | undefined {
    const kept = this.#kept;
    this.#kept = undefined;
    return kept === undefined ? undefined : Buffer.concat(kept);
  }

  /** Reads a list or object up to its end or to a string in it. Returns the place behind what was read. */
  #nested(piece: Buffer, from: number): number {
    let depth = this.#depth;
    let at = from;
    while (depth > 0 && at < piece.length) {
      const byte = piece[at++];
      if (byte === QUOTE) {
        if (depth === 1) this.#beginElement(false);
        this.#isInString = true;
        break;
      }
      const kind = KINDS[byte];
      if (kind === OPENING) {
        if (depth === 1) this.#beginElement(false);
        depth++;
      } else if (kind === CLOSING) {
        depth--;
      } else if (depth === 1 && kind === OTHER_BYTE) {
        if (byte === COMMA) this.#isAtElement = true;
        else this.#beginElement(IS_NUMBER_START[byte] === 1);
      }
    }
    this.#depth = depth;
    return at;
  }

  #beginElement(isNumber: boolean): void {
    if (!this.#isAtElement || this.#list === undefined) return;
    this.#isAtElement = false;
    this.#list.numElements++;
    this.#list.isOfNumbers &&= isNumber;
  }

  /** Returns the place behind the closing quote, or the length of the piece. */
  #string(piece: Buffer, from: number): number {
    let at = from;
    if (this.#isEscaping) {
      this.#isEscaping = false;
      at++;
    }
    // Most strings are short, or have no escapes.
    for (const end = Math.min(at + SHORT_STRING_BYTES, piece.length); at < end; at++) {
      if (piece[at] === QUOTE) {
        this.#isInString = false;
        return at + 1;
      }
      if (piece[at] === BACKSLASH) break;
    }
    for (;;) {
      const quote = piece.indexOf(QUOTE, at);
      const end = quote < 0 ? piece.length : quote;
      let numBackslashes = 0;
      while (end - numBackslashes > at && piece[end - numBackslashes - 1] === BACKSLASH) numBackslashes++;
      const isEscaped = numBackslashes % 2 === 1;
      if (quote < 0) {
        this.#isEscaping = isEscaped;
        return piece.length;
      }
      at = quote + 1;
      if (isEscaped) continue;
      this.#isInString = false;
      return at;
    }
  }
}

/** Finds fields of a whole text. Other work gets turns in between. Throws an ApiError. */
export async function findFields(text: Buffer, search: FieldSearch): Promise<FieldScanner> {
  const scanner = new FieldScanner(search);
  for (let at = 0; at < text.length; at += TURN_BYTES) {
    if (at > 0) await new Promise((resolve) => setImmediate(resolve));
    scanner.take(text.subarray(at, at + TURN_BYTES));
  }
  scanner.end();
  return scanner;
}

/** Returns the place of the first byte behind a number, `true`, `false` or `null`. */
function wordEnd(piece: Buffer, from: number): number {
  let at = from;
  while (at < piece.length && piece[at] !== COMMA && KINDS[piece[at]] !== CLOSING && KINDS[piece[at]] !== BLANK) at++;
  return at;
}

/** Returns the value of JSON text. */
export function jsonOf(text: Buffer, notJson: () => ApiError): unknown {
  try {
    return JSON.parse(text.toString()) as unknown;
  } catch {
    throw notJson();
  }
}

function tooManyFields(name: string): ApiError {
  return new ApiError('invalid_value', `${name}: expected one field with this name, got hundreds`, { param: name });
}
