import { ApiError } from 'capstan/internal';
import { HeldBytes, TimedPieces } from './held-bodies';

export interface WholeBodyLimits {
  /** Maximum size of a body, and of all bodies of one owner that are arriving. */
  bodyBytes: number;
  /** Of all bodies that are arriving. */
  totalBytes: number;
  /** How long one body may take to arrive. */
  timeoutMs: number;
}

const LIMITS: WholeBodyLimits = { bodyBytes: 64 * 1024 * 1024, totalBytes: 256 * 1024 * 1024, timeoutMs: 60_000 };

/** Reads bodies whole that are otherwise forwarded while they arrive. */
export class WholeBodies {
  readonly #limits: WholeBodyLimits;
  readonly #held: HeldBytes;

  constructor(limits = LIMITS) {
    this.#limits = limits;
    const { totalBytes, bodyBytes } = limits;
    this.#held = new HeldBytes({
      totalBytes,
      ownerBytes: bodyBytes,
      what: 'request bodies are arriving, because a budget applies. Try again later',
    });
  }

  /** Throws ApiError. The bytes count as held until the body has arrived. */
  async read(body: AsyncIterable<Buffer> | Buffer, ownerId: string): Promise<Buffer> {
    if (Buffer.isBuffer(body)) return body;
    const { bodyBytes, timeoutMs } = this.#limits;
    const pieces = new TimedPieces(body, timeoutMs, 'all of it, because a budget applies,');
    const held: Buffer[] = [];
    let numBytes = 0;
    try {
      for (let piece = await pieces.next(); piece !== undefined; piece = await pieces.next()) {
        if (numBytes + piece.length > bodyBytes)
          throw new ApiError(
            'request_too_large',
            `The body is too large: a budget applies, so at most ${bodyBytes} bytes are read`,
          );
        this.#held.hold(ownerId, piece.length);
        numBytes += piece.length;
        held.push(piece);
      }
      return Buffer.concat(held);
    } finally {
      this.#held.release(ownerId, numBytes);
      pieces.close();
    }
  }
}
