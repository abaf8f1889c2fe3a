import { STATUS_CODES } from 'node:http';
import type {
  HttpRequest as UwsRequest,
  HttpResponse as UwsResponse,
  TemplatedApp,
  us_listen_socket,
} from 'uWebSockets.js';
import { ApiError, renderError } from '../errors';
import { BodyQueue } from './body-queue';
import { bodyTimeout, checkFraming, type Framing, LINGER_MS, refusalHeaders, tooLarge } from './framing';
import { demandFreePort } from './port';
import { checkTls } from './tls';
import { clearSocketPath, removeSocket, withSocketMode } from './unix-socket';
import type {
  HttpReply,
  ReplyHeaders,
  ReplyStream,
  StreamedRequest,
  TlsFiles,
  Transport,
  TransportOptions,
} from './transport';
import type { UwsModule } from './uws-module';

// `close` is missing from the package's types.
type App = TemplatedApp & { close(): void };

const SHARED_PORT = 0;
const EXCLUSIVE_PORT = 1;

/** uWebSockets.js. NOTE: a handler that throws or returns without an abort handler ends the process, hence the order in `answer`. */
export class UwsTransport implements Transport {
  readonly name = 'uws';
  readonly #uws: UwsModule;
  readonly #app: App;
  readonly #options: TransportOptions;
  #listenSocket: us_listen_socket | undefined;
  #socketPath: string | undefined;

  constructor(uws: UwsModule, options: TransportOptions) {
    this.#uws = uws;
    this.#options = options;
    this.#app = (options.tls === undefined ? uws.App() : createTlsApp(uws, options.tls)) as App;
    this.#app.any('/*', (response, request) => answer(response, request, this.#options));
  }

