import {
  ApiError,
  type ApiErrorCode,
  type ConvertedResponse,
  errorMessageIn,
  errorStyleOf,
  isLightReply,
  type ReplicaUsage,
  toApiError,
} from 'capstan/internal';
import { rawHeader } from '../headers';
import { gather } from '../relay';
import { ResponseBody } from '../response-body';
import type { UpstreamResponse } from '../upstream';
import { UpstreamError } from '../upstream-error';
import { countEvents, usageOf, type UsageReader } from '../usage-reader';
import { PassedJson, PassedStream } from './passed-response';
import type { UpstreamRoute } from './routes';
import type { ResponseMemory } from './response-memory';
import { type Spent, UnusableResponse } from './unusable-response';
import { upstreamReturned } from './upstream-headers';

/** A converted response, and an error, are read as a whole. */
const MAX_WHOLE_BYTES = 16 * 1024 * 1024;
const MAX_ERROR_BYTES = 64 * 1024;
/** The key of the deployment, or its account, is refused. The client's own key is a different one. */
const REFUSALS = new Set([401, 402, 403, 407]);
const EVENT_STREAM = /^text\/event-stream\b/i;
const JSON_TYPE = /^application\/(?:[\w.-]+\+)?json\b/i;

export interface ReceiveOptions {
  route: UpstreamRoute;
  /** Path of the client's request. */
  path: string;
  requestId: string;
  secret: string;
  isStream: boolean;
  /** undefined: the client and the upstream have the same interface. */
  converted: ConvertedResponse | undefined;
  shownModel: string | undefined;
  stripsUsage: boolean;
  idleTimeoutMs: number;
  /** Of a converted response. */
  memory: ResponseMemory;
}

/** A response for the client, and what reads its usage. */
export interface Received {
  response: UpstreamResponse;
  reader: UsageReader | undefined;
}

/** Checks and converts the response of an upstream. Throws ApiError or UpstreamError for one that is of no use. */
export async function receive(response: UpstreamResponse, options: ReceiveOptions): Promise<Received> {
  const { status, rawHeaders, body } = response;
  if (REFUSALS.has(status))
    throw unusable(response, `The upstream refused the key of this deployment (status ${status})`);
  if (status < 200 || (status >= 300 && status < 400))
    throw unusable(response, `The upstream responded with status ${status}. Redirects are not followed`);
  if (status >= 400) return { response: await readError(response, options), reader: undefined };
  const type = rawHeader(rawHeaders, 'content-type') ?? '';
  const isEvents = EVENT_STREAM.test(type);
  if (rawHeader(rawHeaders, 'content-encoding') !== undefined)
    throw unread(response, 'The upstream responded with a compressed body, which the gateway did not accept');
  if (!isEvents && !JSON_TYPE.test(type))
    throw unusable(response, `The upstream responded with ${show(type)}, expected JSON or an event stream`);
  const headers = upstreamReturned(rawHeaders);
  const { converted, memory, isStream } = options;
  if (converted === undefined)
    return {
      response: { ...response, rawHeaders: headers },
      reader: isEvents ? new PassedStream(options) : new PassedJson(options),
    };
  const wanted = isStream ? 'a stream' : 'JSON';
  const mismatch = `The upstream responded with ${show(type)}, but the request asks for ${wanted}`;
  if (isEvents) {
    if (!isStream) throw unread(response, mismatch);
    return { response: { ...response, rawHeaders: headers }, reader: new ConvertedStream(converted, memory) };
  }
  try {
    const whole = await readPaid(body, options);
    if (isStream) throw new UnusableResponse(mismatch, spentOn(whole));
    const json = convertWhole(converted, whole);
    hold(memory, Buffer.byteLength(json), () => spentOn(whole));
    return {
      response: jsonResponse({ ...response, rawHeaders: headers }, json),
      reader: new KnownUsage(converted, memory),
    };
  } catch (error) {
    memory.resize(0);
    throw error;
  }
}

/** Reads a response that the upstream charges for. */
async function readPaid(body: ResponseBody, { idleTimeoutMs, memory }: ReceiveOptions): Promise<Buffer> {
  let numBytes = 0;
  const onPiece = (length: number): void => {
    numBytes += length;
    if (numBytes > MAX_WHOLE_BYTES)
      throw new UnusableResponse(`The upstream responded with more than ${MAX_WHOLE_BYTES} bytes`, { numBytes });
    hold(memory, numBytes, () => ({ numBytes }));
  };
  return readWhole(body, onPiece, idleTimeoutMs);
}

function hold(memory: ResponseMemory, numBytes: number, spent: () => Spent): void {
  try {
    memory.resize(numBytes);
  } catch (error) {
    const { code, message } = toApiError(error);
    throw new UnusableResponse(message, spent(), { code, cause: error });
  }
}

function convertWhole(converted: ConvertedResponse, bytes: Buffer): string {
  const value = parsedOrNone(bytes.toString());
  if (value === undefined)
    throw new UnusableResponse('The upstream responded with JSON that is invalid or too complex', spentOn(bytes));
  try {
    return JSON.stringify(converted.whole(value));
  } catch (error) {
    throw new UnusableResponse(`The upstream failed: ${(error as Error).message}`, spentOn(bytes), { cause: error });
  }
}

function spentOn(bytes: Buffer): Spent {
  const value = parsedOrNone(bytes.toString()) as { usage?: unknown } | null | undefined;
  const counts = value?.usage;
  const usage = typeof counts === 'object' && counts !== null ? usageOf(counts as Record<string, unknown>) : undefined;
  return { usage, numBytes: bytes.length };
}

