import { ApiError } from 'capstan/internal';

/** Longer names are unknown: a name has at most 100 characters of up to four bytes, and NAME/MODEL twice that. */
const MAX_STRING_BYTES = 1_024;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const COMMA = 0x2c;
const OPENING_BRACE = 0x7b;
const [BLANK, OPENING, CLOSING] = [1, 2, 3];
/** The kind of each byte outside strings. 0: any other. */
const KINDS = new Uint8Array(256);
for (const byte of Buffer.from(' \t\n\r')) KINDS[byte] = BLANK;
for (const byte of Buffer.from('{[')) KINDS[byte] = OPENING;
for (const byte of Buffer.from('}]')) KINDS[byte] = CLOSING;
const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf];

/** The value of the field `model`, with its quotes: bytes `start` to `end` of the body. */
export interface ModelField {
  readonly value: string;
  readonly start: number;
  readonly end: number;
}

/**
 * Finds the field `model` of a JSON object that arrives in pieces. Skips everything else without parsing it: the
 * deployment validates the body.
 */
export class ModelFieldReader {
  #numBytes = 0;
  #depth = 0;
  #isInString = false;
  /** Whether the last byte was a backslash that escapes the next one. */
  #isEscaping = false;
  /** At depth 1: the next string is a key. */
  #isKey = true;
  #isModel = false;
  /** Once it is complete. */
  #field: ModelField | undefined;
  #hasEnded = false;
  /** Bytes of a string at depth 1, or undefined while its text does not matter. */
  #text: number[] | undefined;
  #textStart = 0;

  /**
   * Returns the field once it is complete. Throws an ApiError if the body cannot have one, or has a second one. Give it
   * the pieces behind the field as well.
   */
  take(piece: Buffer): ModelField | undefined {
    for (let i = 0; i < piece.length; i++) {
      if (this.#isInString) {
        i = this.#text === undefined ? this.#skipString(piece, i) : this.#readString(piece, i);
        if (this.#isInString) break;
        this.#endString(this.#numBytes + i + 1);
      } else {
        this.#step(piece[i], this.#numBytes + i);
      }
    }
    this.#numBytes += piece.length;
    return this.#field;
  }

  #step(byte: number, at: number): void {
    const kind = KINDS[byte];
    if (kind === BLANK || (this.#depth === 0 && byte === BYTE_ORDER_MARK[at])) return;
    if (this.#depth === 0 && (byte !== OPENING_BRACE || this.#hasEnded)) throw notAnObject();
    if (byte === QUOTE) return this.#beginString(at);
    if (this.#depth === 1) {
      if (byte === COLON) this.#isKey = false;
      else if (byte === COMMA) this.#isKey = true;
      else if (this.#isModel && !this.#isKey) throw notAString();
    }
    if (kind === OPENING) this.#depth++;
    else if (kind === CLOSING && --this.#depth === 0) {
      if (this.#field === undefined) throw missing();
      this.#hasEnded = true;
    }
  }

  #beginString(at: number): void {
    this.#isInString = true;
    if (this.#depth !== 1) return;
    if (!this.#isKey && !this.#isModel) return;
    this.#text = [];
    this.#textStart = at;
  }

  /** Returns the index of the closing quote, or the length of the piece. */
  #skipString(piece: Buffer, from: number): number {
    let start = from;
    if (this.#isEscaping) {
      this.#isEscaping = false;
      start++;
    }
    for (;;) {
      const quote = piece.indexOf(QUOTE, start);
      const end = quote < 0 ? piece.length : quote;
      let numBackslashes = 0;
      while (end - numBackslashes > start && piece[end - numBackslashes - 1] === BACKSLASH) numBackslashes++;
      const isEscaped = numBackslashes % 2 === 1;
      if (quote < 0) {
        this.#isEscaping = isEscaped;
        return piece.length;
      }
      if (!isEscaped) {
        this.#isInString = false;
        return quote;
      }
      start = quote + 1;
    }
  }

  /** Returns as {@link #skipString} does, and keeps the text. */
  #readString(piece: Buffer, from: number): number {
    const text = this.#text as number[];
    for (let i = from; i < piece.length; i++) {
      const byte = piece[i];
      if (this.#isEscaping) this.#isEscaping = false;
      else if (byte === BACKSLASH) this.#isEscaping = true;
      else if (byte === QUOTE) {
        this.#isInString = false;
        return i;
      }
      if (text.length < MAX_STRING_BYTES) text.push(byte);
      else if (!this.#isKey) throw tooLong();
    }
    return piece.length;
  }

  #endString(end: number): void {
    const bytes = this.#text;
    this.#text = undefined;
    if (bytes === undefined) return;
    const value = parsed(bytes);
    if (!this.#isKey) {
      this.#field ??= { value, start: this.#textStart, end };
      this.#isModel = false;
      return;
    }
    this.#isModel = value === 'model';
    if (value.toLowerCase() === 'model' && (!this.#isModel || this.#field !== undefined)) throw notOneModel();
  }
}

/** For a body that could name another model to its server than to the gateway. */
export function notOneModel(): ApiError {
  return new ApiError(
    'invalid_value',
    'model: expected one field with this name, in lower case, because servers disagree about which of several counts',
    { param: 'model' },
  );
}

/** Call it at the end of a body in which no field was found. */
export function missing(): ApiError {
  return new ApiError(
    'missing_required_parameter',
    'model: expected the name of a deployment, for example "model": "chat". GET /v1/models lists the names',
    { param: 'model' },
  );
}

function parsed(bytes: readonly number[]): string {
  try {
    return JSON.parse(`"${Buffer.from(bytes).toString()}"`) as string;
  } catch {
    // A text that was cut at the limit may end within an escape. It names nothing.
    return '';
  }
}

function notAnObject(): ApiError {
  return new ApiError('invalid_json', 'The body is not valid JSON: expected an object with the field "model"');
}

function tooLong(): ApiError {
  return new ApiError(
    'model_not_found',
    `model: expected the name of a deployment, got more than ${MAX_STRING_BYTES} bytes. GET /v1/models lists the names`,
    { param: 'model' },
  );
}

function notAString(): ApiError {
  return new ApiError('invalid_type', 'model: expected a string with the name of a deployment', { param: 'model' });
}
