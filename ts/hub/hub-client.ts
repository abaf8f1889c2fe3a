import { CapstanError, showValue } from '../errors';
import type { ByteSource } from '../model/weight-file';
import { explainFailure, explainNetwork, type Purpose } from './hub-errors';
import { EncodingError, type HttpRequest, type HttpResponse } from './http';
import { retryAfterMs, TransientError, withRetries } from './retry';
import type { HubSettings } from './settings';
import type { HubSystem } from './system';

const MAX_REDIRECTS = 5;
const REDIRECTS = [301, 302, 303, 307, 308];
/** Too busy, or a fault of the server. */
const TRANSIENT = [408, 425, 429, 500, 502, 503, 504];
/** The first request shows that there is no network, so it gives up early. */
const MAX_TEXT_ATTEMPTS = 3;
/** The list of a repository of 10,000 files has about 3 MB. */
const MAX_LIST_BYTES = 16 * 2 ** 20;
const MAX_TEXT_BYTES = 2 ** 20;

interface TextRequest {
  url: URL;
  purpose: Purpose;
  signal: AbortSignal;
  what: string;
  maxBytes: number;
}

/** A response of the last host, and the headers of the hub, which may have redirected. */
export interface HubResponse extends HttpResponse {
  /** Headers of the first response that has this one, the hub's before those of a storage host. */
  header: (name: string) => string | undefined;
}

/** Sends requests to the hub: with the token, through redirects, and with its errors explained. */
export class HubClient {
  readonly settings: HubSettings;
  readonly #system: HubSystem;

  constructor(settings: HubSettings, system: HubSystem) {
    this.settings = settings;
    this.#system = system;
  }

  /** Returns a URL of the endpoint. `path` is encoded and starts with a slash. */
  url(path: string, query: Record<string, string> = {}): URL {
    const url = new URL(this.settings.endpoint.href);
    url.pathname = `${url.pathname.replace(/\/$/, '')}${path}`;
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    return url;
  }

  /** Fetches a JSON document of the endpoint. Tries again after faults that may pass. */
  async getJson(url: URL, purpose: Purpose, signal: AbortSignal): Promise<unknown> {
    const what = `cannot read the list of files of ${purpose.repository}`;
    return parseJson(await this.#getText({ url, purpose, signal, what, maxBytes: MAX_LIST_BYTES }), what);
  }

  /** Fetches a small file. Tries again after faults that may pass. */
  getText(url: URL, purpose: Purpose, signal: AbortSignal): Promise<string> {
    const what = `cannot read ${purpose.file} of ${purpose.repository}`;
    return this.#getText({ url, purpose, signal, what, maxBytes: MAX_TEXT_BYTES });
  }

  /** Asks for the headers of a file. Returns the first value of a header on the way to the storage host. */
  getHeaders(url: URL, purpose: Purpose, signal: AbortSignal): Promise<HubResponse['header']> {
    const what = `cannot read the size of ${purpose.file} of ${purpose.repository}`;
    return withRetries({ what, maxAttempts: MAX_TEXT_ATTEMPTS, signal }, this.#system, async () => {
      const response = await this.open(url, purpose, { method: 'HEAD', headers: {}, signal });
      response.body.resume();
      return response.header;
    });
  }

