import http, { type IncomingHttpHeaders } from 'node:http';
import https from 'node:https';
import { type Duplex, PassThrough, type Readable, type Transform } from 'node:stream';
import { createBrotliDecompress, createUnzip } from 'node:zlib';
import { bareHost, openTunnel, proxyFor, proxyHeaders } from './proxy';

export interface HttpRequest {
  method: 'GET' | 'HEAD';
  headers: Record<string, string>;
  signal: AbortSignal;
}

export interface HttpResponse {
  status: number;
  headers: IncomingHttpHeaders;
  body: HttpBody;
}

/** The caller reads it to its end, or calls one of the methods. It fails at its end if the connection was cut. */
export interface HttpBody extends AsyncIterable<Buffer> {
  /** Ignores the rest, and keeps the connection. */
  resume: () => unknown;
  /** Cuts the connection. */
  destroy: () => unknown;
}

/** Sends one request. Does not follow redirects. Rejects with a network error. */
export type SendHttp = (url: URL, request: HttpRequest) => Promise<HttpResponse>;

/** A connection without data for this long is cut. */
const IDLE_TIMEOUT_MS = 30_000;

/** Returns a client that keeps connections open, and uses the proxies of the environment. */
export function createHttp(env: NodeJS.ProcessEnv, idleMs = IDLE_TIMEOUT_MS): { send: SendHttp; close: () => void } {
  const agents = { 'http:': new http.Agent({ keepAlive: true }), 'https:': new https.Agent({ keepAlive: true }) };
  const send: SendHttp = async (url, request) => {
    const proxy = proxyFor(url, env);
    const agentOf = ({ protocol }: URL): http.Agent => agents[protocol as keyof typeof agents];
    if (proxy === undefined) return start(url, { ...addressOf(url), agent: agentOf(url) }, request, idleMs);
    // A proxy forwards plain requests, and opens a tunnel for TLS.
    if (url.protocol === 'http:') {
      const headers = { ...request.headers, Host: url.host, ...proxyHeaders(proxy) };
      const target = { ...addressOf(proxy), path: withoutUser(url), agent: agentOf(proxy) };
      return start(proxy, target, { ...request, headers }, idleMs);
    }
    const socket = await openTunnel(url, proxy, request.signal, idleMs);
    return start(url, { ...addressOf(url), createConnection: () => socket }, request, idleMs);
  };
  return {
    send,
    close: () => {
      for (const agent of Object.values(agents)) agent.destroy();
    },
  };
}

type Target = Pick<http.RequestOptions, 'host' | 'port' | 'path'> & {
  agent?: http.Agent;
  createConnection?: () => Duplex;
};

function start(
  { protocol }: URL,
  target: Target,
  { method, headers, signal }: HttpRequest,
  idleMs: number,
): Promise<HttpResponse> {
  return new Promise((done, fail) => {
    const { request } = protocol === 'https:' ? https : http;
    // The option also limits name lookup and connecting; `setTimeout` starts after them.
    const options = { ...target, method, headers, signal, timeout: idleMs } as http.RequestOptions;
    const sent = request(options, (response) => {
      done({
        status: response.statusCode ?? 0,
        headers: response.headers,
        body: new ReceivedBody(response, decoderOf(response, method)),
      });
    });
    sent.setTimeout(idleMs, () => sent.destroy(new Error(`no data for ${idleMs / 1000} s`)));
    sent.on('error', fail);
    sent.end();
  });
}

/** The bytes of a response are not what its header `Content-Encoding` says. */
export class EncodingError extends Error {}

const WITHOUT_BODY = [204, 304];

/** Some proxies compress, although no request asks for it. */
function decoderOf({ headers, statusCode = 0 }: http.IncomingMessage, method: string): Transform {
  // An empty text is not valid compressed data.
  if (method === 'HEAD' || WITHOUT_BODY.includes(statusCode)) return new PassThrough();
  switch (headers['content-encoding']?.trim().toLowerCase()) {
    case 'gzip':
    case 'x-gzip':
    case 'deflate':
      return createUnzip();
    case 'br':
      return createBrotliDecompress();
    default:
      return new PassThrough();
  }
}

/** Keeps what was received before a cut. A stream of Node drops it with the error. */
class ReceivedBody implements HttpBody {
  readonly #response: Readable;
  readonly #received: Transform;
  #failure: Error | undefined;

  /** @param decoder Returns the decoded bytes. */
  constructor(response: Readable, decoder: Transform) {
    this.#response = response;
    this.#received = decoder;
    decoder.on('error', (cause) => {
      this.#failure ??= new EncodingError('the response has a content encoding that cannot be decoded', { cause });
      response.destroy();
    });
    response.pipe(decoder);
    response.on('error', (error) => {
      this.#failure ??= error;
      this.#received.end();
    });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    try {
      yield* this.#received as AsyncIterable<Buffer>;
    } catch (error) {
      throw this.#failure ?? error;
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  resume(): void {
    this.#response.unpipe(this.#received);
    this.#response.resume();
    this.#received.destroy();
  }

  destroy(): void {
    this.#response.destroy();
    this.#received.destroy();
  }
}

function addressOf(url: URL): Pick<http.RequestOptions, 'host' | 'port' | 'path'> {
  return { host: bareHost(url), port: url.port === '' ? undefined : url.port, path: url.pathname + url.search };
}

function withoutUser(url: URL): string {
  return url.origin + url.pathname + url.search;
}
