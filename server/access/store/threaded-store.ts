import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { AccessError, type AccessErrorCode } from '../errors';
import type { DatabaseLocation } from './location';
import { listen } from '../feed/notifications';
import type { SerializedError, StoreReply, StoreCall, StorePush } from './serve-store';
import { type AccessStore, openStore } from './store';

export type CreateThread<D = DatabaseLocation> = (data: D) => Worker;

/** How to run a store in a worker thread. Its methods take and return values that can be cloned. */
export interface ThreadedStore<S, D> {
  /** Compiled entry file of the worker thread, which calls `serveStore`. */
  file: string;
  /** Name of the worker thread, for process inspection. */
  name: string;
  /** The thread's `workerData`. */
  data: D;
  location: DatabaseLocation;
  /** Opens the store in the calling thread. Used when `file` does not exist, as in tests that run from sources. */
  openHere: () => Promise<S>;
  /** Restores the class of an error from the worker thread. */
  revive: (error: SerializedError) => Error;
  /** Called when another process has changed the database. Only PostgreSQL reports this. */
  onPush: () => void;
  createThread?: CreateThread<D>;
}

/** Opens the store of the standalone server. */
export async function openServingStore(
  location: DatabaseLocation,
  onPush: () => void,
  createThread?: CreateThread,
): Promise<AccessStore> {
  const store = await openThreadedStore<AccessStore, DatabaseLocation>({
    file: path.join(__dirname, 'store-thread.js'),
    name: 'capstan-access',
    data: location,
    location,
    openHere: () => openStore(location),
    revive: reviveAccessError,
    onPush,
    createThread,
  });
  await store.readState();
  return store;
}

/**
 * Runs a store in a worker thread, so that a slow disk or another process's lock never delays requests. The first call
 * opens the database. Without the compiled file, the store runs in the calling thread.
 */
export async function openThreadedStore<S extends { close(): Promise<void> }, D>(
  options: ThreadedStore<S, D>,
): Promise<S> {
  const { file, data, name, createThread = (values: D) => new Worker(file, { workerData: values, name }) } = options;
  if (options.createThread === undefined && !fs.existsSync(file)) return openHere(options);
  const thread = new StoreThread(() => createThread(data), options.revive, options.onPush);
  return new Proxy({} as S, {
    // Awaiting the store itself must not call it.
    get: (_target, method) =>
      typeof method === 'string' && method !== 'then' ? (...args: unknown[]) => thread.call(method, args) : undefined,
  });
}

/**
 * Codes of a temporarily unavailable database: from Node.js (except `ERR_…`, which are bugs), PostgreSQL and SQLite.
 */
const UNAVAILABLE_CODES = /^(E(?!RR_)[A-Z_]+|08\w{3}|53300|57014|57P0\d|SQLITE_BUSY\w*)$/;
const UNAVAILABLE_MESSAGES =
  /Connection terminated|timeout exceeded when trying to connect|Query read timeout|database is locked/;

export function reviveAccessError({ name, code, message }: SerializedError): Error {
  if (name === 'AccessError') return new AccessError(code as AccessErrorCode, message);
  return UNAVAILABLE_CODES.test(code ?? '') || UNAVAILABLE_MESSAGES.test(message)
    ? new AccessError('database_error', message)
    : new Error(message);
}

async function openHere<S extends { close(): Promise<void> }, D>({
  openHere: open,
  location,
  onPush,
}: ThreadedStore<S, D>): Promise<S> {
  const store = await open();
  const listener = listen(location, onPush);
  return {
    ...store,
    close: async () => {
      await listener?.close();
      await store.close();
    },
  };
}

interface PendingCall {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

/** Sends calls to the worker thread. If the thread dies, its pending calls fail and the next call starts a new one. */
class StoreThread {
  readonly #start: () => Worker;
  readonly #revive: (error: SerializedError) => Error;
  readonly #onPush: () => void;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #isClosed = false;
  #lastId = 0;

  constructor(start: () => Worker, revive: (error: SerializedError) => Error, onPush: () => void) {
    this.#start = start;
    this.#revive = revive;
    this.#onPush = onPush;
  }

  async call(method: string, args: unknown[]): Promise<unknown> {
    if (this.#isClosed) {
      if (method === 'close') return undefined;
      throw new AccessError('database_error', 'the database is closed');
    }
    if (method === 'close') this.#isClosed = true;
    const worker = (this.#worker ??= this.#spawn());
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      // Keep the process alive only while a call is pending.
      worker.ref();
      worker.postMessage({ id, method, args } satisfies StoreCall);
    });
  }

  #spawn(): Worker {
    const worker = this.#start();
    const fail = (error: Error) => {
      if (this.#worker !== worker) return;
      this.#worker = undefined;
      for (const call of this.#pending.values()) call.reject(error);
      this.#pending.clear();
    };
    worker.on('message', (message: StoreReply | StorePush) => {
      if ('push' in message) this.#onPush();
      else this.#settle(worker, message);
    });
    worker.on('error', (error: Error) =>
      fail(new AccessError('database_error', `the database thread failed: ${error.message}`, { cause: error })),
    );
    worker.on('exit', () => fail(new AccessError('database_error', 'the database thread exited')));
    worker.unref();
    return worker;
  }

  #settle(worker: Worker, reply: StoreReply): void {
    const call = this.#pending.get(reply.id);
    this.#pending.delete(reply.id);
    if (this.#pending.size === 0) worker.unref();
    if ('value' in reply) call?.resolve(reply.value);
    else call?.reject(this.#revive(reply.error));
  }
}
