import {
  createServer,
  type IncomingMessage,
  maxHeaderSize,
  type OutgoingHttpHeaders,
  type Server,
  STATUS_CODES,
  type ServerResponse,
} from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { isUint8Array } from 'node:util/types';
import { trimBlanks } from '../base/blanks';
import { ApiError, renderError } from '../base/errors';
import { BodyQueue } from './body-queue';
import {
  bodyTaken,
  bodyTimeout,
  checkFraming,
  clientDisconnected,
  DEFAULT_LINGER_MS,
  type Framing,
  refusalHeaders,
  tooLarge,
} from './framing';
import { checkTls } from './tls';
import { clearSocketPath, withSocketMode } from './unix-socket';
import {
  DEFAULT_KEEP_ALIVE_MS,
  type HttpReply,
  type ReplyHeaders,
  type ReplyStream,
  type StreamedRequest,
  type Transport,
  type TransportOptions,
} from './transport';

/** The transport over node:http, for platforms without a binary of uWebSockets.js. */
export class NodeTransport implements Transport {
  readonly name = 'node';
  readonly #server: Server;

  constructor(options: TransportOptions) {
    // `toRequest` refuses requests without a Host, in the form of all other errors.
    const serverOptions = {
      keepAliveTimeout: options.keepAliveTimeoutMs ?? DEFAULT_KEEP_ALIVE_MS,
      headersTimeout: 15_000,
      requestTimeout: 0,
      requireHostHeader: false,
    };
    const listener = (message: IncomingMessage, response: ServerResponse) => handleMessage(message, response, options);
    this.#server =
      options.tls === undefined
        ? createServer(serverOptions, listener)
        : createTlsServer({ ...serverOptions, ...checkTls(options.tls), handshakeTimeout: 15_000 }, listener);
    // Requests with an unknown Expect header are handled like all others.
    this.#server.on('checkExpectation', listener);
    // No limit, because checks for duplicates need to see all headers. Node bounds the size of the header block.
    this.#server.maxHeadersCount = 0;
    // Without a listener, errors such as too many open files would end the process. `listen` adds its own listener.
    this.#server.on('error', () => {});
    this.#server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => refuse(error, socket));
  }

  listen(host: string, port: number): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ host, port, exclusive: true }, () => resolve((this.#server.address() as AddressInfo).port));
    });
  }

  async listenUnix(path: string): Promise<void> {
    await clearSocketPath(path);
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      withSocketMode(path, () => this.#server.listen({ path }, resolve));
    });
  }

  stopListening(): void {
    this.#server.close();
    this.#server.closeIdleConnections();
  }

  close(): Promise<void> {
    return new Promise((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeAllConnections();
    });
  }
}

/** Connections that will close. Node's parser may already hold another request, which must not be handled. */
const closing = new WeakSet<Socket>();

/**
 * A listener for requests of node:http.
 * @inline
 */
export type NodeListener = (request: IncomingMessage, response: ServerResponse) => void;

/** Handles one request of any node:http server. */
export function handleMessage(message: IncomingMessage, response: ServerResponse, options: TransportOptions): void {
  if (closing.has(message.socket)) return;
  const controller = new AbortController();
  response.on('close', () => {
    if (!response.writableFinished) controller.abort();
  });
  response.on('error', () => controller.abort());
  const reply = new NodeReply(message, response, options.lingerMs);
  try {
    options.handler(toRequest(message, controller.signal, options, reply), reply).catch(() => response.destroy());
  } catch (error) {
    if (!(error instanceof ApiError)) return void response.destroy();
    closing.add(message.socket);
    sendError(error, reply);
  }
}

function toRequest(
  message: IncomingMessage,
  signal: AbortSignal,
  options: TransportOptions,
  reply: NodeReply,
): StreamedRequest {
  const url = originForm(message.url ?? '/');
  const queryStart = url.indexOf('?');
  const headers: [string, string][] = [];
  for (let i = 0; i < message.rawHeaders.length; i += 2)
    headers.push([message.rawHeaders[i].toLowerCase(), trimBlanks(message.rawHeaders[i + 1])]);
  const framing = checkFraming(headers);
  if (message.httpVersion === '1.1' && !headers.some(([name]) => name === 'host'))
    throw new ApiError('malformed_request', 'Host: this header is required in HTTP/1.1');
  return {
    method: message.method ?? '',
    path: queryStart < 0 ? url : url.slice(0, queryStart),
    query: queryStart < 0 ? '' : url.slice(queryStart + 1),
    headers,
    remoteAddress: message.socket.remoteAddress ?? '',
    signal,
    ...(options.streamsBodies === true
      ? streamedBody(message, framing, options, reply)
      : wholeBody(message, framing, options)),
  };
}

