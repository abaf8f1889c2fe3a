import type { HttpReply, ReplyStream } from './transport';

export interface SseOptions {
  /** A comment is sent after this long without an event, so that no proxy or client takes silence for death. */
  pingIntervalMs: number;
  /** A client that reads nothing for this long is given up. */
  slowClientTimeoutMs: number;
}

export const SSE_HEADERS = {
  'Content-Type': 'text/event-stream; charset=utf-8',
  'Cache-Control': 'no-cache',
  Connection: 'keep-alive',
  'X-Accel-Buffering': 'no',
} as const;

/** The client stopped reading, or is gone. */
export class ClientTooSlow extends Error {}

/**
 * Server-sent events over one reply. A slow client makes `send` wait; what the caller reads from meanwhile coalesces, so that memory stays
 * bounded by what the connection buffers.
 */
export class SseStream {
  readonly #stream: ReplyStream;
  readonly #options: SseOptions;
  readonly #pings: NodeJS.Timeout;
  #hasSentSincePing = false;

  constructor(reply: HttpReply, headers: Readonly<Record<string, string>>, options: SseOptions) {
    this.#options = options;
    this.#stream = reply.stream(200, { ...SSE_HEADERS, ...headers });
    this.#pings = setInterval(() => this.#ping(), options.pingIntervalMs);
    this.#pings.unref();
  }

  /** One event per text, each one line of JSON. Rejects with {@link ClientTooSlow}. */
  async send(...data: readonly string[]): Promise<void> {
    this.#hasSentSincePing = true;
    if (!this.#stream.write(data.map((line) => `data: ${line}\n\n`).join(''))) await this.#waitForClient();
  }

  /** Events with an id, from which a client that lost the connection goes on. Rejects with {@link ClientTooSlow}. */
  async sendEvents(events: readonly { id: string | number; data: string }[]): Promise<void> {
    this.#hasSentSincePing = true;
    if (!this.#stream.write(events.map(({ id, data }) => `id: ${id}\ndata: ${data}\n\n`).join('')))
      await this.#waitForClient();
  }

  /** Sends the headers now: a client waits for them to know that it is heard. */
  open(): void {
    this.#stream.write(':\n\n');
  }

  /** The orderly end, without a terminator. */
  end(): void {
    clearInterval(this.#pings);
    this.#stream.end();
  }

  /** The terminator, and the orderly end. @param comment A last line that clients leave out, whole. */
  async finish(comment?: string): Promise<void> {
    this.#hasSentSincePing = true;
    if (!this.#stream.write(`data: [DONE]\n\n${comment === undefined ? '' : `${comment}\n\n`}`))
      await this.#waitForClient();
    clearInterval(this.#pings);
    this.#stream.end();
  }

  destroy(): void {
    clearInterval(this.#pings);
    this.#stream.destroy();
  }

  #ping(): void {
    if (!this.#hasSentSincePing) this.#stream.write(':\n\n');
    this.#hasSentSincePing = false;
  }

  async #waitForClient(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(
        () => reject(new ClientTooSlow('The client stopped reading')),
        this.#options.slowClientTimeoutMs,
      );
    });
    try {
      await Promise.race([this.#stream.drained(), timeout]);
    } finally {
      clearTimeout(timer);
    }
  }
}
