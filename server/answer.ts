import type { HttpReply, ReplyStream } from './http/transport';

type Headers = Readonly<Record<string, string>>;

/** The reply that handlers see: adds the headers that every answer carries, and remembers what was answered. */
export class Answer implements HttpReply {
  readonly #reply: HttpReply;
  #headers: Headers;
  #status: number | undefined;
  #requestId: string | undefined;
  #numBytes = 0;
  #isStream = false;

  /** @param headers What an answer carries unless it says otherwise itself. */
  constructor(reply: HttpReply, headers: Headers) {
    this.#reply = reply;
    this.#headers = headers;
  }

  /** One more that the answer carries unless it says otherwise itself. */
  addHeader(name: string, value: string): void {
    this.#headers = { ...this.#headers, [name]: value };
  }

  /** undefined until an answer has begun. */
  get status(): number | undefined {
    return this.#status;
  }

  /** The id that was answered. */
  get requestId(): string | undefined {
    return this.#requestId;
  }

  /** Of the body so far. */
  get numBytes(): number {
    return this.#numBytes;
  }

  get isStream(): boolean {
    return this.#isStream;
  }

  get hasStarted(): boolean {
    return this.#reply.hasStarted;
  }

  send(status: number, headers: Headers, body: string): void {
    this.#numBytes += Buffer.byteLength(body);
    this.#reply.send(status, this.#begin(status, headers), body);
  }

  stream(status: number, headers: Headers): ReplyStream {
    this.#isStream = true;
    const stream = this.#reply.stream(status, this.#begin(status, headers));
    return {
      write: (text) => {
        this.#numBytes += Buffer.byteLength(text);
        return stream.write(text);
      },
      drained: () => stream.drained(),
      end: () => stream.end(),
      destroy: () => stream.destroy(),
    };
  }

  #begin(status: number, own: Headers): Headers {
    const headers = { ...this.#headers, ...own };
    this.#status ??= status;
    this.#requestId ??= headers['X-Request-Id'];
    return headers;
  }
}
