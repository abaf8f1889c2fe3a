import { ApiError } from 'capstan/internal';
import { HeldBytes, TimedPieces } from '../held-bodies';
import type { UpstreamRequest } from '../request-head';

/** A body for an upstream is parsed as a whole. */
const MAX_BODY_BYTES = 8 * 1024 * 1024;

export interface GatherLimits {
  /** Maximum bytes held at once. One owner can use an eighth of them. */
  totalBytes: number;
  /** How long one body may take. */
  timeoutMs: number;
}

const LIMITS: GatherLimits = { totalBytes: 256 * 1024 * 1024, timeoutMs: 60_000 };
const OWNER_SHARE = 1 / 8;

/** Reads the bodies for upstreams whole. */
export class GatheredBodies {
  readonly #held: HeldBytes;
  readonly #timeoutMs: number;

  constructor({ totalBytes, timeoutMs } = LIMITS) {
    this.#held = new HeldBytes({
      totalBytes,
      ownerBytes: totalBytes * OWNER_SHARE,
      what: 'request bodies for upstreams are arriving',
    });
    this.#timeoutMs = timeoutMs;
  }

  /** The bytes count as held until the body has arrived. Throws ApiError. */
  async read(body: UpstreamRequest['body'], ownerId: string): Promise<Buffer> {
    if (body === undefined) return Buffer.alloc(0);
    if (Buffer.isBuffer(body)) return body;
    const pieces = new TimedPieces(body, this.#timeoutMs, 'all of it');
    const held: Buffer[] = [];
    let numBytes = 0;
    try {
      for (let piece = await pieces.next(); piece !== undefined; piece = await pieces.next()) {
        if (numBytes + piece.length > MAX_BODY_BYTES)
          throw new ApiError(
            'request_too_large',
            `The body is too large: expected at most ${MAX_BODY_BYTES} bytes for a deployment that forwards to an upstream`,
          );
        this.#held.hold(ownerId, piece.length);
        numBytes += piece.length;
        held.push(Buffer.from(piece));
      }
      return Buffer.concat(held);
    } finally {
      this.#held.release(ownerId, numBytes);
      pieces.close();
    }
  }
}

/** A body for an upstream. It is read once, also if the request is sent again. */
export class GatheredBody {
  readonly #read: () => Promise<Buffer>;
  #bytes: Promise<Buffer> | undefined;

  constructor(read: () => Promise<Buffer>) {
    this.#read = read;
  }

  /** Rejects with an ApiError. */
  read(): Promise<Buffer> {
    return (this.#bytes ??= this.#read());
  }
}
