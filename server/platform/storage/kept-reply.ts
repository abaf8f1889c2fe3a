import {
  ApiError,
  type HttpReply,
  isLight,
  isLightReply,
  LIGHT,
  type ReplyHeaders,
  type ReplyStream,
} from 'capstan/internal';

/** Longer responses pass unchanged and are not kept. */
const MAX_RESPONSE_BYTES = 16 * 2 ** 20;
const LINE_FEED = 0x0a;
const RETURN = 0x0d;
export type Json = Readonly<Record<string, unknown>>;

/** What becomes of a replica's response on its way to the client. */
export interface ReplyRewriter {
  /** Returns a JSON response as the client gets it. Undefined: unchanged. */
  whole(value: Json): Promise<Json> | undefined;
  /** Returns an event of a stream, with its blank line, as the client gets it. Undefined: unchanged. */
  event(event: Buffer): string | Promise<string> | undefined;
  /** Called for an event that passes unchanged because it is too long or cannot be rewritten. */
  skipped?(): void;
}

/** Receives a replica's response, and passes it on with the changes of a rewriter. */
export class KeptReply implements HttpReply {
  readonly #reply: HttpReply;
  readonly #rewriter: ReplyRewriter;
  #hasStarted = false;
  #settled: Promise<void> | undefined;

  constructor(reply: HttpReply, rewriter: ReplyRewriter) {
    this.#reply = reply;
    this.#rewriter = rewriter;
  }

  get hasStarted(): boolean {
    return this.#hasStarted || this.#reply.hasStarted;
  }

  /** Resolves when everything has been passed on. */
  async settled(): Promise<void> {
    await this.#settled;
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    this.#hasStarted = true;
    if (body !== null && isEvents(status, headers)) {
      const stream = this.stream(status, headers);
      stream.write(body);
      return stream.end();
    }
    if (body === null || !isJson(status, headers)) return this.#reply.send(status, headers, body);
    this.#settled = this.#rewritten(toBuffer(body)).then((text) => this.#reply.send(status, headers, text));
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#hasStarted = true;
    if (isJson(status, headers)) return this.#collect(status, headers);
    const stream = this.#reply.stream(status, headers);
    if (!isEvents(status, headers)) return stream;
    const events = new EventRewriter(stream, this.#rewriter);
    return {
      write: (data) => events.take(toBuffer(data)),
      drained: () => events.drained(),
      end: () => {
        this.#settled = events.end();
      },
      destroy: () => stream.destroy(),
    };
  }

  /** A JSON response that arrives in pieces. One that is too long is passed on from there. */
  #collect(status: number, headers: ReplyHeaders): ReplyStream {
    const pieces: Buffer[] = [];
    let numBytes = 0;
    let passing: ReplyStream | undefined;
    return {
      write: (data) => {
        const piece = toBuffer(data);
        if (passing !== undefined) return passing.write(piece);
        pieces.push(piece);
        numBytes += piece.length;
        if (numBytes <= MAX_RESPONSE_BYTES) return true;
        passing = this.#reply.stream(status, headers);
        return passing.write(Buffer.concat(pieces.splice(0)));
      },
      drained: () => passing?.drained() ?? Promise.resolve(),
      end: () => {
        if (passing !== undefined) return passing.end();
        this.#settled = this.#rewritten(Buffer.concat(pieces)).then((body) => this.#reply.send(status, headers, body));
      },
      destroy: () => (passing ?? this.#reply.stream(status, headers)).destroy(),
    };
  }

  async #rewritten(body: Buffer): Promise<Buffer | string> {
    try {
      const value = objectOf(body);
      const rewritten = value !== undefined ? await this.#rewriter.whole(value) : undefined;
      return rewritten === undefined ? body : JSON.stringify(rewritten);
    } catch {
      // Some values can be parsed, but not written.
      return body;
    }
  }
}

/** Rewrites the events of a stream, in their order. */
class EventRewriter {
  readonly #stream: ReplyStream;
  readonly #rewriter: ReplyRewriter;
  /** The pieces of the event that has not ended. */
  #event: Buffer[] = [];
  #numBytes = 0;
  #isLineBlank = true;
  /** Set while the last event is being kept. Everything after it waits. */
  #tail: Promise<void> | undefined;

  constructor(stream: ReplyStream, rewriter: ReplyRewriter) {
    this.#stream = stream;
    this.#rewriter = rewriter;
  }

