import { STATUS_CODES } from 'node:http';
import type {
  HttpRequest as UwsRequest,
  HttpResponse as UwsResponse,
  TemplatedApp,
  us_listen_socket,
} from 'uWebSockets.js';
import { trimBlanks } from '../base/blanks';
import { ApiError, renderError } from '../base/errors';
import { BodyQueue } from './body-queue';
import {
  bodyTimeout,
  checkFraming,
  clientDisconnected,
  DEFAULT_LINGER_MS,
  type Framing,
  refusalHeaders,
  tooLarge,
} from './framing';
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

// The types of the package lack `close`.
type App = TemplatedApp & { close(): void };

/**
 * uWebSockets.js closes an idle connection after 8 to 12 s and has no option for that. The announced time is lower: a
 * client must not send a request on a connection that is closing.
 */
const KEEP_ALIVE = 'timeout=6';
const SHARED_PORT = 0;
const EXCLUSIVE_PORT = 1;

/**
 * The transport over uWebSockets.js. NOTE: a handler that throws, or that returns before it has set an abort handler,
 * ends the process. So `handle` sets the abort handler first.
 */
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
    this.#app.any('/*', (response, request) => handle(response, request, this.#options));
  }

  async listen(host: string, port: number): Promise<number> {
    // NOTE: with the library's exclusive mode, connections of a server that died would block the port for a minute.
    if (port !== 0) await demandFreePort(host, port);
    // The types of the package lack the overload with a host and options.
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
          else reject(Object.assign(new Error('the folder does not exist or is not writable'), { code: 'EACCES' }));
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

function handle(response: UwsResponse, request: UwsRequest, options: TransportOptions): void {
  const exchange = new Exchange(response, options.lingerMs);
  try {
    const record = toRequest(request, exchange, options);
    options.handler(record, exchange).catch(() => exchange.destroy());
  } catch (error) {
    if (error instanceof ApiError) exchange.refuse(error);
    else exchange.destroy();
  }
}

/**
 * Copies everything that is valid only during the call, and starts to receive the body, which uWebSockets.js does not
 * buffer.
 */
function toRequest(request: UwsRequest, exchange: Exchange, options: TransportOptions): StreamedRequest {
  exchange.isHead = request.getCaseSensitiveMethod() === 'HEAD';
  const headers: [string, string][] = [];
  request.forEach((name, value) => headers.push([name, trimBlanks(value)]));
  // Undefined without a question mark, although its type is string.
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

/**
 * One request and its response. NOTE: after an abort or the end, no method of the uWebSockets.js response may be
 * called.
 */
class Exchange implements HttpReply {
  readonly #response: UwsResponse;
  readonly #lingerMs: number;
  readonly #controller = new AbortController();
  isHead = false;
  /**
   * NOTE: the parser skips bytes after the last chunk unchecked, so no further request may be read from such a
   * connection.
   */
  isChunked = false;
  hasStarted = false;
  #isOver = false;
  #isBodyComplete = true;
  #isReceiving = false;
  #onBodyEnd: () => void = () => {};
  #onClose: (() => void)[] = [];
  #queue: BodyQueue | undefined;
  /** Whether written data waits for the client. */
  #isBehind = false;
  #isPaused = false;

  constructor(response: UwsResponse, lingerMs = DEFAULT_LINGER_MS) {
    this.#response = response;
    this.#lingerMs = lingerMs;
    response.onAborted(() => {
      this.#isOver = true;
      this.#controller.abort();
      this.#notifyClosed();
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
      this.#onClose.push(() => {
        if (this.#isReceiving) fail(clientDisconnected());
      });
      if ((framing.contentLength ?? 0) > maxBodyBytes) fail(tooLarge(maxBodyBytes));
      this.#response.onData((chunk, isLast) => {
        numBytes += chunk.byteLength;
        if (numBytes > maxBodyBytes) fail(tooLarge(maxBodyBytes));
        // The memory is valid only during the call.
        else if (!this.hasStarted) chunks.push(Buffer.from(chunk.slice(0)));
        if (!isLast) return;
        clearTimeout(timer);
        this.#isBodyComplete = true;
        this.#isReceiving = false;
        this.#onBodyEnd();
        resolve(Buffer.concat(chunks));
      });
    });
    // Handlers may ignore the body. Then its failure is not an unhandled rejection.
    body.catch(() => {});
    return body;
  }

  /** NOTE: while reading is paused, uWebSockets.js reports no events of the client, not even that it disconnected. */
  streamBody(framing: Framing, { maxBodyBytes, bodyTimeoutMs }: TransportOptions): BodyQueue {
    this.#isBodyComplete = false;
    this.#isReceiving = true;
    const unlessOver = (work: () => void) => () => {
      if (!this.#isOver) work();
    };
    const queue = (this.#queue = new BodyQueue({
      maxBodyBytes,
      timeoutMs: bodyTimeoutMs,
      pause: unlessOver(() => this.#pause()),
      resume: unlessOver(() => this.#resume()),
    }));
    this.#onClose.push(() => {
      if (this.#isReceiving) queue.fail(clientDisconnected());
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
   * NOTE: a paused connection gets no writable events, and resuming one with unsent bytes gives it the events of
   * another connection, or none. A write does not always report that bytes are unsent. So after the response has
   * started, reading is never paused: the rest of the body is queued here, up to its limit.
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

  /**
   * Runs `work` after the rest of the body has been read and dropped, or after `lingerMs`. NOTE: closing a connection
   * with unread bytes resets it, and the client may lose the response.
   */
  #afterBody(work: () => void): void {
    if (!this.#isReceiving) return work();
    const timer = setTimeout(work, this.#lingerMs);
    const stop = () => clearTimeout(timer);
    this.#onClose.push(stop);
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
      const hasLength = body !== null && status !== 204;
      if ((this.isHead || !hasLength) && !mustClose) {
        if (hasLength) this.#response.writeHeader('Content-Length', String(Buffer.byteLength(body)));
        // NOTE: no arguments. With a length the response stays pending forever, and neither argument can be omitted
        // alone.
        this.#response.endWithoutBody();
      } else {
        this.#response.end(this.isHead || body === null ? '' : body, mustClose);
      }
    });
    // Ends the wait for the rest of a body.
    this.#notifyClosed();
  }

  refuse(error: ApiError): void {
    // The framing is ambiguous: the following bytes may belong to the body, so the connection has to close.
    this.#isBodyComplete = false;
    this.send(error.status, refusalHeaders(error), renderError(error));
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.hasStarted = true;
    const response = this.#response;
    if (!this.#isOver) this.#resume();
    const corked = (work: () => void) => {
      if (!this.#isOver) response.cork(work);
    };
    corked(() => this.#writeHead(status, headers, this.isChunked));
    // NOTE: onWritable is called once, because uWebSockets.js keeps every handler.
    const waiting: (() => void)[] = [];
    const wake = () => {
      this.#isBehind = false;
      waiting.splice(0).forEach((resolve) => resolve());
    };
    this.#onClose.push(wake);
    corked(() =>
      response.onWritable(() => {
        wake();
        return true;
      }),
    );
    return {
      write: (data) => {
        corked(() => {
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
   * NOTE: not with the flag to close, which after the first chunk would write a header into the body. A connection that
   * must not carry another request is paused instead. It ends when the client closes it, as the headers asked, or after
   * the idle timeout.
   */
  #endStream(): void {
    // The rest of the body did not arrive. The following bytes must not be parsed as a request.
    if (!this.#isBodyComplete) return this.destroy();
    if (this.#isOver) return;
    this.#isOver = true;
    this.#response.cork(() => {
      if (this.isChunked) this.#response.pause();
      this.#response.end();
    });
    this.#notifyClosed();
  }

  destroy(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#response.close();
    this.#notifyClosed();
  }

  #mustClose(): boolean {
    return this.isChunked || !this.#isBodyComplete;
  }

  #writeHead(status: number, headers: ReplyHeaders, mustClose: boolean): void {
    this.#response.writeStatus(`${status} ${STATUS_CODES[status] ?? ''}`);
    const connection: ReplyHeaders = mustClose
      ? { Connection: 'close' }
      : { Connection: 'keep-alive', 'Keep-Alive': KEEP_ALIVE };
    for (const [name, value] of Object.entries({ ...headers, ...connection })) {
      if (typeof value === 'string') this.#response.writeHeader(name, value);
      else value.forEach((one) => this.#response.writeHeader(name, one));
    }
  }

  #notifyClosed(): void {
    this.#onClose.splice(0).forEach((run) => run());
  }
}

/**
 * Runs `work` after the parser has finished with the current bytes if the response closes the connection. NOTE:
 * otherwise a next request in the same bytes would be handled and would clear the mark to close. While a response is
 * pending, a next request closes the connection.
 */
function whenParsed(mustClose: boolean, work: () => void): void {
  if (mustClose) setImmediate(work);
  else work();
}