type Body = Pick<StreamedRequest, 'readBody' | 'bodyPieces'>;

function wholeBody(message: IncomingMessage, framing: Framing, options: TransportOptions): Body {
  let body: Promise<Buffer> | undefined;
  const read = () => (body ??= readBody(message, framing, options));
  return {
    readBody: read,
    bodyPieces: async function* () {
      yield await read();
    },
  };
}

function streamedBody(
  message: IncomingMessage,
  framing: Framing,
  { maxBodyBytes, bodyTimeoutMs }: TransportOptions,
  reply: NodeReply,
): Body {
  const queue = (reply.queue = new BodyQueue({
    maxBodyBytes,
    timeoutMs: bodyTimeoutMs,
    pause: () => message.pause(),
    resume: () => message.resume(),
  }));
  if ((framing.contentLength ?? 0) > maxBodyBytes) queue.fail(tooLarge(maxBodyBytes));
  if (framing.contentLength === 0) queue.end();
  let isFlowing = false;
  // Reading starts with the first use of the body.
  const startReading = () => {
    if (isFlowing || framing.contentLength === 0) return queue;
    isFlowing = true;
    message.on('data', (chunk: Buffer) => queue.push(chunk));
    message.on('end', () => queue.end());
    message.on('close', () => {
      if (!message.readableEnded) queue.fail(clientDisconnected());
    });
    return queue;
  };
  return { readBody: () => startReading().readAll(), bodyPieces: () => startReading().pieces() };
}

/** Returns the path and query of a URL. Requests in the form for a proxy (`GET http://host/path`) are accepted. */
function originForm(url: string): string {
  if (url.startsWith('/')) return url;
  const rest = url.replace(/^https?:\/\/[^/?#]*/i, '');
  return rest.startsWith('/') ? rest : `/${rest}`;
}

async function readBody(
  message: IncomingMessage,
  framing: Framing,
  { maxBodyBytes, bodyTimeoutMs }: TransportOptions,
): Promise<Buffer> {
  if ((framing.contentLength ?? 0) > maxBodyBytes) throw tooLarge(maxBodyBytes);
  if (framing.contentLength === 0) return Buffer.alloc(0);
  if (message.readableEnded) return takenBody(message, maxBodyBytes);
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let numBytes = 0;
    const timer = setTimeout(() => settle(() => reject(bodyTimeout())), bodyTimeoutMs);
    const settle = (done: () => void) => {
      clearTimeout(timer);
      message.removeAllListeners('data');
      done();
    };
    message.on('data', (chunk: Buffer) => {
      numBytes += chunk.length;
      if (numBytes > maxBodyBytes) settle(() => reject(tooLarge(maxBodyBytes)));
      else chunks.push(chunk);
    });
    message.on('end', () => settle(() => resolve(Buffer.concat(chunks))));
    message.on('close', () => {
      if (!message.readableEnded) settle(() => reject(clientDisconnected()));
    });
  });
}

/** Returns the body that a web framework has read, and usually parsed, before this handler. It is in `body`. */
function takenBody({ body }: IncomingMessage & { body?: unknown }, maxBodyBytes: number): Buffer {
  if (body === undefined) throw bodyTaken();
  const isRaw = typeof body === 'string' || isUint8Array(body);
  const bytes = Buffer.from(isRaw ? body : JSON.stringify(body));
  if (bytes.length > maxBodyBytes) throw tooLarge(maxBodyBytes);
  return bytes;
}

function sendError(error: ApiError, reply: HttpReply): void {
  reply.send(error.status, refusalHeaders(error), renderError(error));
}

/** Answers a request that node:http could not parse. There is only a socket, no request object. */
function refuse(error: ParseError, socket: Socket): void {
  // The bytes follow a request that was answered already.
  if (closing.has(socket)) return void socket.end();
  if (!socket.writable || error.code === 'ECONNRESET') return void socket.destroy();
  const apiError = toParseError(error);
  const body = renderError(apiError);
  const headers = Object.entries({
    ...refusalHeaders(apiError),
    'Content-Length': Buffer.byteLength(body),
    Connection: 'close',
  });
  const statusLine = `HTTP/1.1 ${apiError.status} ${STATUS_CODES[apiError.status]}`;
  const lines = [statusLine, ...headers.map(([name, value]) => `${name}: ${value}`)];
  socket.end(`${lines.join('\r\n')}\r\n\r\n${isHead(error) ? '' : body}`);
}

