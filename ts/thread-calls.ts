import type { MessagePort, TransferListItem, Worker } from 'node:worker_threads';
import { abortedError } from './job-queue';

/** A method call for a thread. */
export interface ThreadCall {
  id: number;
  method: string;
  args: unknown[];
}

/** To the thread: a call, or the id of a call whose caller no longer waits. */
type ThreadMessage = ThreadCall | { abort: number };

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

interface CallOptions {
  /** Aborted when the caller no longer waits. The call rejects with code `aborted`, and is skipped if it waits. */
  signal?: AbortSignal | undefined;
  /** Buffers of the arguments that the caller no longer needs. They are moved instead of copied. */
  transfer?: readonly TransferListItem[];
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
  #closed: Error | undefined;
  #lastId = 0;

  constructor(options: Options<E>) {
    this.#options = options;
  }

  async call(method: string, args: unknown[], { signal, transfer = [] }: CallOptions = {}): Promise<unknown> {
    if (this.#closed !== undefined) throw this.#closed;
    if (signal?.aborted === true) throw abortedError(signal);
    const worker = (this.#worker ??= this.#spawn());
    const id = ++this.#lastId;
    const post = (message: ThreadMessage) => worker.postMessage(message, transfer);
    const onAbort = () => {
      worker.postMessage({ abort: id } satisfies ThreadMessage);
      this.#take(id)?.reject(abortedError(signal!));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      return await new Promise((resolve, reject) => {
        post({ id, method, args });
        this.#pending.set(id, { resolve, reject });
        // Keeps the process alive only while a call is pending.
        worker.ref();
      });
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** Ends the thread. Pending and later calls reject with the error. */
  async close(error: Error): Promise<void> {
    const worker = this.#worker;
    this.#closed = error;
    this.#fail(worker, error);
    await worker?.terminate();
  }

  #spawn(): Worker {
    const { start, toError, revive, onMessage } = this.#options;
    const worker = start();
    worker.on('message', (message: ThreadReply<E> | object) => {
      if (!('id' in message)) return onMessage?.(message);
      const call = this.#take(message.id);
      if ('error' in message) call?.reject(revive(message.error));
      else call?.resolve(message.value);
    });
    worker.on('messageerror', (error: Error) => {
      this.#fail(worker, toError(`sent a message that cannot be read: ${error.message}`, error));
      void worker.terminate();
    });
    worker.on('error', (error: Error) => this.#fail(worker, toError(`failed: ${error.message}`, error)));
    worker.on('exit', () => this.#fail(worker, toError('exited')));
    worker.unref();
    return worker;
  }

  #take(id: number): PendingCall | undefined {
    const call = this.#pending.get(id);
    this.#pending.delete(id);
    if (this.#pending.size === 0) this.#worker?.unref();
    return call;
  }

  #fail(worker: Worker | undefined, error: Error): void {
    if (this.#worker !== worker) return;
    for (const id of [...this.#pending.keys()]) this.#take(id)?.reject(error);
    this.#worker = undefined;
  }
}

interface AnswerOptions<E> {
  /** The signal aborts when the caller no longer waits. */
  run: (method: string, args: unknown[], signal: AbortSignal) => Promise<unknown>;
  toError: (error: unknown) => E;
  /** Returns the buffers of a result that the thread no longer needs. They are moved instead of copied. */
  transferOf?: (value: unknown) => TransferListItem[];
}

/** Answers the calls of a {@link ThreadCalls} in the thread, in order of arrival. Skips calls without a caller. */
export function answerCalls<E>(port: MessagePort, { run, toError, transferOf }: AnswerOptions<E>): void {
  const callers = new Map<number, AbortController>();
  const waiting: ThreadCall[] = [];

  const answer = async ({ id, method, args }: ThreadCall): Promise<void> => {
    const { signal } = callers.get(id)!;
    try {
      if (signal.aborted) throw abortedError(signal);
      const value = await run(method, args, signal);
      port.postMessage({ id, value } satisfies ThreadReply<E>, transferOf?.(value));
    } catch (error) {
      port.postMessage({ id, error: toError(error) } satisfies ThreadReply<E>);
    } finally {
      callers.delete(id);
    }
  };

  // Between two calls the thread receives messages, so that it knows which callers have left.
  const next = (): void => {
    const call = waiting.shift();
    if (waiting.length > 0) setImmediate(next);
    if (call !== undefined) void answer(call);
  };

  port.on('message', (message: ThreadMessage) => {
    if ('abort' in message) return callers.get(message.abort)?.abort();
    callers.set(message.id, new AbortController());
    waiting.push(message);
    if (waiting.length === 1) setImmediate(next);
  });
}