  /**
   * Reads the first `numBytes` of a file in order, and ends the request when `use` has read enough. Tries again after
   * faults that may pass.
   */
  readStart<T>(
    url: URL,
    purpose: Purpose,
    numBytes: number,
    signal: AbortSignal,
    use: (start: ByteSource) => Promise<T>,
  ): Promise<T> {
    const what = `cannot read the header of ${purpose.file} of ${purpose.repository}`;
    return withRetries({ what, maxAttempts: MAX_TEXT_ATTEMPTS, signal }, this.#system, async () => {
      const headers = { Range: `bytes=0-${Math.max(numBytes, 1) - 1}` };
      const { body } = await this.open(url, purpose, { method: 'GET', headers, signal }, [416]);
      try {
        return await use(new SequentialSource(transient(body)));
      } finally {
        body.destroy();
      }
    });
  }

  #getText({ url, purpose, signal, what, maxBytes }: TextRequest): Promise<string> {
    return withRetries({ what, maxAttempts: MAX_TEXT_ATTEMPTS, signal }, this.#system, async () => {
      const { body } = await this.open(url, purpose, { method: 'GET', headers: {}, signal });
      const chunks: Buffer[] = [];
      let size = 0;
      for await (const chunk of transient(body)) {
        size += chunk.length;
        chunks.push(chunk);
        if (size <= maxBytes) continue;
        body.destroy();
        throw new CapstanError('download_failed', `${what}: expected at most ${maxBytes} bytes, got more`);
      }
      return Buffer.concat(chunks).toString('utf8');
    });
  }

  /**
   * Sends one request and follows redirects. Returns a response with status 200 or 206, or with one of `accepted`.
   * @throws TransientError, or CapstanError for a response that explains itself.
   */
  async open(url: URL, purpose: Purpose, request: HttpRequest, accepted: number[] = []): Promise<HubResponse> {
    const { endpoint, isOffline } = this.settings;
    if (isOffline) throw explainFailure(0, {}, purpose, this.settings);
    const hops: HttpResponse[] = [];
    for (let next = url; ;) {
      const response = await this.#send(next, request);
      hops.push(response);
      const { status, headers } = response;
      const header = (name: string): string | undefined => headerOf(hops, name);
      if ([200, 206, ...accepted].includes(status)) return { ...response, header };
      response.body.resume();
      const isOfHub = next.origin === endpoint.origin;
      if (!REDIRECTS.includes(status)) throw this.#failure(status, headers, isOfHub, purpose);
      if (hops.length > MAX_REDIRECTS) throw redirectError(purpose, `more than ${MAX_REDIRECTS} of them`);
      next = this.#redirect(next, headers.location, purpose);
    }
  }

  async #send(url: URL, { method, headers, signal }: HttpRequest): Promise<HttpResponse> {
    const { endpoint, token } = this.settings;
    const authorization: Record<string, string> =
      token !== undefined && url.origin === endpoint.origin ? { Authorization: `Bearer ${token}` } : {};
    const all = { 'User-Agent': 'capstan', 'Accept-Encoding': 'identity', ...headers, ...authorization };
    try {
      return await this.#system.send(url, { method, headers: all, signal });
    } catch (error) {
      if (error instanceof CapstanError || signal.aborted) throw error;
      throw new TransientError(explainNetwork(url, error), { cause: error });
    }
  }

  #failure(status: number, headers: HttpResponse['headers'], isOfHub: boolean, purpose: Purpose): Error {
    // A storage host refuses links that have expired. The hub makes a new one.
    const isExpired = !isOfHub && status >= 400 && status < 500;
    if (!isExpired && !TRANSIENT.includes(status)) return explainFailure(status, headers, purpose, this.settings);
    const wait = retryAfterMs(headers['retry-after'], this.#system.now());
    const name = isOfHub ? this.settings.endpoint.host : 'the storage host';
    return new TransientError(`${name} answered with status ${status}`, { retryAfterMs: wait });
  }

  #redirect(from: URL, location: string | undefined, purpose: Purpose): URL {
    const url = location !== undefined && URL.canParse(location, from.href) ? new URL(location, from.href) : undefined;
    if (url === undefined) throw redirectError(purpose, 'one without an address');
    const isAllowed =
      url.protocol === 'https:' || (url.protocol === 'http:' && this.settings.endpoint.protocol === 'http:');
    if (!isAllowed) throw redirectError(purpose, `one to ${showValue(url.protocol)}, which is not https`);
    url.username = '';
    url.password = '';
    return url;
  }
}

/** Bytes that arrive in order. */
class SequentialSource implements ByteSource {
  readonly #chunks: AsyncIterator<Buffer, undefined>;
  #chunk: Buffer = Buffer.alloc(0);
  /** Position of the first byte of the chunk. */
  #start = 0;

  constructor(chunks: AsyncIterable<Buffer>) {
    this.#chunks = chunks[Symbol.asyncIterator]() as AsyncIterator<Buffer, undefined>;
  }

  /** @param position Not before the end of what was read. */
  async read(into: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }> {
    while (position >= this.#start + this.#chunk.length) {
      const { value: next } = await this.#chunks.next();
      if (next === undefined) return { bytesRead: 0 };
      this.#start += this.#chunk.length;
      this.#chunk = next;
    }
    const from = position - this.#start;
    const bytesRead = Math.min(length, this.#chunk.length - from);
    into.set(this.#chunk.subarray(from, from + bytesRead), offset);
    return { bytesRead };
  }
}

function redirectError({ repository, file }: Purpose, received: string): CapstanError {
  const what = file === undefined ? repository : `${file} of ${repository}`;
  return new CapstanError('download_failed', `${what}: expected a redirect to an https address, got ${received}`);
}

function headerOf(hops: readonly HttpResponse[], name: string): string | undefined {
  for (const { headers } of hops) {
    const value = headers[name];
    if (typeof value === 'string') return value;
  }
  return undefined;
}

/** Turns the end of a cut connection, and a wrong encoding, into a TransientError. */
export async function* transient(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  try {
    yield* body;
  } catch (cause) {
    throw new TransientError(cause instanceof EncodingError ? cause.message : 'the connection was cut', { cause });
  }
}

function parseJson(text: string, what: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    throw new CapstanError('download_failed', `${what}: expected JSON, got a text that does not parse`, { cause });
  }
}