function toParseError({ code }: ParseError): ApiError {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new ApiError('request_timeout', 'The request did not arrive in time');
  if (code === 'HPE_HEADER_OVERFLOW')
    return new ApiError('headers_too_large', `The request head is too large: expected at most ${maxHeaderSize} bytes`);
  return new ApiError('malformed_request', 'The request is not valid HTTP/1.1');
}

/** The error of a `clientError` event. Errors that node:http does not get from its parser lack the packet. */
interface ParseError extends NodeJS.ErrnoException {
  /** The bytes that the parser got last. */
  rawPacket?: Buffer;
  /** Where in `rawPacket` the parser stopped. */
  bytesParsed?: number;
}

/** Whether the request is known to be a HEAD request, whose response has no body. */
function isHead({ rawPacket, bytesParsed }: ParseError): boolean {
  const parsed = rawPacket?.toString('latin1', 0, bytesParsed) ?? '';
  const previousEnd = parsed.lastIndexOf('\r\n\r\n');
  return parsed.startsWith('HEAD ', previousEnd < 0 ? 0 : previousEnd + 4);
}

class NodeReply implements HttpReply {
  readonly #message: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #lingerMs: number;
  /** The body, if it is streamed. */
  queue: BodyQueue | undefined;

  constructor(message: IncomingMessage, response: ServerResponse, lingerMs = DEFAULT_LINGER_MS) {
    this.#message = message;
    this.#response = response;
    this.#lingerMs = lingerMs;
  }

  get hasStarted(): boolean {
    return this.#response.headersSent;
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.#response.destroyed) return;
    this.queue?.discard();
    const hasLength = body !== null && status !== 204;
    this.#writeHead(status, hasLength ? { ...headers, 'Content-Length': String(Buffer.byteLength(body)) } : headers);
    const written = this.#message.method === 'HEAD' || body === null ? '' : body;
    if (!this.#isBodyUnread()) return void this.#response.end(written);
    this.#response.write(written);
    this.#afterBody(() => this.#response.end());
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    const response = this.#response;
    if (!response.destroyed) this.#writeHead(status, headers);
    response.socket?.setNoDelay(true);
    return {
      write: (data) => response.destroyed || response.write(data),
      drained: () =>
        new Promise((resolve) => {
          if (response.destroyed || !response.writableNeedDrain) return resolve();
          const done = () => {
            response.off('drain', done);
            response.off('close', done);
            resolve();
          };
          response.on('drain', done);
          response.on('close', done);
        }),
      // NOTE: never end(data) while corked. Node 22 and 24 would send the last chunk after the end of the stream.
      end: () => {
        this.queue?.discard();
        if (this.#isBodyUnread()) this.#afterBody(() => response.end());
        else response.end();
      },
      destroy: () => void response.destroy(),
    };
  }

  #isBodyUnread(): boolean {
    const { headers, complete } = this.#message;
    return !complete && (headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0');
  }

  /** Closes the connection if the body is unread, because its rest would be parsed as the next request. */
  #writeHead(status: number, headers: ReplyHeaders): void {
    const mustClose =
      closing.has(this.#message.socket) ||
      this.#isBodyUnread() ||
      this.#message.headers['transfer-encoding'] !== undefined;
    if (mustClose) closing.add(this.#message.socket);
    // A client that sent `Connection: close` waits for the end of the connection, so `keep-alive` must not be sent.
    const isLast = mustClose || !this.#response.shouldKeepAlive;
    this.#response.writeHead(status, (isLast ? { ...headers, Connection: 'close' } : headers) as OutgoingHttpHeaders);
  }

  /**
   * Runs `work` after the rest of the body has been read and dropped, or after `lingerMs`. NOTE: closing a connection
   * with unread bytes resets it, and the client may lose the response.
   */
  #afterBody(work: () => void): void {
    const message = this.#message;
    const done = () => {
      clearTimeout(timer);
      message.off('end', done);
      message.off('close', done);
      work();
    };
    const timer = setTimeout(done, this.#lingerMs);
    message.on('end', done);
    message.on('close', done);
    message.resume();
  }
}