  /** Returns whether the client reads as fast. */
  take(piece: Buffer): boolean {
    let isFast = true;
    let eventStart = 0;
    let lineStart = 0;
    for (let end = piece.indexOf(LINE_FEED); end >= 0; end = piece.indexOf(LINE_FEED, lineStart)) {
      const isBlank = this.#isLineBlank && isBlankFrom(piece, lineStart, end);
      this.#isLineBlank = true;
      lineStart = end + 1;
      if (!isBlank) continue;
      isFast = this.#pass(piece.subarray(eventStart, lineStart)) && isFast;
      eventStart = lineStart;
    }
    this.#isLineBlank &&= isBlankFrom(piece, lineStart, piece.length);
    if (eventStart < piece.length) isFast = this.#hold(piece.subarray(eventStart)) && isFast;
    return isFast;
  }

  async drained(): Promise<void> {
    await this.#tail;
    await this.#stream.drained();
  }

  async end(): Promise<void> {
    if (this.#event.length > 0) this.#write(Buffer.concat(this.#event.splice(0)));
    await this.#tail;
    this.#stream.end();
  }

  #hold(piece: Buffer): boolean {
    this.#event.push(piece);
    this.#numBytes += piece.length;
    if (this.#numBytes <= MAX_RESPONSE_BYTES) return true;
    // An event that is too long is no longer held. Its beginning is not that of an event any more.
    this.#numBytes = 0;
    this.#rewriter.skipped?.();
    return this.#write(Buffer.concat(this.#event.splice(0)));
  }

  #pass(last: Buffer): boolean {
    const event = this.#event.length === 0 ? last : Buffer.concat([...this.#event.splice(0), last]);
    this.#numBytes = 0;
    const rewritten = this.#rewritten(event);
    return rewritten instanceof Promise ? this.#writeLater(rewritten) : this.#write(rewritten);
  }

  /** An event that cannot be rewritten passes unchanged. */
  #rewritten(event: Buffer): Buffer | string | Promise<Buffer | string> {
    const skip = (): Buffer => {
      this.#rewriter.skipped?.();
      return event;
    };
    try {
      const rewritten = this.#rewriter.event(event) ?? event;
      return rewritten instanceof Promise ? rewritten.catch(skip) : rewritten;
    } catch {
      return skip();
    }
  }

  #write(data: Buffer | string): boolean {
    return this.#tail === undefined ? this.#stream.write(data) : this.#writeLater(data);
  }

  /** Returns false, so that little more comes before it is written. */
  #writeLater(data: Buffer | string | Promise<Buffer | string>): boolean {
    const tail = Promise.all([data, this.#tail]).then(([ready]) => {
      this.#stream.write(ready);
      if (this.#tail === tail) this.#tail = undefined;
    });
    this.#tail = tail;
    return false;
  }
}

/** Returns the JSON object of an event. Undefined for any other event. */
export function dataOf(event: string): Json | undefined {
  return objectOf(Buffer.from(textOf(event)));
}

/** Returns the object of a response. Undefined for anything else, and if it would take long to parse. */
export function objectOf(bytes: Buffer): Json | undefined {
  const value = isLightReply(bytes) ? parsed(bytes.toString()) : undefined;
  return isObject(value) ? value : undefined;
}

/** Returns the object of a request's body, or undefined. Throws ApiError if it would take long to parse. */
export function objectIn(body: Buffer): Json | undefined {
  if (!isLight(body)) throw new ApiError('invalid_json', `The body is too complex to be stored: expected ${LIGHT}`);
  const value = parsed(body.toString());
  return isObject(value) ? value : undefined;
}

/** Returns the data of an event. */
export function textOf(event: string): string {
  const lines = event.split(/\r?\n/).flatMap((line) => (line.startsWith('data:') ? [line.slice('data:'.length)] : []));
  return lines.join('\n').trim();
}

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isBlankFrom(piece: Buffer, start: number, end: number): boolean {
  return end === start || (end === start + 1 && piece[start] === RETURN);
}

function isJson(status: number, headers: ReplyHeaders): boolean {
  return status === 200 && /^application\/json\b/i.test(contentType(headers));
}

function isEvents(status: number, headers: ReplyHeaders): boolean {
  return status === 200 && /^text\/event-stream\b/i.test(contentType(headers));
}

function contentType(headers: ReplyHeaders): string {
  const name = Object.keys(headers).find((candidate) => candidate.toLowerCase() === 'content-type');
  return name === undefined ? '' : String(headers[name]);
}

function toBuffer(data: string | Uint8Array): Buffer {
  return typeof data === 'string' ? Buffer.from(data) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
}
