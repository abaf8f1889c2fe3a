import type { TargetReplica } from './targets';
import type { ResponseBody } from './response-body';
import { Connection } from './connection';
import { requestHead, type UpstreamRequest } from './request-head';
import { UpstreamError } from './upstream-error';

const MAX_IDLE_CONNECTIONS = 256;

export interface UpstreamTimes {
  connectTimeoutMs: number;
  /** From sending the request to the head of the response. */
  firstByteTimeoutMs: number;
  /** Between two pieces of a response. */
  idleTimeoutMs: number;
}

export interface UpstreamResponse {
  status: number;
  /** Alternating names and values, as received. */
  rawHeaders: readonly string[];
  body: ResponseBody;
  connectMs: number;
}

/** A replica, with a pool of kept-alive connections. */
export class Upstream {
  readonly #address: TargetReplica['address'];
  readonly #times: UpstreamTimes;
  readonly #allowsPrivate: boolean;
  readonly #all = new Set<Connection>();
  /** Used as a stack: the most recently used connection is reused first. */
  readonly #idle: Connection[] = [];

  /** @param allowsPrivate Whether the host of a URL may have an address that is not public. */
  constructor(address: TargetReplica['address'], times: UpstreamTimes, allowsPrivate = false) {
    this.#allowsPrivate = allowsPrivate;
    this.#address = address;
    this.#times = times;
  }

  /**
   * Resolves with the response head. Rejects with UpstreamError, the error of the request body, or the signal's reason.
   */
  async send(request: UpstreamRequest, signal: AbortSignal): Promise<UpstreamResponse> {
    signal.throwIfAborted();
    const text = requestHead(request);
    const connection = this.#idle.pop() ?? this.#connect();
    const { firstByteTimeoutMs } = this.#times;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => connection.timeout(`no response within ${firstByteTimeoutMs} ms`),
        firstByteTimeoutMs,
      );
      const abort = () => connection.destroy(signal.reason as Error);
      signal.addEventListener('abort', abort, { once: true });
      connection.send(text, request, {
        onHead: ({ status, rawHeaders }, body) => {
          clearTimeout(timer);
          resolve({ status, rawHeaders, body, connectMs: connection.connectMs });
        },
        onOver: (error) => {
          clearTimeout(timer);
          signal.removeEventListener('abort', abort);
          if (error !== undefined) reject(error);
        },
      });
    });
  }

  /** Closes all connections, including those in use. */
  close(): void {
    for (const connection of this.#all)
      connection.destroy(new UpstreamError('reset', true, false, 'the replica is no longer a target'));
  }

  #connect(): Connection {
    const { connectTimeoutMs } = this.#times;
    const connection = new Connection(
      this.#address,
      { connectTimeoutMs, allowsPrivate: this.#allowsPrivate },
      {
        onIdle: (idle) => {
          if (this.#idle.length < MAX_IDLE_CONNECTIONS) this.#idle.push(idle);
          else idle.destroy(new UpstreamError('reset', true, false, 'too many idle connections'));
        },
        onClose: (closed) => {
          this.#all.delete(closed);
          const index = this.#idle.indexOf(closed);
          if (index >= 0) this.#idle.splice(index, 1);
        },
      },
    );
    this.#all.add(connection);
    return connection;
  }
}
