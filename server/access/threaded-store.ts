import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { AccessError, type AccessErrorCode } from './errors';
import type { DatabaseLocation } from './location';
import { listen } from './notifications';
import type { CrossedError, StoreAnswer, StoreCall, StorePush } from './serve-store';
import { type AccessStore, openStore } from './store';

export type CreateThread<D = DatabaseLocation> = (data: D) => Worker;

/** A store that a serving process may have in a thread of its own: methods that take and give plain values, and `close`. */
export interface ThreadedStore<S, D> {
  /** The compiled file of the thread, which calls `serveStore`. */
  file: string;
  /** Of the thread, for people who look at the process. */
  name: string;
  /** What the thread is started with. */
  data: D;
  location: DatabaseLocation;
  /** In this thread: where sources are not compiled (tests) the other thread has no file. */
  openHere: () => Promise<S>;
  /** Makes the error that crossed what it was. */
  revive: (error: CrossedError) => Error;
  /** Another process changed something, where the database can tell. */
  onPush: () => void;
  createThread?: CreateThread<D>;
}

/** The store of the standalone server. */
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
 * A store in a thread of its own: a slow disk or a lock held by another process never holds up requests. It is opened by its first call. Run from sources that are not compiled, where the thread has no file, it
 * stays in this thread.
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

/** What says that the database cannot be asked now, and may be later: of Node (not its own ERR_…, which are faults), of PostgreSQL and of SQLite. */
const AWAY_CODES = /^(E(?!RR_)[A-Z_]+|08\w{3}|53300|57014|57P0\d|SQLITE_BUSY\w*)$/;
const AWAY_MESSAGES =
  /Connection terminated|timeout exceeded when trying to connect|Query read timeout|database is locked/;

export function reviveAccessError({ name, code, message }: CrossedError): Error {
  if (name === 'AccessError') return new AccessError(code as AccessErrorCode, message);
  return AWAY_CODES.test(code ?? '') || AWAY_MESSAGES.test(message)
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

/** Calls across the thread boundary. A thread that died fails its open calls and is started again at the next one. */
class StoreThread {
  readonly #start: () => Worker;
  readonly #revive: (error: CrossedError) => Error;
  readonly #onPush: () => void;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #isClosed = false;
  #lastId = 0;

  constructor(start: () => Worker, revive: (error: CrossedError) => Error, onPush: () => void) {
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
      // Keeps the process alive while a call is open, and no longer.
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
    worker.on('message', (message: StoreAnswer | StorePush) => {
      if ('push' in message) this.#onPush();
      else this.#settle(worker, message);
    });
    worker.on('error', (error: Error) =>
      fail(new AccessError('database_error', `the thread of the database failed: ${error.message}`, { cause: error })),
    );
    worker.on('exit', () => fail(new AccessError('database_error', 'the thread of the database ended')));
    worker.unref();
    return worker;
  }

  #settle(worker: Worker, answer: StoreAnswer): void {
    const call = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    if (this.#pending.size === 0) worker.unref();
    if ('value' in answer) call?.resolve(answer.value);
    else call?.reject(this.#revive(answer.error));
  }
}
