import { ApiError, header, type StreamedRequest } from 'capstan/internal';

/** Most bytes of request bodies that are in memory at once. One owner can use half of them. */
const TOTAL_BYTES = 256 * 2 ** 20;
const OWNER_SHARE = 0.5;
/** The largest body of each kind. The transport has a limit of 64 MiB itself. */
const MAX_FILE_BYTES = 64 * 2 ** 20;
const MAX_JSON_BYTES = 2 ** 20;
const FILES_PATH = '/v1/files';

/** Bounds the memory of request bodies that are read as a whole: above all uploads. */
export class UploadLimits {
  #numBytes = 0;
  readonly #byOwner = new Map<string, number>();

  /** Runs `handle` with a request whose body is within the limits. Throws ApiError. */
  async within(
    ownerId: string,
    request: StreamedRequest,
    handle: (request: StreamedRequest) => Promise<void>,
  ): Promise<void> {
    if (request.method !== 'POST') return handle(request);
    const maxBytes = request.path === FILES_PATH ? MAX_FILE_BYTES : MAX_JSON_BYTES;
    const isChunked = header(request, 'transfer-encoding') !== undefined;
    const numBytes = isChunked ? maxBytes : Number(header(request, 'content-length') ?? 0);
    if (numBytes > maxBytes) throw tooLarge(maxBytes);
    this.#add(ownerId, numBytes);
    try {
      await handle(isChunked ? withLimit(request, maxBytes) : request);
    } finally {
      this.#remove(ownerId, numBytes);
    }
  }

  #add(ownerId: string, numBytes: number): void {
    const ofOwner = (this.#byOwner.get(ownerId) ?? 0) + numBytes;
    if (ofOwner > TOTAL_BYTES * OWNER_SHARE || this.#numBytes + numBytes > TOTAL_BYTES)
      throw new ApiError('queue_full', `The queue is full: ${this.#numBytes} bytes of uploads are in progress`);
    this.#numBytes += numBytes;
    this.#byOwner.set(ownerId, ofOwner);
  }

  #remove(ownerId: string, numBytes: number): void {
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