/** Returns the error in the client's interface. The key of the deployment is removed from it. */
async function readError(response: UpstreamResponse, options: ReceiveOptions): Promise<UpstreamResponse> {
  const { status, rawHeaders } = response;
  const { path, requestId, secret, converted, idleTimeoutMs } = options;
  const text = (await readWhole(response.body, limitOf(MAX_ERROR_BYTES), idleTimeoutMs)).toString();
  const value = withoutSecret(parsedOrNone(text), secret);
  const message = errorMessageIn(value);
  const isOwnForm = converted === undefined && message !== undefined;
  const error = new ApiError(codeOf(status), message ?? `The upstream responded with status ${status}`);
  const json = isOwnForm ? JSON.stringify(value) : errorStyleOf(path).body(error, requestId);
  return jsonResponse({ ...response, rawHeaders: upstreamReturned(rawHeaders) }, json);
}

/** Servers escape different characters of a text. */
function withoutSecret(value: unknown, secret: string): unknown {
  if (value === undefined || secret === '') return value;
  return parsedOrNone(JSON.stringify(value).replaceAll(JSON.stringify(secret).slice(1, -1), '***'));
}

/** Returns a response with another content. */
export function jsonResponse(response: Omit<UpstreamResponse, 'body'>, json: string): UpstreamResponse {
  const { rawHeaders } = response;
  const kept = rawHeaders.filter((_, i) => !/^content-(?:type|length)$/i.test(rawHeaders[i - (i % 2)]));
  const headers = [...kept, 'Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(json))];
  return { ...response, rawHeaders: headers, body: bodyOf(json) };
}

/** The code whose status is nearest. */
function codeOf(status: number): ApiErrorCode {
  const known: Readonly<Record<number, ApiErrorCode>> = {
    404: 'model_not_found',
    408: 'request_timeout',
    413: 'request_too_large',
    415: 'unsupported_media_type',
    429: 'rate_limit_exceeded',
    503: 'deployment_not_ready',
    504: 'upstream_timeout',
    529: 'deployment_not_ready',
  };
  return known[status] ?? (status < 500 ? 'invalid_value' : 'upstream_unavailable');
}

class ConvertedStream implements UsageReader {
  readonly #converted: ConvertedResponse;
  readonly #memory: ResponseMemory;
  #isOver = false;
  numEvents = 0;

  constructor(converted: ConvertedResponse, memory: ResponseMemory) {
    this.#converted = converted;
    this.#memory = memory;
  }

  get usage(): ReplicaUsage | undefined {
    return this.#converted.usage;
  }

  get isPartial(): boolean {
    return !this.#isOver || this.hasFailed;
  }

  get hasFailed(): boolean {
    return this.#converted.failure !== undefined;
  }

  take(piece: Buffer): Buffer {
    this.numEvents += countEvents(piece);
    let text = this.#converted.take(piece);
    try {
      this.#memory.resize(this.#converted.numHeldBytes);
    } catch (error) {
      text += this.#converted.fail(toApiError(error));
    }
    return Buffer.from(text);
  }

  finish(): Buffer {
    this.#isOver = true;
    return Buffer.from(this.#converted.finish());
  }

  close(): void {
    this.#memory.resize(0);
  }
}

/** The usage of a response that has been read. It holds its memory until its client has received it. */
class KnownUsage implements UsageReader {
  readonly usage: ReplicaUsage | undefined;
  readonly #memory: ResponseMemory;

  constructor({ usage }: ConvertedResponse, memory: ResponseMemory) {
    this.usage = usage;
    this.#memory = memory;
  }

  take(piece: Buffer): Buffer {
    return piece;
  }

  finish(): Buffer {
    return Buffer.alloc(0);
  }

  close(): void {
    this.#memory.resize(0);
  }
}

/** Of a response that the upstream does not charge for. */
function unusable({ body }: UpstreamResponse, message: string): ApiError {
  body.destroy();
  return new ApiError('upstream_unavailable', message);
}

/** Of a response that the upstream may charge for, and that cannot be read. */
function unread({ body }: UpstreamResponse, message: string): ApiError {
  body.destroy();
  return new UnusableResponse(message, { numBytes: 0 });
}

function limitOf(maxBytes: number): (length: number) => void {
  let numBytes = 0;
  return (length) => {
    numBytes += length;
    if (numBytes > maxBytes)
      throw new UpstreamError('reset', true, false, `the response is larger than ${maxBytes} bytes`);
  };
}

/** @param onPiece Called with the size of each piece. If it throws, the body is cut. */
function readWhole(body: ResponseBody, onPiece: (length: number) => void, idleTimeoutMs: number): Promise<Buffer> {
  const reader: UsageReader = {
    usage: undefined,
    take: (piece) => {
      onPiece(piece.length);
      return piece;
    },
    finish: () => Buffer.alloc(0),
  };
  return gather(body, { usage: reader, idleTimeoutMs, onFirstByte: () => {} });
}

function parsedOrNone(text: string): unknown {
  try {
    return isLightReply(text) ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

/** Returns a body that has arrived. */
function bodyOf(text: string): ResponseBody {
  const nothing = (): void => {};
  const body = new ResponseBody({ pause: nothing, resume: nothing, destroy: nothing });
  body.push(Buffer.from(text));
  body.end();
  return body;
}

function show(type: string): string {
  return type === '' ? 'no content type' : type.slice(0, 100);
}
