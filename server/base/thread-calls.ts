import type { Worker } from 'node:worker_threads';

/** A method call for a thread. */
export interface ThreadCall {
  id: number;
  method: string;
  args: unknown[];
}

/** The result of a {@link ThreadCall}, with the error in a form that can be cloned. */
export type ThreadReply<E> = { id: number; value: unknown } | { id: number; error: E };

interface Options<E> {
  start: () => Worker;
  /** Restores the class of an error from the thread. */
  revive: (error: E) => Error;
  /** Returns the error of calls whose thread has died. */
  toError: (message: string, cause?: Error) => Error;
  /** Receives messages that are not replies. */
  onMessage?: (message: unknown) => void;
}

interface PendingCall {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

/** Sends calls to a thread. If the thread dies, its pending calls fail and the next call starts a new one. */
export class ThreadCalls<E> {
  readonly #options: Options<E>;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #lastId = 0;

  constructor(options: Options<E>) {
    this.#options = options;
  }

  /** @param transfer Buffers of the arguments that the caller no longer needs. They are moved instead of copied. */
  call(method: string, args: unknown[], transfer: ArrayBuffer[] = []): Promise<unknown> {
    const worker = (this.#worker ??= this.#spawn());
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      worker.postMessage({ id, method, args } satisfies ThreadCall, transfer);
      this.#pending.set(id, { resolve, reject });
      // Keeps the process alive only while a call is pending.
      worker.ref();
    });
  }

  #spawn(): Worker {
    const { start, toError, onMessage } = this.#options;
    const worker = start();
    const fail = (error: Error) => {
      if (this.#worker !== worker) return;
      this.#worker = undefined;
      for (const call of this.#pending.values()) call.reject(error);
      this.#pending.clear();
    };
    worker.on('message', (message: ThreadReply<E> | object) => {
      if ('id' in message) this.#settle(worker, message);
      else onMessage?.(message);
    });
    worker.on('error', (error: Error) => fail(toError(`failed: ${error.message}`, error)));
    worker.on('exit', () => fail(toError('exited')));
    worker.unref();
    return worker;
  }

  #settle(worker: Worker, reply: ThreadReply<E>): void {
    const call = this.#pending.get(reply.id);
    this.#pending.delete(reply.id);
    if (this.#pending.size === 0) worker.unref();
    if ('value' in reply) call?.resolve(reply.value);
    else call?.reject(this.#options.revive(reply.error));
  }
}
