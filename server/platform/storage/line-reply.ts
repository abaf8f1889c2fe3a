import type { HttpReply, ReplyHeaders, ReplyStream } from 'capstan/internal';
import { objectOf } from './kept-reply';

/** Longer responses are not kept as results. */
export const MAX_RESULT_BYTES = 16 * 2 ** 20;

/** The response to a line of a batch. */
export class LineReply implements HttpReply {
  hasStarted = false;
  status = 0;
  /** From `Retry-After`. */
  retryAfterMs: number | undefined;
  #pieces: Buffer[] = [];
  #numBytes = 0;
  #isComplete = false;

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    this.#begin(status, headers);
    if (body !== null) this.#take(body);
    this.#isComplete = true;
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#begin(status, headers);
    return {
      write: (data) => this.#take(data),
      drained: () => Promise.resolve(),
      end: () => {
        this.#isComplete = true;
      },
      destroy: () => {},
    };
  }

  /** Returns the JSON object that was received. Undefined for anything else, such as half of it. */
  body(): string | undefined {
    if (!this.#isComplete || this.#numBytes > MAX_RESULT_BYTES) return undefined;
    const bytes = Buffer.concat(this.#pieces);
    return objectOf(bytes) === undefined ? undefined : bytes.toString();
  }

  #begin(status: number, headers: ReplyHeaders): void {
    this.hasStarted = true;
    this.status = status;
    const [, value] = Object.entries(headers).find(([name]) => name.toLowerCase() === 'retry-after') ?? [];
    if (typeof value === 'string' && /^\d{1,6}$/.test(value)) this.retryAfterMs = Number(value) * 1000;
  }

  #take(data: string | Uint8Array): boolean {
    this.#numBytes += Buffer.byteLength(data);
    if (this.#numBytes > MAX_RESULT_BYTES) this.#pieces = [];
    else this.#pieces.push(Buffer.from(data));
    return true;
  }
}