  async listen(host: string, port: number): Promise<number> {
    // NOTE: with the library's own way of not sharing a port, the connections that a server leaves when it dies keep the next one from it for a minute.
    if (port !== 0) await demandFreePort(host, port);
    // The types know no options beside a host.
    type Listen = (
      host: string,
      port: number,
      options: number,
      done: (socket: us_listen_socket | false) => void,
    ) => void;
    return new Promise((resolve, reject) => {
      (this.#app.listen as unknown as Listen).call(
        this.#app,
        host,
        port,
        port === 0 ? EXCLUSIVE_PORT : SHARED_PORT,
        (socket) => {
          if (socket === false)
            return reject(Object.assign(new Error(`cannot listen on ${host}:${port}`), { code: 'EADDRINUSE' }));
          this.#listenSocket = socket;
          resolve(this.#uws.us_socket_local_port(socket));
        },
      );
    });
  }

  async listenUnix(path: string): Promise<void> {
    await clearSocketPath(path);
    this.#listenSocket = await new Promise<us_listen_socket>((resolve, reject) => {
      withSocketMode(path, () =>
        this.#app.listen_unix((socket) => {
          if (socket) resolve(socket);
          else reject(Object.assign(new Error('the folder is not there or may not be written to'), { code: 'EACCES' }));
        }, path),
      );
    });
    this.#socketPath = path;
  }

  stopListening(): void {
    if (this.#socketPath !== undefined) removeSocket(this.#socketPath);
    this.#socketPath = undefined;
    if (this.#listenSocket === undefined) return;
    this.#uws.us_listen_socket_close(this.#listenSocket);
    this.#listenSocket = undefined;
  }

  close(): Promise<void> {
    this.stopListening();
    this.#app.close();
    return Promise.resolve();
  }
}

function createTlsApp(uws: UwsModule, files: TlsFiles): ReturnType<UwsModule['SSLApp']> {
  checkTls(files);
  const { keyFile, certFile, passphrase } = files;
  return uws.SSLApp({
    key_file_name: keyFile,
    cert_file_name: certFile,
    ...(passphrase === undefined ? {} : { passphrase }),
  });
}

function answer(response: UwsResponse, request: UwsRequest, options: TransportOptions): void {
  const exchange = new Exchange(response);
  try {
    const record = toRequest(request, exchange, options);
    options.handler(record, exchange).catch(() => exchange.destroy());
  } catch (error) {
    if (error instanceof ApiError) exchange.refuse(error);
    else exchange.destroy();
  }
}

/** Copies what is only valid now, and takes the body as it comes: uWebSockets.js keeps nothing for later. */
function toRequest(request: UwsRequest, exchange: Exchange, options: TransportOptions): StreamedRequest {
  exchange.isHead = request.getCaseSensitiveMethod() === 'HEAD';
  const headers: [string, string][] = [];
  request.forEach((name, value) => headers.push([name, value.trim()]));
  // Undefined without a question mark, whatever its type says.
  const query: string | undefined = request.getQuery();
  const framing = checkFraming(headers);
  exchange.isChunked = framing.isChunked;
  return {
    method: request.getCaseSensitiveMethod(),
    path: request.getUrl(),
    query: query ?? '',
    headers,
    remoteAddress: exchange.remoteAddress(),
    signal: exchange.signal,
    ...(options.streamsBodies === true
      ? streamedBody(exchange, framing, options)
      : wholeBody(exchange, framing, options)),
  };
}

type Body = Pick<StreamedRequest, 'readBody' | 'bodyPieces'>;

function wholeBody(exchange: Exchange, framing: Framing, options: TransportOptions): Body {
  const body = exchange.receiveBody(framing, options);
  return {
    readBody: () => body,
    bodyPieces: async function* () {
      yield await body;
    },
  };
}

function streamedBody(exchange: Exchange, framing: Framing, options: TransportOptions): Body {
  if (framing.contentLength === 0) return NO_BODY;
  const queue = exchange.streamBody(framing, options);
  return { readBody: () => queue.readAll(), bodyPieces: () => queue.pieces() };
}

const NO_BODY: Body = { readBody: () => Promise.resolve(Buffer.alloc(0)), bodyPieces: async function* () {} };

/** One request and its answer; after an abort or the end no method of the response may be called. */
class Exchange implements HttpReply {
  readonly #response: UwsResponse;
  readonly #controller = new AbortController();
  isHead = false;
  /** The parser skips bytes after the last chunk unchecked, so that nothing more may be read from such a connection. */
  isChunked = false;
  hasStarted = false;
  #isOver = false;
  #isBodyComplete = true;
  #isReceiving = false;
  #onBodyEnd: () => void = () => {};
  #onGone: (() => void)[] = [];
  #queue: BodyQueue | undefined;
  /** More was written than the client has taken. */
  #isBehind = false;
  #isPaused = false;

  constructor(response: UwsResponse) {
    this.#response = response;
    response.onAborted(() => {
      this.#isOver = true;
      this.#controller.abort();
      this.#notifyGone();
    });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  remoteAddress(): string {
    return Buffer.from(this.#response.getRemoteAddressAsText()).toString();
  }

  receiveBody(framing: Framing, { maxBodyBytes, bodyTimeoutMs }: TransportOptions): Promise<Buffer> {
    if (framing.contentLength === 0) return Promise.resolve(Buffer.alloc(0));
    this.#isBodyComplete = false;
    this.#isReceiving = true;
    const body = new Promise<Buffer>((resolve, reject) => {
      let chunks: Buffer[] = [];
      let numBytes = 0;
      const timer = setTimeout(() => fail(bodyTimeout()), bodyTimeoutMs);
      const fail = (error: ApiError) => {
        clearTimeout(timer);
        chunks = [];
        numBytes = Infinity;
        reject(error);
      };
      this.#onGone.push(() => {
        if (this.#isReceiving) fail(leftEarly());
      });
      if ((framing.contentLength ?? 0) > maxBodyBytes) fail(tooLarge(maxBodyBytes));
      this.#response.onData((chunk, isLast) => {
        numBytes += chunk.byteLength;
        if (numBytes > maxBodyBytes) fail(tooLarge(maxBodyBytes));
        // The memory is only lent for the call.
        else if (!this.hasStarted) chunks.push(Buffer.from(chunk.slice(0)));
        if (!isLast) return;
        clearTimeout(timer);
        this.#isBodyComplete = true;
        this.#isReceiving = false;
        this.#onBodyEnd();
        resolve(Buffer.concat(chunks));
      });
    });
    return handled(body);
  }

  /** NOTE: while the client is made to wait nothing is heard of it, its leaving neither. */
  streamBody(framing: Framing, { maxBodyBytes, bodyTimeoutMs }: TransportOptions): BodyQueue {
    this.#isBodyComplete = false;
    this.#isReceiving = true;
    const whenOpen = (work: () => void) => () => {
      if (!this.#isOver) work();
    };
    const queue = (this.#queue = new BodyQueue({
      maxBodyBytes,
      timeoutMs: bodyTimeoutMs,
      pause: whenOpen(() => this.#pause()),
      resume: whenOpen(() => this.#resume()),
    }));
    this.#onGone.push(() => {
      if (this.#isReceiving) queue.fail(leftEarly());
    });
    if ((framing.contentLength ?? 0) > maxBodyBytes) queue.fail(tooLarge(maxBodyBytes));
    this.#response.onData((chunk, isLast) => {
      queue.push(Buffer.from(chunk.slice(0)));
      if (!isLast) return;
      this.#isBodyComplete = true;
      this.#isReceiving = false;
      queue.end();
      this.#onBodyEnd();
    });
    return queue;
  }

  /**
   * NOTE: paused, uWebSockets.js waits for no room to write; and resumed with bytes in its buffer, of which a write does not always tell, it takes up
   * what another connection waited for, perhaps nothing. So once an answer streams the rest of the body is kept here, up to its limit.
   */
  #pause(): void {
    if (this.hasStarted) return;
    this.#isPaused = true;
    this.#response.pause();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#response.resume();
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.hasStarted) return;
    this.hasStarted = true;
    this.#queue?.discard();
    const mustClose = this.#mustClose();
    this.#afterBody(() => whenParsed(mustClose, () => this.#sendNow(status, headers, body, mustClose)));
  }

  /** NOTE: a connection that is closed over unread bytes is reset, and the client may lose the answer; so the rest of a body is read and dropped first, for a while. */
  #afterBody(work: () => void): void {
    if (!this.#isReceiving) return work();
    const timer = setTimeout(work, LINGER_MS);
    const stop = () => clearTimeout(timer);
    this.#onGone.push(stop);
    this.#onBodyEnd = () => {
      stop();
      work();
    };
  }

  #sendNow(status: number, headers: ReplyHeaders, body: string | Uint8Array | null, mustClose: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#response.cork(() => {
      this.#writeHead(status, headers, mustClose);
      if ((this.isHead || body === null) && !mustClose) {
        if (body !== null) this.#response.writeHeader('Content-Length', String(Buffer.byteLength(body)));
        // NOTE: without arguments: with a length the response counts as pending for ever, and none of the two can be left out alone.
        this.#response.endWithoutBody();
      } else {
        this.#response.end(this.isHead || body === null ? '' : body, mustClose);
      }
    });
    // Nobody waits for the rest of a body any more.
    this.#notifyGone();
  }

  refuse(error: ApiError): void {
    // What follows on the connection cannot be told from a body.
    this.#isBodyComplete = false;
    this.send(error.status, refusalHeaders(error), renderError(error));
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.hasStarted = true;
    const response = this.#response;
    if (!this.#isOver) this.#resume();
    const whenOpen = (work: () => void) => {
      if (!this.#isOver) response.cork(work);
    };
    whenOpen(() => this.#writeHead(status, headers, this.isChunked));
    // Set once: every further handler would be added to the first.
    const waiting: (() => void)[] = [];
    const wake = () => {
      this.#isBehind = false;
      waiting.splice(0).forEach((resolve) => resolve());
    };
    this.#onGone.push(wake);
    whenOpen(() =>
      response.onWritable(() => {
        wake();
        return true;
      }),
    );
    return {
      write: (data) => {
        whenOpen(() => {
          this.#isBehind = !response.write(data);
        });
        return !this.#isBehind || this.#isOver;
      },
      drained: () =>
        new Promise((resolve) => {
          if (!this.#isBehind || this.#isOver) resolve();
          else waiting.push(resolve);
        }),
      end: () => {
        this.#queue?.discard();
        this.#afterBody(() => whenParsed(this.isChunked, () => this.#endStream()));
      },
      destroy: () => this.destroy(),
    };
  }

  /**
   * NOTE: without the flag to close: after the first chunk it would write a header into the body. What must not be followed by another request
   * is read no more; the connection ends with its client, who was told, or when it has been idle.
   */
  #endStream(): void {
    // The rest of the body never came: whatever comes next is not to be taken for a request.
    if (!this.#isBodyComplete) return this.destroy();
    if (this.#isOver) return;
    this.#isOver = true;
    this.#response.cork(() => {
      if (this.isChunked) this.#response.pause();
      this.#response.end();
    });
    this.#notifyGone();
  }

  destroy(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#response.close();
    this.#notifyGone();
  }

  #mustClose(): boolean {
    return this.isChunked || !this.#isBodyComplete;
  }

  #writeHead(status: number, headers: ReplyHeaders, mustClose: boolean): void {
    this.#response.writeStatus(`${status} ${STATUS_CODES[status] ?? ''}`);
    for (const [name, value] of Object.entries(mustClose ? { ...headers, Connection: 'close' } : headers)) {
      if (typeof value === 'string') this.#response.writeHeader(name, value);
      else value.forEach((one) => this.#response.writeHeader(name, one));
    }
  }

  #notifyGone(): void {
    this.#onGone.splice(0).forEach((run) => run());
  }
}

function leftEarly(): ApiError {
  return new ApiError('request_timeout', 'The client left before the body was complete');
}

/** Not every handler reads the body. */
function handled(body: Promise<Buffer>): Promise<Buffer> {
  body.catch(() => {});
  return body;
}

/**
 * NOTE: an answer that closes the connection must not be finished while the parser is still at work on what came with the request: the
 * next request in the same bytes would be answered, and would clear the mark to close. While an answer is pending, one closes it.
 */
function whenParsed(mustClose: boolean, work: () => void): void {
  if (mustClose) setImmediate(work);
  else work();
}
