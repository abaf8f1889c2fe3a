import { trimBlanks } from 'capstan/internal';

/** Limit for the head, and for the trailers. */
const MAX_HEAD_BYTES = 32 * 1024;
/** Most hexadecimal digits of a chunk length: below 2^52. */
const MAX_LENGTH_DIGITS = 13;
const MAX_EXTENSION_BYTES = 4 * 1024;
/** A server that takes long may send one now and then. */
const MAX_INTERIM_RESPONSES = 100;
const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;
const FIELD = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)$/;
const [CR, LF, SEMICOLON, SPACE, TAB] = [0x0d, 0x0a, 0x3b, 0x20, 0x09];

/** The status line and headers of a response. */
export interface ResponseHead {
  status: number;
  /** Alternating names and values, as received. */
  rawHeaders: string[];
}

/** The bytes are not a valid HTTP response (RFC 9112), or its length is ambiguous. */
export class ResponseSyntaxError extends Error {
  override readonly name = 'ResponseSyntaxError';
}

type State =
  | 'head'
  | 'counted'
  | 'untilEnd'
  | 'size'
  | 'extension'
  | 'sizeEnd'
  | 'chunk'
  | 'chunkEnd'
  | 'chunkEndLf'
  | 'trailer'
  | 'trailerLine'
  | 'trailerEnd'
  | 'complete';

/**
 * Parses one HTTP/1.1 response. It is strict about framing: if the parser misjudged where a response ends,
 * the remaining bytes would reach the next client.
 */
export class ResponseParser {
  readonly #isHead: boolean;
  #state: State = 'head';
  #held: Buffer | undefined;
  /** Bytes left of the fixed-length body, or of the current chunk. */
  #left = 0;
  #numDigits = 0;
  #numSkipped = 0;
  #numInterim = 0;
  #head: ResponseHead | undefined;
  #keepAliveMs = Infinity;

  /** @param isHead Whether the request method was HEAD. The response then has no body, whatever its headers say. */
  constructor(isHead: boolean) {
    this.#isHead = isHead;
  }

  /** Head of the final response, once received. Interim responses (1xx) are skipped. */
  get head(): ResponseHead | undefined {
    return this.#head;
  }

  get isComplete(): boolean {
    return this.#state === 'complete';
  }

  /** How long the replica keeps the connection open after the response. 0: it closes it. Infinity: it does not say. */
  get keepAliveMs(): number {
    return this.#keepAliveMs;
  }

  /**
   * Returns the body bytes within `bytes`, without chunk framing.
   * NOTE: the result is a view of `bytes`, which the parser overwrites in place.
   * Throws ResponseSyntaxError.
   */
  take(bytes: Buffer): Buffer {
    let from = 0;
    // An interim response and the final one may arrive in the same read.
    while (this.#state === 'head') {
      const rest = this.#takeHead(bytes.subarray(from));
      if (rest === undefined) return bytes.subarray(0, 0);
      from = bytes.length - rest;
    }
    return this.#takeBody(bytes, from);
  }

  /** Call it when the connection ends. Returns whether the response is complete. */
  end(): boolean {
    if (this.#state === 'untilEnd') this.#state = 'complete';
    return this.#state === 'complete';
  }

  /** Returns the number of bytes after the head, or undefined when the head is incomplete. */
  #takeHead(bytes: Buffer): number | undefined {
    const held = this.#held === undefined ? bytes : Buffer.concat([this.#held, bytes]);
    const end = held.indexOf('\r\n\r\n');
    if (end > MAX_HEAD_BYTES || (end < 0 && held.length > MAX_HEAD_BYTES))
      throw new ResponseSyntaxError(`the response head is larger than ${MAX_HEAD_BYTES} bytes`);
    if (end < 0) {
      this.#held = Buffer.from(held);
      return undefined;
    }
    this.#held = undefined;
    this.#readHead(held.toString('latin1', 0, end).split('\r\n'));
    return held.length - end - 4;
  }

  #readHead([first, ...lines]: string[]): void {
    const [, minor, digits] = STATUS_LINE.exec(first) ?? [];
    if (digits === undefined) throw new ResponseSyntaxError('expected an HTTP/1.x status line');
    const status = Number(digits);
    const rawHeaders = lines.flatMap((line) => {
      const [, name, value] = FIELD.exec(line) ?? [];
      if (name === undefined) throw new ResponseSyntaxError('malformed header line');
      return [name, trimBlanks(value)];
    });
    if (status === 101) throw new ResponseSyntaxError('unexpected status 101: no upgrade was requested');
    if (status < 200 && ++this.#numInterim > MAX_INTERIM_RESPONSES)
      throw new ResponseSyntaxError(`more than ${MAX_INTERIM_RESPONSES} interim responses`);
    if (status < 200) return;
    this.#head = { status, rawHeaders };
    this.#frame(status, rawHeaders, minor === '1');
  }

