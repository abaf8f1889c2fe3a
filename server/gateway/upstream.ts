import { Agent, type AgentOptions, type ClientRequest, type IncomingMessage, request as httpRequest } from 'node:http';
import { connect, type Socket } from 'node:net';
import type { ReplicaAddress } from '../driver/driver';
import { ApiError } from '../errors';

/** Below what servers keep a connection for, so that one is seldom taken that its server just gives up. */
const IDLE_CONNECTION_MS = 4_000;
const MAX_IDLE_CONNECTIONS = 256;

export interface UpstreamTimes {
  connectTimeoutMs: number;
  /** From the sending of the request to the head of its answer. */
  firstByteTimeoutMs: number;
  /** Between two pieces of an answer. */
  idleTimeoutMs: number;
}

export interface UpstreamRequest {
  method: string;
  /** With the query. */
  target: string;
  /** Names and values by turns, without framing. */
  headers: readonly string[];
  body: Buffer | AsyncIterable<Buffer> | undefined;
}

export interface UpstreamAnswer {
  message: IncomingMessage;
  connectMs: number;
  /** Ends the exchange, wherever it is. */
  abort: () => void;
}

/** No answer came. `wasReached`: the replica may have begun to work on the request; `wasReused`: over a connection that served before. */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError';

  constructor(readonly reason: 'unreachable' | 'reset' | 'timeout', readonly wasReached: boolean, readonly wasReused: boolean, message: string) {
    super(message);
  }
}

/** One replica, over connections that are kept. */
export class Upstream {
  readonly #agent: Agent;
  readonly #times: UpstreamTimes;

  constructor(address: ReplicaAddress, times: UpstreamTimes) {
    this.#times = times;
    this.#agent = new ReplicaAgent(address, times.connectTimeoutMs);
  }

  /** Resolves with the head of the answer. Rejects with UpstreamError, with what the body failed with, or with the signal's reason. */
  async send({ method, target, headers, body }: UpstreamRequest, signal: AbortSignal): Promise<UpstreamAnswer> {
    signal.throwIfAborted();
    const startedMs = performance.now();
    const request = this.#open(method, target, framed(headers, method, body));
    return new Promise((resolve, reject) => {
      let connectMs: number | undefined;
      let hasAnswer = false;
      const settle = (error?: Error) => {
        clearTimeout(timer);
        if (error === undefined) return;
        signal.removeEventListener('abort', abort);
        request.destroy();
        reject(error);
      };
      const failure = (reason: UpstreamError['reason'], message: string) => new UpstreamError(reason, connectMs !== undefined, request.reusedSocket, message);
      const abort = () => {
        request.destroy();
        settle(signal.reason as Error);
      };
      const timer = setTimeout(() => settle(failure('timeout', `no answer within ${this.#times.firstByteTimeoutMs} ms`)), this.#times.firstByteTimeoutMs);
      signal.addEventListener('abort', abort, { once: true });
      request.once('socket', (socket: Socket) => {
        if (!socket.connecting) connectMs = 0;
        else socket.once('connect', () => { connectMs = performance.now() - startedMs; });
      });
      request.once('response', (message) => {
        hasAnswer = true;
        settle();
        message.once('close', () => signal.removeEventListener('abort', abort));
        resolve({ message, connectMs: connectMs ?? 0, abort: () => request.destroy() });
      });
      // Later errors are the answer's.
      request.on('error', (error: NodeJS.ErrnoException) => settle(failure(connectMs === undefined ? 'unreachable' : 'reset', error.code ?? error.message)));
      sendBody(request, body, (error) => {
        // What the replica has answered already stands.
        if (!hasAnswer) settle(error);
      });
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  /** @throws ApiError for bytes that no request may hold; our transports let some of them pass. */
  #open(method: string, path: string, headers: string[]): ClientRequest {
    try {
      return httpRequest({ agent: this.#agent, method, path, headers, setHost: false });
    } catch (error) {
      throw new ApiError('malformed_request', 'The request has characters that HTTP does not allow in its method, path or headers', { cause: error });
    }
  }
}

class ReplicaAgent extends Agent {
  readonly #address: ReplicaAddress;
  readonly #connectTimeoutMs: number;

  constructor(address: ReplicaAddress, connectTimeoutMs: number) {
    super({ keepAlive: true, maxFreeSockets: MAX_IDLE_CONNECTIONS, timeout: IDLE_CONNECTION_MS, scheduling: 'lifo' } satisfies AgentOptions);
    this.#address = address;
    this.#connectTimeoutMs = connectTimeoutMs;
  }

  override createConnection(): Socket {
    const socket = this.#address.type === 'unix' ? connect({ path: this.#address.path }) : connect({ host: this.#address.host, port: this.#address.port, noDelay: true });
    const timer = setTimeout(() => socket.destroy(Object.assign(new Error('connect timeout'), { code: 'ETIMEDOUT' })), this.#connectTimeoutMs);
    const stop = () => clearTimeout(timer);
    socket.once('connect', stop);
    socket.once('close', stop);
    return socket;
  }
}

const BODILESS = new Set(['GET', 'HEAD', 'OPTIONS', 'DELETE', 'TRACE']);

/** NOTE: the length is said here in every case: node:http frames a DELETE with a body not at all. */
function framed(headers: readonly string[], method: string, body: UpstreamRequest['body']): string[] {
  if (body === undefined) return BODILESS.has(method) ? [...headers] : [...headers, 'Content-Length', '0'];
  return Buffer.isBuffer(body) ? [...headers, 'Content-Length', String(body.length)] : [...headers, 'Transfer-Encoding', 'chunked'];
}

function sendBody(request: ClientRequest, body: UpstreamRequest['body'], onError: (error: Error) => void): void {
  if (body === undefined || Buffer.isBuffer(body)) request.end(body);
  else void sendPieces(request, body).catch((error: Error) => {
    onError(error);
    request.destroy();
  });
}

async function sendPieces(request: ClientRequest, body: AsyncIterable<Buffer>): Promise<void> {
  for await (const piece of body) {
    if (request.destroyed) return;
    if (!request.write(piece)) await writable(request);
  }
  request.end();
}

function writable(request: ClientRequest): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      request.off('drain', done);
      request.off('close', done);
      resolve();
    };
    request.on('drain', done);
    request.on('close', done);
  });
}
