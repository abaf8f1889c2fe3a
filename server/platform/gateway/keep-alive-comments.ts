import { type HttpReply, type ReplyStream, SSE_HEADERS } from 'capstan/internal';

export interface KeepAliveTimes {
  /** No bytes are sent before this time, so that the response can still have any status. */
  silentMs: number;
  pingIntervalMs: number;
}

/** Sends comments to the client of a stream while its request waits for a replica. */
export class KeepAliveComments {
  readonly #reply: HttpReply;
  readonly #times: KeepAliveTimes;
  #timer: NodeJS.Timeout | undefined;
  #stream: ReplyStream | undefined;

  /** @param begun The stream, if earlier comments have started it. */
  constructor(reply: HttpReply, times: KeepAliveTimes, begun?: ReplyStream) {
    this.#reply = reply;
    this.#times = times;
    this.#stream = begun;
    this.#timer = setTimeout(() => this.#sendComment(), begun === undefined ? times.silentMs : times.pingIntervalMs);
  }

  /** Stops the comments. Returns the stream if it was started. */
  end(): ReplyStream | undefined {
    clearTimeout(this.#timer);
    return this.#stream;
  }

  #sendComment(): void {
    this.#stream ??= this.#reply.stream(200, SSE_HEADERS);
    this.#stream.write(': the deployment is starting\n\n');
    this.#timer = setTimeout(() => this.#sendComment(), this.#times.pingIntervalMs);
  }
}

const STREAM_FIELD = /"stream"\s*:\s*true\b/;

/** Whether an inference request asks for a stream. Searches the text instead of parsing it, because it may be large. */
export function asksForStream(body: Buffer): boolean {
  return body.includes('"stream"') && STREAM_FIELD.test(body.toString('latin1'));
}
