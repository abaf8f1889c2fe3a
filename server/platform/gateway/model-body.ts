import { ApiError, header, mediaType, type StreamedRequest } from 'capstan/internal';
import { type ModelField, ModelFieldReader, missing } from './model-field';

/** Bodies up to this size are buffered before a replica is chosen: they can be retried. */
const GATHERED_BODY_BYTES = 1024 * 1024;
/** Most bytes of longer bodies that are held at once while their field `model` is searched. */
const MAX_HELD_BYTES = 256 * 1024 * 1024;

/** A request body whose field `model` has been found. */
export interface ModelBody {
  readonly field: ModelField;
  /** Returns the body with another `model`. The body of a long request can be read once. */
  withModel(model: string): Buffer | AsyncIterable<Buffer>;
  /** undefined for a body that still arrives. */
  readonly whole: Buffer | undefined;
  /** Drops what has not been read. */
  close(): void;
}

/** Reads bodies up to their field `model`. Official clients send it behind the messages, so it may be at the end. */
export class ModelBodies {
  #numHeld = 0;
  readonly #maxHeldBytes: number;

  constructor(maxHeldBytes = MAX_HELD_BYTES) {
    this.#maxHeldBytes = maxHeldBytes;
  }

  /** Throws ApiError. */
  async read(request: StreamedRequest): Promise<ModelBody> {
    checkJson(request);
    if (mustStream(request)) return this.#readStart(request);
    const whole = await request.readBody();
    const field = new ModelFieldReader().take(whole);
    if (field === undefined) throw missing();
    return { field, whole, withModel: (model) => splice(whole, field, model), close: () => {} };
  }

  async #readStart(request: StreamedRequest): Promise<ModelBody> {
    const pieces = request.bodyPieces()[Symbol.asyncIterator]() as AsyncIterator<Buffer, undefined>;
    const reader = new ModelFieldReader();
    const held: Buffer[] = [];
    let numBytes = 0;
    const release = (): void => {
      this.#numHeld -= numBytes;
      numBytes = 0;
    };
    const close = (): void => {
      release();
      void pieces.return?.();
    };
    try {
      for (;;) {
        const { value, done }: IteratorResult<Buffer, undefined> = await pieces.next();
        if (done === true) throw missing();
        held.push(value);
        this.#hold(value.length);
        numBytes += value.length;
        const field = reader.take(value);
        if (field === undefined) continue;
        const withModel = async function* (model: string): AsyncGenerator<Buffer> {
          yield splice(Buffer.concat(held.splice(0)), field, model);
          release();
          for (let next = await pieces.next(); next.done !== true; next = await pieces.next()) yield next.value;
        };
        return { field, whole: undefined, withModel, close };
      }
    } catch (error) {
      close();
      throw error;
    }
  }

  #hold(numBytes: number): void {
    if (this.#numHeld + numBytes > this.#maxHeldBytes)
      throw new ApiError(
        'queue_full',
        `The queue is full: ${this.#numHeld} bytes of request bodies wait for their field model. Send model first`,
      );
    this.#numHeld += numBytes;
  }
}

/** Whether a body is forwarded while it arrives. */
export function mustStream(request: StreamedRequest): boolean {
  return (
    header(request, 'transfer-encoding') !== undefined ||
    Number(header(request, 'content-length') ?? 0) > GATHERED_BODY_BYTES
  );
}

export function splice(body: Buffer, { value, start, end }: ModelField, model: string): Buffer {
  if (value === model) return body;
  return Buffer.concat([body.subarray(0, start), Buffer.from(JSON.stringify(model)), body.subarray(end)]);
}

function checkJson(request: StreamedRequest): void {
  const type = mediaType(request) ?? 'application/json';
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (type !== 'application/json' || encoding !== 'identity')
    throw new ApiError(
      'unsupported_media_type',
      'Expected a JSON body without Content-Encoding. Send other bodies to the URL of the deployment',
    );
}
