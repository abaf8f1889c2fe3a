import { ApiError } from 'capstan/internal';
import type { UpstreamRequest } from '../request-head';

/** A body for an upstream is parsed as a whole. */
const MAX_BODY_BYTES = 8 * 1024 * 1024;
const MAX_HELD_BYTES = 256 * 1024 * 1024;

let numHeld = 0;

/** A body for an upstream. It is read once, also if the request is sent again. */
export class GatheredBody {
  readonly #source: () => UpstreamRequest['body'];
  #bytes: Promise<Buffer> | undefined;

  constructor(source: () => UpstreamRequest['body']) {
    this.#source = source;
  }

  /** Rejects with an ApiError. */
  read(): Promise<Buffer> {
    return (this.#bytes ??= gather(this.#source()));
  }
}

async function gather(body: UpstreamRequest['body']): Promise<Buffer> {
  if (body === undefined) return Buffer.alloc(0);
  if (Buffer.isBuffer(body)) return body;
  const pieces: Buffer[] = [];
  let numBytes = 0;
  try {
    for await (const piece of body) {
      numBytes += piece.length;
      numHeld += piece.length;
      if (numBytes > MAX_BODY_BYTES)
        throw new ApiError(
          'request_too_large',
          `The body is too large: expected at most ${MAX_BODY_BYTES} bytes for a deployment that forwards to an upstream`,
        );
      if (numHeld > MAX_HELD_BYTES)
        throw new ApiError('queue_full', `The queue is full: ${numHeld} bytes of request bodies for upstreams arrive`);
      pieces.push(Buffer.from(piece));
    }
    return Buffer.concat(pieces);
  } finally {
    numHeld -= numBytes;
  }
}
