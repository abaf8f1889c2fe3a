import type { HttpReply, ReplyHeaders, ReplyStream } from './transport';

/** A reply that adds default headers to the response and records its status, size and kind. */
export class RecordedReply implements HttpReply {
  readonly #reply: HttpReply;
  #headers: Readonly<Record<string, string>>;
  #status: number | undefined;
  #requestId: string | undefined;
  #numBytes = 0;
  #isStream = false;

  /** @param headers Default headers. A header of the same name in the response replaces them. */
  constructor(reply: HttpReply, headers: Readonly<Record<string, string>>) {
    this.#reply = reply;
    this.#headers = headers;
  }

  /** Adds a default header. */
  addHeader(name: string, value: string): void {
    this.#headers = { ...this.#headers, [name]: value };
  }

  /** Undefined until the response has started. */
  get status(): number | undefined {
    return this.#status;
  }

  /** The `X-Request-Id` of the response. */
  get requestId(): string | undefined {
    return this.#requestId;
  }

  /** Bytes of the response body so far. */
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
    this.#reply.send(status, this.#record(status, headers), body);
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#isStream = true;
    const stream = this.#reply.stream(status, this.#record(status, headers));
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

  #record(status: number, responseHeaders: ReplyHeaders): ReplyHeaders {
    const headers = { ...this.#headers, ...responseHeaders };
    this.#status ??= status;
    this.#requestId ??= headers['X-Request-Id'] as string | undefined;
    return headers;
  }
}
