import { ApiError, header, type StreamedRequest } from 'capstan/internal';

/** Memory limits for request bodies of one kind. */
interface BodyLimits {
  totalBytes: number;
  /** The share of it that one owner may use. */
  ownerShare: number;
  /** The largest body. The transport has a limit of 64 MiB itself. */
  maxBytes: number;
}

const FILE_LIMITS: BodyLimits = { totalBytes: 256 * 2 ** 20, ownerShare: 0.5, maxBytes: 64 * 2 ** 20 };
const JSON_LIMITS: BodyLimits = { totalBytes: 64 * 2 ** 20, ownerShare: 0.125, maxBytes: 2 ** 20 };
const FILES_PATH = '/v1/files';

/** Limits the memory of request bodies that are read completely. Uploads leave memory for JSON. */
export class UploadLimits {
  readonly #files = new BodySpace(FILE_LIMITS);
  readonly #json = new BodySpace(JSON_LIMITS);

  /** Runs `handle` with a request whose body is within the limits. Throws ApiError. */
  async within(
    ownerId: string,
    request: StreamedRequest,
    handle: (request: StreamedRequest) => Promise<void>,
  ): Promise<void> {
    if (request.method !== 'POST') return handle(request);
    const space = request.path === FILES_PATH ? this.#files : this.#json;
    const { maxBytes } = space.limits;
    const isChunked = header(request, 'transfer-encoding') !== undefined;
    const numBytes = isChunked ? maxBytes : Number(header(request, 'content-length') ?? 0);
    if (numBytes > maxBytes) throw tooLarge(maxBytes);
    space.add(ownerId, numBytes);
    try {
      await handle(isChunked ? withLimit(request, maxBytes) : request);
    } finally {
      space.remove(ownerId, numBytes);
    }
  }
}

/** The bodies of one kind that are in memory. */
class BodySpace {
  readonly limits: BodyLimits;
  #numBytes = 0;
  readonly #byOwner = new Map<string, number>();

  constructor(limits: BodyLimits) {
    this.limits = limits;
  }

  add(ownerId: string, numBytes: number): void {
    const ofOwner = (this.#byOwner.get(ownerId) ?? 0) + numBytes;
    const { totalBytes, ownerShare } = this.limits;
    if (ofOwner > totalBytes * ownerShare || this.#numBytes + numBytes > totalBytes)
      throw new ApiError(
        'queue_full',
        `The queue is full: request bodies of ${this.#numBytes} bytes are being received`,
      );
    this.#numBytes += numBytes;
    this.#byOwner.set(ownerId, ofOwner);
  }

  remove(ownerId: string, numBytes: number): void {
    this.#numBytes -= numBytes;
    const ofOwner = (this.#byOwner.get(ownerId) ?? 0) - numBytes;
    if (ofOwner > 0) this.#byOwner.set(ownerId, ofOwner);
    else this.#byOwner.delete(ownerId);
  }
}

/** A body of unknown length is refused when it exceeds the limit. */
function withLimit(request: StreamedRequest, maxBytes: number): StreamedRequest {
  const readBody = async (): Promise<Buffer> => {
    const pieces: Buffer[] = [];
    let numBytes = 0;
    for await (const piece of request.bodyPieces()) {
      numBytes += piece.length;
      if (numBytes > maxBytes) throw tooLarge(maxBytes);
      pieces.push(piece);
    }
    return Buffer.concat(pieces);
  };
  return { ...request, readBody };
}

function tooLarge(maxBytes: number): ApiError {
  return new ApiError('request_too_large', `The body is too large: expected at most ${maxBytes} bytes`);
}
