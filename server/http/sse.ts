import { DONE } from '../base/error-styles';
import type { HttpReply, ReplyStream } from './transport';

export interface SseOptions {
  /** Interval of keep-alive comments while no event is sent, so that proxies and clients do not time out. */
  pingIntervalMs: number;
  /** How long a client may stop reading before the stream is cut. */
  slowClientTimeoutMs: number;
  /** The complete event or comment that keeps the connection alive. Default: an empty comment. */
  ping?: string;
}

const EMPTY_COMMENT = ':\n\n';

export const SSE_HEADERS = {
  'Content-Type': 'text/event-stream; charset=utf-8',
  'Cache-Control': 'no-cache',
  'X-Accel-Buffering': 'no',
} as const;

/** The error of a client that stopped reading. */
export class ClientTooSlow extends Error {}

/**
 * Server-sent events over one reply. `send` waits for a slow client, so memory is bounded by the buffer of the
 * connection. The source of the events should coalesce them meanwhile.
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

  /** Sends one event per text. Each text is one line of JSON. Rejects with {@link ClientTooSlow}. */
  async send(...data: readonly string[]): Promise<void> {
    await this.write(data.map((line) => `data: ${line}\n\n`).join(''));
  }

  /** Sends the text of complete events. Rejects with {@link ClientTooSlow}. */
  async write(text: string): Promise<void> {
    this.#hasSentSincePing = true;
    if (!this.#stream.write(text)) await this.#waitForClient();
  }

  /**
   * Sends events with an id, at which a client can resume after a lost connection. Rejects with {@link ClientTooSlow}.
   */
  async sendEvents(events: readonly { id: string | number; data: string }[]): Promise<void> {
    await this.write(events.map(({ id, data }) => `id: ${id}\ndata: ${data}\n\n`).join(''));
  }

  /** Sends the headers at once, before the first event. */
  open(): void {
    this.#stream.write(EMPTY_COMMENT);
  }

  /** Ends the stream without a terminator. */
  end(): void {
    clearInterval(this.#pings);
    this.#stream.end();
  }

  /** Sends the last text, by default the terminator, and ends the stream. */
  async finish(text = DONE): Promise<void> {
    if (text !== '') await this.write(text);
    this.end();
  }

  destroy(): void {
    clearInterval(this.#pings);
    this.#stream.destroy();
  }

  #ping(): void {
    if (!this.#hasSentSincePing) this.#stream.write(this.#options.ping ?? EMPTY_COMMENT);
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
