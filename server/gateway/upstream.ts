import type { ReplicaAddress } from '../driver/driver';
import type { AnswerBody } from './answer-body';
import { Connection } from './connection';
import { requestHead, type UpstreamRequest } from './request-head';
import { UpstreamError } from './upstream-error';

const MAX_IDLE_CONNECTIONS = 256;

export interface UpstreamTimes {
  connectTimeoutMs: number;
  /** From the sending of the request to the head of its answer. */
  firstByteTimeoutMs: number;
  /** Between two pieces of an answer. */
  idleTimeoutMs: number;
}

export interface UpstreamAnswer {
  status: number;
  /** Names and values by turns, as they came. */
  rawHeaders: readonly string[];
  body: AnswerBody;
  connectMs: number;
}

/** One replica, over connections that are kept. */
export class Upstream {
  readonly #address: ReplicaAddress;
  readonly #times: UpstreamTimes;
  readonly #all = new Set<Connection>();
  /** The one that served last is the first to serve again. */
  readonly #idle: Connection[] = [];

  constructor(address: ReplicaAddress, times: UpstreamTimes) {
    this.#address = address;
    this.#times = times;
  }

  /** Resolves with the head of the answer. Rejects with UpstreamError, with what the body failed with, or with the signal's reason. */
  async send(request: UpstreamRequest, signal: AbortSignal): Promise<UpstreamAnswer> {
    signal.throwIfAborted();
    const text = requestHead(request);
    const connection = this.#idle.pop() ?? this.#connect();
    const { firstByteTimeoutMs } = this.#times;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => connection.timeout(`no answer within ${firstByteTimeoutMs} ms`),
        firstByteTimeoutMs,
      );
      const abort = () => connection.destroy(signal.reason as Error);
      signal.addEventListener('abort', abort, { once: true });
      connection.ask(text, request, {
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

  /** What is open ends with it. */
  close(): void {
    for (const connection of this.#all)
      connection.destroy(new UpstreamError('reset', true, false, 'its address is given up'));
  }

  #connect(): Connection {
    const connection = new Connection(this.#address, this.#times.connectTimeoutMs, {
      onIdle: (idle) => {
        if (this.#idle.length < MAX_IDLE_CONNECTIONS) this.#idle.push(idle);
        else idle.destroy(new UpstreamError('reset', true, false, 'one idle connection too many'));
      },
      onClose: (closed) => {
        this.#all.delete(closed);
        const index = this.#idle.indexOf(closed);
        if (index >= 0) this.#idle.splice(index, 1);
      },
    });
    this.#all.add(connection);
    return connection;
  }
}
