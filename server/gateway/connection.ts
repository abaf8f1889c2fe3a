import { connect, type Socket } from 'node:net';
import type { ReplicaAddress } from '../driver/driver';
import { AnswerBody } from './answer-body';
import { type AnswerHead, AnswerParser } from './answer-parser';
import { sendBody } from './request-body';
import type { UpstreamRequest } from './request-head';
import { UpstreamError } from './upstream-error';

/** Below what servers keep a connection for, so that one is seldom taken that its server just gives up. */
const IDLE_CONNECTION_MS = 4_000;
/** Between what a server says and when it is believed to act on it. */
const KEEP_ALIVE_MARGIN_MS = 1_000;
const READ_BYTES = 64 * 1024;
/** All connections read into the same memory, one after another, and keep none of it; only Windows reads into it ahead. */
const SHARED = process.platform === 'win32' ? undefined : Buffer.allocUnsafeSlow(READ_BYTES);

export interface ConnectionOwner {
  /** It can take the next request. */
  onIdle(connection: Connection): void;
  /** It takes no more; may be told twice. */
  onClose(connection: Connection): void;
}

export interface ExchangeListener {
  onHead(head: AnswerHead, body: AnswerBody): void;
  /** Nothing more comes. The error is for whoever waits for a head; a body is told its own. */
  onOver(error: Error | undefined): void;
}

interface Exchange {
  listener: ExchangeListener;
  parser: AnswerParser;
  body: AnswerBody | undefined;
  isSent: boolean;
}

/** A connection to a replica, for one request at a time. */
export class Connection {
  readonly #owner: ConnectionOwner;
  readonly #socket: Socket;
  readonly #startedMs = performance.now();
  #connectedMs: number | undefined;
  #numExchanges = 0;
  #exchange: Exchange | undefined;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(address: ReplicaAddress, connectTimeoutMs: number, owner: ConnectionOwner) {
    this.#owner = owner;
    const where =
      address.type === 'unix' ? { path: address.path } : { host: address.host, port: address.port, noDelay: true };
    const socket = (this.#socket = connect({
      ...where,
      onread: {
        buffer: SHARED ?? Buffer.allocUnsafeSlow(READ_BYTES),
        callback: (length, buffer) => this.#read((buffer as Buffer).subarray(0, length)),
      },
    }));
    const timer = setTimeout(
      () => this.destroy(this.#failure('unreachable', `no connection within ${connectTimeoutMs} ms`)),
      connectTimeoutMs,
    );
    socket.once('connect', () => {
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

  /** Of the request under way: 0 where the connection was there already. */
  get connectMs(): number {
    return this.#numExchanges > 1 || this.#connectedMs === undefined ? 0 : this.#connectedMs - this.#startedMs;
  }

  /** Sends a request; `head` is its text. The connection must be idle, or new. */
  ask(head: string, { method, body }: Pick<UpstreamRequest, 'method' | 'body'>, listener: ExchangeListener): void {
    clearTimeout(this.#idleTimer);
    this.#numExchanges++;
    const exchange: Exchange = (this.#exchange = {
      listener,
      parser: new AnswerParser(method === 'HEAD'),
      body: undefined,
      isSent: false,
    });
    sendBody(this.#socket, head, body, (error) => {
      if (error === undefined) exchange.isSent = true;
      else if (this.#exchange === exchange) this.destroy(error);
    });
  }

  /** Ends it, and with this error the request that is under way. */
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

  /** @returns whether to go on reading. */
  #read(bytes: Buffer): boolean {
    const exchange = this.#exchange;
    if (exchange === undefined) {
      // Nobody asked: what it says now must not become the answer to the next request.
      this.destroy(this.#failure('reset', 'bytes that nobody asked for'));
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
      exchange.body = new AnswerBody({
        pause: () => this.#socket.pause(),
        resume: () => this.#socket.resume(),
        destroy: () => this.destroy(this.#failure('reset', 'given up')),
      });
      listener.onHead(parser.head, exchange.body);
    }
    // NOTE: a copy: the next read writes over these bytes.
    if (piece.length > 0) exchange.body.push(Buffer.from(piece));
    if (parser.isComplete && this.#exchange === exchange) this.#complete(exchange);
  }

  #end(): void {
    const exchange = this.#exchange;
    if (exchange?.parser.end() === true) this.#complete(exchange);
    else this.destroy(this.#failure('reset', 'the connection was closed'));
  }

  /** The body is told last, as its reader may at once ask for the next. */
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