  #frame(status: number, rawHeaders: readonly string[], isPersistent: boolean): void {
    const { lengths, encodings, connection, keepAlive } = framingOf(rawHeaders);
    if (
      lengths.length + encodings.length > 1 ||
      (encodings.length === 1 && encodings[0].toLowerCase() !== 'chunked') ||
      (lengths.length === 1 && !/^\d{1,15}$/.test(lengths[0]))
    ) {
      throw new ResponseSyntaxError('the response length is ambiguous');
    }
    const isKept = isPersistent ? !connection.includes('close') : connection.includes('keep-alive');
    this.#keepAliveMs = isKept ? keepAlive : 0;
    const hasNoBody = this.#isHead || status === 204 || status === 304;
    if (hasNoBody || lengths[0] !== undefined) {
      this.#left = hasNoBody ? 0 : Number(lengths[0]);
      this.#state = this.#left === 0 ? 'complete' : 'counted';
    } else if (encodings.length > 0) {
      this.#state = 'size';
    } else {
      this.#state = 'untilEnd';
      this.#keepAliveMs = 0;
    }
  }

  #takeBody(bytes: Buffer, from: number): Buffer {
    if (this.#state === 'untilEnd') return bytes.subarray(from);
    let at = from;
    let to = from;
    while (at < bytes.length) {
      if (this.#state === 'complete') return this.#dropRest(bytes.subarray(from, to));
      if (this.#state !== 'chunk' && this.#state !== 'counted') {
        this.#takeFraming(bytes[at++]);
        continue;
      }
      const end = Math.min(bytes.length, at + this.#left);
      if (to !== at) bytes.copyWithin(to, at, end);
      to += end - at;
      this.#left -= end - at;
      at = end;
      if (this.#left === 0) this.#state = this.#state === 'chunk' ? 'chunkEnd' : 'complete';
    }
    return bytes.subarray(from, to);
  }

  /** Ignores bytes after the response and prevents reuse of the connection. */
  #dropRest(body: Buffer): Buffer {
    this.#keepAliveMs = 0;
    return body;
  }

  /** Handles one byte of chunk framing or of the trailers. Trailers are dropped. */
  #takeFraming(byte: number): void {
    switch (this.#state) {
      case 'size':
        return this.#takeSize(byte);
      case 'extension':
        if (byte === CR) this.#state = 'sizeEnd';
        else if (byte === LF || ++this.#numSkipped > MAX_EXTENSION_BYTES)
          throw new ResponseSyntaxError('the chunk extension is malformed or too long');
        return;
      case 'sizeEnd':
        expectByte(byte, LF);
        this.#state = this.#left > 0 ? 'chunk' : 'trailer';
        this.#numDigits = 0;
        return;
      case 'chunkEnd':
        expectByte(byte, CR);
        this.#state = 'chunkEndLf';
        return;
      case 'chunkEndLf':
        expectByte(byte, LF);
        this.#state = 'size';
        return;
      case 'trailer':
        this.#state = byte === CR ? 'trailerEnd' : 'trailerLine';
        return;
      case 'trailerLine':
        if (++this.#numSkipped > MAX_HEAD_BYTES)
          throw new ResponseSyntaxError(`the trailers are larger than ${MAX_HEAD_BYTES} bytes`);
        if (byte === LF) this.#state = 'trailer';
        return;
      case 'trailerEnd':
        expectByte(byte, LF);
        this.#state = 'complete';
        return;
      default:
        throw new Error(`state ${this.#state} has no framing`);
    }
  }

  #takeSize(byte: number): void {
    const digit = hexDigit(byte);
    if (digit >= 0 && this.#numDigits < MAX_LENGTH_DIGITS) {
      this.#left = this.#left * 16 + digit;
      this.#numDigits++;
      return;
    }
    if (this.#numDigits === 0) throw new ResponseSyntaxError('a chunk has no length');
    if (byte === CR) this.#state = 'sizeEnd';
    else if (byte === SEMICOLON || byte === SPACE || byte === TAB) this.#state = 'extension';
    else throw new ResponseSyntaxError('a chunk length is malformed or too large');
  }
}

function expectByte(byte: number, expected: number): void {
  if (byte !== expected) throw new ResponseSyntaxError('malformed line ending in the chunk framing');
}

function hexDigit(byte: number): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const lower = byte | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1;
}

function framingOf(rawHeaders: readonly string[]): {
  lengths: string[];
  encodings: string[];
  connection: string[];
  keepAlive: number;
} {
  const lengths: string[] = [];
  const encodings: string[] = [];
  const connection: string[] = [];
  let keepAlive = Infinity;
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const [name, value] = [rawHeaders[i].toLowerCase(), rawHeaders[i + 1]];
    if (name === 'content-length') lengths.push(value);
    else if (name === 'transfer-encoding') encodings.push(value);
    else if (name === 'connection') connection.push(...value.toLowerCase().split(',').map(trimBlanks));
    else if (name === 'keep-alive') keepAlive = Number(/\btimeout=(\d{1,6})\b/i.exec(value)?.[1] ?? Infinity) * 1000;
  }
  return { lengths, encodings, connection, keepAlive };
}
