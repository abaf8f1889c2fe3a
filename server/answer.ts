import type { HttpReply, ReplyHeaders, ReplyStream } from './http/transport';

/** The reply that handlers see: adds the headers that every answer carries, and remembers what was answered. */
export class Answer implements HttpReply {
  readonly #reply: HttpReply;
  #headers: Readonly<Record<string, string>>;
  #status: number | undefined;
  #requestId: string | undefined;
  #numBytes = 0;
  #isStream = false;

  /** @param headers What an answer carries unless it says otherwise itself. */
  constructor(reply: HttpReply, headers: Readonly<Record<string, string>>) {
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

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    this.#numBytes += body === null ? 0 : Buffer.byteLength(body);
    this.#reply.send(status, this.#begin(status, headers), body);
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#isStream = true;
    const stream = this.#reply.stream(status, this.#begin(status, headers));
    return {
      write: (data) => {
        this.#numBytes += Buffer.byteLength(data);
        return stream.write(data);
      },
      drained: () => stream.drained(),
      end: () => stream.end(),
      destroy: () => stream.destroy(),
    };
  }

  #begin(status: number, own: ReplyHeaders): ReplyHeaders {
    const headers = { ...this.#headers, ...own };
    this.#status ??= status;
    this.#requestId ??= headers['X-Request-Id'] as string | undefined;
    return headers;
  }
}
