import { ApiError, header, mediaType, type StreamedRequest } from 'capstan/internal';
import { HeldBytes, TimedPieces } from './held-bodies';
import { type ModelField, ModelFieldReader, missing } from './model-field';

/** Bodies up to this size are buffered before a replica is chosen: they can be retried. */
const GATHERED_BODY_BYTES = 1024 * 1024;
/** Limits of the bodies whose field `model` is searched. */
export interface SearchLimits {
  /** Maximum bytes held at once. One owner can use a sixteenth of them. */
  totalBytes: number;
  /** How long the search in one body may take. */
  timeoutMs: number;
}

const SEARCH_LIMITS: SearchLimits = { totalBytes: 256 * 1024 * 1024, timeoutMs: 60_000 };
const OWNER_SHARE = 1 / 16;

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
  readonly #limits: SearchLimits;
  readonly #held: HeldBytes;

  constructor(limits = SEARCH_LIMITS) {
    this.#limits = limits;
    this.#held = new HeldBytes({
      totalBytes: limits.totalBytes,
      ownerBytes: limits.totalBytes * OWNER_SHARE,
      what: 'request bodies wait for their field model. Send model first',
    });
  }

  /** Throws ApiError. */
  async read(request: StreamedRequest, ownerId: string): Promise<ModelBody> {
    checkJson(request);
    const isWhole = !mustStream(request);
    const pieces = new TimedPieces(request.bodyPieces(), this.#limits.timeoutMs, 'its field model');
    const reader = new ModelFieldReader();
    const held: Buffer[] = [];
    let field: ModelField | undefined;
    let numBytes = 0;
    const release = (): void => {
      this.#held.release(ownerId, numBytes);
      numBytes = 0;
    };
    const close = (): void => {
      held.length = 0;
      release();
      pieces.close();
    };
    try {
      while (field === undefined || isWhole) {
        const value = await pieces.next();
        if (value === undefined) break;
        this.#held.hold(ownerId, value.length);
        numBytes += value.length;
        held.push(value);
        field = reader.take(value);
      }
      if (field === undefined) throw missing();
    } catch (error) {
      close();
      throw error;
    }
    const found = field;
    pieces.stopClock();
    if (isWhole) {
      const whole = held.length === 1 ? held[0] : Buffer.concat(held);
      close();
      return wholeBody(whole, found);
    }
    const withModel = async function* (model: string): AsyncGenerator<Buffer> {
      yield splice(Buffer.concat(held.splice(0)), found, model);
      release();
      for (let next = await pieces.next(); next !== undefined; next = await pieces.next()) {
        reader.take(next);
        yield next;
      }
    };
    return { field: found, whole: undefined, withModel, close };
  }
}

/** A body that has arrived completely. */
export function wholeBody(whole: Buffer, field: ModelField): ModelBody {
  return { field, whole, withModel: (model) => splice(whole, field, model), close: () => {} };
}

/** Whether a body is forwarded while it arrives. */
export function mustStream(request: StreamedRequest): boolean {
  return (
    header(request, 'transfer-encoding') !== undefined ||
    Number(header(request, 'content-length') ?? 0) > GATHERED_BODY_BYTES
  );
}

function splice(body: Buffer, { value, start, end }: ModelField, model: string): Buffer {
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
