import { renderError } from '../../base/errors';
import type { ApiError } from '../../base/errors';
import { SSE_HEADERS } from '../../http/sse';
import type { HttpReply, ReplyHeaders, ReplyStream } from '../../http/transport';

/**
 * The reply of a stream whose model is still loading. After each ping interval it sends a comment, so that proxies and
 * clients do not time out. The first comment starts the response: then an error can only be an event.
 */
export class WaitingReply implements HttpReply {
  readonly #reply: HttpReply;
  readonly #pings: NodeJS.Timeout;
  #stream: ReplyStream | undefined;

  constructor(reply: HttpReply, pingIntervalMs: number) {
    this.#reply = reply;
    this.#pings = setInterval(() => this.#ping(), pingIntervalMs);
    this.#pings.unref();
  }

  get hasStarted(): boolean {
    return this.#reply.hasStarted;
  }

  /** Whether a comment was sent. */
  get hasPinged(): boolean {
    return this.#stream !== undefined;
  }

  /** Ends the wait. */
  stopPings(): void {
    clearInterval(this.#pings);
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.#stream === undefined) return this.#reply.send(status, headers, body);
    this.#end(body === null ? '' : Buffer.from(body as string).toString());
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    return this.#stream ?? this.#reply.stream(status, headers);
  }

  /** Ends the stream with an error. */
  fail(error: ApiError): void {
    this.#end(renderError(error));
  }

  #ping(): void {
    this.#stream ??= this.#reply.stream(200, SSE_HEADERS);
    this.#stream.write(':\n\n');
  }

  #end(data: string): void {
    this.#stream?.write(`data: ${data}\n\ndata: [DONE]\n\n`);
    this.#stream?.end();
  }
}
