import type { HttpReply, ReplyStream } from '../http/transport';
import { SSE_HEADERS } from '../http/sse';

export interface WaitingTimes {
  /** Until here a request is held without a word, so that its answer can still have any status. */
  silentMs: number;
  pingIntervalMs: number;
}

/** Tells the client of a stream, by comments, that its request is held and not lost. */
export class Waiting {
  readonly #reply: HttpReply;
  readonly #times: WaitingTimes;
  #timer: NodeJS.Timeout | undefined;
  #stream: ReplyStream | undefined;

  constructor(reply: HttpReply, times: WaitingTimes) {
    this.#reply = reply;
    this.#times = times;
    this.#timer = setTimeout(() => this.#say(), times.silentMs);
  }

  /** The answer as far as it was begun, once the wait is over. */
  end(): ReplyStream | undefined {
    clearTimeout(this.#timer);
    return this.#stream;
  }

  #say(): void {
    this.#stream ??= this.#reply.stream(200, SSE_HEADERS);
    this.#stream.write(': the deployment is starting\n\n');
    this.#timer = setTimeout(() => this.#say(), this.#times.pingIntervalMs);
  }
}

const STREAM_FIELD = /"stream"\s*:\s*true\b/;

/** Whether a body of the inference interface asks for a stream; looked at as text, for it may be long and is the replica's to judge. */
export function asksForStream(body: Buffer): boolean {
  return body.includes('"stream"') && STREAM_FIELD.test(body.toString('latin1'));
}
