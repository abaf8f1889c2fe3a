import { connect, type OnReadOpts, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { TargetReplica } from './targets';
import { urlConnect } from './upstreams/url-connect';
import { ResponseBody } from './response-body';
import { type ResponseHead, ResponseParser } from './response-parser';
import { sendBody } from './request-body';
import type { UpstreamRequest } from './request-head';
import { UpstreamError } from './upstream-error';

/**
 * Shorter than common server keep-alive timeouts, so that a reused connection is rarely being closed by the replica.
 */
const IDLE_CONNECTION_MS = 4_000;
/** Safety margin below the keep-alive timeout that the replica announces. */
const KEEP_ALIVE_MARGIN_MS = 1_000;
/** An upstream server has this many times the time to connect. */
const REMOTE_FACTOR = 5;
const READ_BYTES = 64 * 1024;
/**
 * All connections share one read buffer and copy what they keep. Windows reads ahead, so there each has its own buffer.
 */
const SHARED = process.platform === 'win32' ? undefined : Buffer.allocUnsafeSlow(READ_BYTES);

export interface ConnectionOwner {
  /** The connection can take the next request. */
  onIdle(connection: Connection): void;
  /** The connection takes no more requests. May be called twice. */
  onClose(connection: Connection): void;
}

export interface ExchangeListener {
  onHead(head: ResponseHead, body: ResponseBody): void;
  /**
   * The exchange has ended. The error is for a caller that still waits for the head; the body reports its own error.
   */
  onOver(error: Error | undefined): void;
}

interface Exchange {
  listener: ExchangeListener;
  parser: ResponseParser;
  body: ResponseBody | undefined;
  isSent: boolean;
}

export interface ConnectOptions {
  connectTimeoutMs: number;
  /** Whether the host of a URL may have an address that is not public. */
  allowsPrivate: boolean;
}

/** Returns a socket, and the event after which requests can be sent. Throws UpstreamError. */
function openSocket(
  address: TargetReplica['address'],
  allowsPrivate: boolean,
  onread: OnReadOpts,
): { socket: Socket; connected: 'connect' | 'secureConnect' } {
  if (address.type === 'unix') return { socket: connect({ path: address.path, onread }), connected: 'connect' };
  if (address.type === 'tcp') {
    const { host, port } = address;
    return { socket: connect({ host, port, noDelay: true, onread }), connected: 'connect' };
  }
  const { isTls, host, port, servername, lookup } = urlConnect(address, allowsPrivate);
  const where = { host, port, lookup, noDelay: true, onread };
  if (!isTls) return { socket: connect(where), connected: 'connect' };
  // The request is sent after the certificate has been checked.
  return {
    socket: connectTls({ ...where, servername, ALPNProtocols: ['http/1.1'], rejectUnauthorized: true }),
    connected: 'secureConnect',
  };
}

/** A connection to a replica. Serves one request at a time. */
export class Connection {
  readonly #owner: ConnectionOwner;
  readonly #socket: Socket;
  readonly #startedMs = performance.now();
  #connectedMs: number | undefined;
  #numExchanges = 0;
  #exchange: Exchange | undefined;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(address: TargetReplica['address'], options: ConnectOptions, owner: ConnectionOwner) {
    const { allowsPrivate } = options;
    const connectTimeoutMs = options.connectTimeoutMs * (address.type === 'url' ? REMOTE_FACTOR : 1);
    this.#owner = owner;
    const { socket, connected } = openSocket(address, allowsPrivate, {
      buffer: SHARED ?? Buffer.allocUnsafeSlow(READ_BYTES),
      callback: (length, buffer) => this.#read((buffer as Buffer).subarray(0, length)),
    });
    this.#socket = socket;
    const timer = setTimeout(
      () => this.destroy(this.#failure('unreachable', `no connection within ${connectTimeoutMs} ms`)),
      connectTimeoutMs,
    );
    socket.once(connected, () => {
      clearTimeout(timer);
      this.#connectedMs = performance.now();
    });
    socket.once('end', () => this.#end());
    socket.on('error', (error: NodeJS.ErrnoException) =>
      this.destroy(
        this.#failure(this.#connectedMs === undefined ? 'unreachable' : 'reset', error.code ?? error.message),
      ),
    );
    socket.once('close', () => {
      clearTimeout(timer);
      this.destroy(this.#failure('reset', 'the connection was closed'));
    });
  }

  /** Time to connect, for the current request. 0 when the connection was reused. */
  get connectMs(): number {
    return this.#numExchanges > 1 || this.#connectedMs === undefined ? 0 : this.#connectedMs - this.#startedMs;
  }

  /** Sends a request. `head` is the encoded request head. The connection must be new or idle. */
  send(head: string, { method, body }: Pick<UpstreamRequest, 'method' | 'body'>, listener: ExchangeListener): void {
    clearTimeout(this.#idleTimer);
    this.#numExchanges++;
    const exchange: Exchange = (this.#exchange = {
      listener,
      parser: new ResponseParser(method === 'HEAD'),
      body: undefined,
      isSent: false,
    });
    sendBody(this.#socket, head, body, (error) => {
      if (error === undefined) exchange.isSent = true;
      else if (this.#exchange === exchange) this.destroy(error);
    });
  }

  /** Closes the connection and fails the current request with `error`. */
  destroy(error: Error): void {
    this.#shut();
    const exchange = this.#exchange;
    this.#exchange = undefined;
    exchange?.body?.fail(error);
    exchange?.listener.onOver(error);
  }

  timeout(message: string): void {
    this.destroy(this.#failure('timeout', message));
  }

  #failure(reason: UpstreamError['reason'], message: string): UpstreamError {
    return new UpstreamError(reason, this.#connectedMs !== undefined, this.#numExchanges > 1, message);
  }

  /** Returns whether to continue reading. */
  #read(bytes: Buffer): boolean {
    const exchange = this.#exchange;
    if (exchange === undefined) {
      // Without a request in progress, these bytes must not become the response to the next one.
      this.destroy(this.#failure('reset', 'unexpected bytes on an idle connection'));
      return false;
    }
    try {
      this.#take(exchange, bytes);
    } catch (error) {
      this.destroy(this.#failure('reset', (error as Error).message));
    }
    return true;
  }

  #take(exchange: Exchange, bytes: Buffer): void {
    const { parser, listener } = exchange;
    const piece = parser.take(bytes);
    if (parser.head === undefined) return;
    if (exchange.body === undefined) {
      exchange.body = new ResponseBody({
        pause: () => this.#socket.pause(),
        resume: () => this.#socket.resume(),
        destroy: () => this.destroy(this.#failure('reset', 'the reader discarded the response')),
      });
      listener.onHead(parser.head, exchange.body);
    }
    // Copy: the next read overwrites the shared buffer.
    if (piece.length > 0) exchange.body.push(Buffer.from(piece));
    if (parser.isComplete && this.#exchange === exchange) this.#complete(exchange);
  }

  #end(): void {
    const exchange = this.#exchange;
    if (exchange?.parser.end() === true) this.#complete(exchange);
    else this.destroy(this.#failure('reset', 'the connection was closed'));
  }

  /** Ends the body last, because its reader may send the next request at once. */
  #complete({ parser: { keepAliveMs }, isSent, body, listener }: Exchange): void {
    this.#exchange = undefined;
    const idleMs = Math.min(IDLE_CONNECTION_MS, keepAliveMs - KEEP_ALIVE_MARGIN_MS);
    if (isSent && idleMs > 0) {
      if (this.#socket.isPaused()) this.#socket.resume();
      this.#idleTimer = setTimeout(() => this.#shut(), idleMs);
      this.#owner.onIdle(this);
    } else {
      this.#shut();
    }
    listener.onOver(undefined);
    body?.end();
  }

  #shut(): void {
    clearTimeout(this.#idleTimer);
    this.#socket.destroy();
    this.#owner.onClose(this);
  }
}
