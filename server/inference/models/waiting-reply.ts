import type { ErrorStyle } from '../../base/error-styles';
import type { ApiError } from '../../base/errors';
import { SSE_HEADERS } from '../../http/sse';
import type { HttpReply, ReplyHeaders, ReplyStream } from '../../http/transport';

/**
 * The reply of a stream whose model is still loading. After each ping interval it sends a comment, so that proxies and
 * clients do not time out. The first comment starts the response: then an error can only be an event.
 */
export class WaitingReply implements HttpReply {
  readonly #reply: HttpReply;
  readonly #style: ErrorStyle;
  readonly #pings: NodeJS.Timeout;
  #stream: ReplyStream | undefined;

  constructor(reply: HttpReply, pingIntervalMs: number, style: ErrorStyle) {
    this.#reply = reply;
    this.#style = style;
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
    this.#end(this.#style.bodyEvents(body === null ? null : JSON.parse(Buffer.from(body as string).toString())));
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    return this.#stream ?? this.#reply.stream(status, headers);
  }

  /** Ends the stream with an error. */
  fail(error: ApiError, requestId: string): void {
    this.#end(this.#style.events(error, requestId));
  }

  #ping(): void {
    this.#stream ??= this.#reply.stream(200, SSE_HEADERS);
    this.#stream.write(':\n\n');
  }

  #end(events: string): void {
    this.#stream?.write(events);
    this.#stream?.end();
  }
}
