import { ApiError } from 'capstan/internal';

/** Bodies of one request, and of all requests at once. */
const MAX_BODY_BYTES = 64 * 1024 * 1024;
const MAX_TOTAL_BYTES = 256 * 1024 * 1024;

/** Reads bodies whole that are otherwise forwarded while they arrive. */
export class WholeBodies {
  #numHeld = 0;

  /** Throws ApiError. The bytes count as held until the body has arrived. */
  async read(pieces: AsyncIterable<Buffer> | Buffer): Promise<Buffer> {
    if (Buffer.isBuffer(pieces)) return pieces;
    const held: Buffer[] = [];
    let numBytes = 0;
    try {
      for await (const piece of pieces) {
        numBytes += piece.length;
        this.#numHeld += piece.length;
        held.push(piece);
        if (numBytes > MAX_BODY_BYTES)
          throw new ApiError(
            'request_too_large',
            `The body is too large: a budget applies, so at most ${MAX_BODY_BYTES} bytes are read`,
          );
        if (this.#numHeld > MAX_TOTAL_BYTES)
          throw new ApiError('queue_full', `The queue is full: ${this.#numHeld} bytes of request bodies are arriving`);
      }
      return Buffer.concat(held);
    } finally {
      this.#numHeld -= numBytes;
    }
  }
}
