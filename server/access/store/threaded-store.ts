import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { AccessError, type AccessErrorCode } from '../errors';
import type { DatabaseLocation } from './location';
import { listen } from '../feed/notifications';
import { ThreadCalls } from '../../../ts/thread-calls';
import type { SerializedError } from './serve-store';
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
  /** Called when another process may have changed the database. */
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
  const thread = new ThreadCalls<SerializedError>({
    start: () => createThread(data),
    revive: options.revive,
    toError: (message, cause) => new AccessError('database_error', `the database thread ${message}`, { cause }),
    onMessage: options.onPush,
  });
  let isClosed = false;
  const call = async (method: string, args: unknown[]): Promise<unknown> => {
    if (isClosed && method === 'close') return undefined;
    if (isClosed) throw new AccessError('database_error', 'the database is closed');
    if (method === 'close') isClosed = true;
    return thread.call(method, args);
  };
  return new Proxy({} as S, {
    // Awaiting the store itself must not call it.
    get: (_target, method) =>
      typeof method === 'string' && method !== 'then' ? (...args: unknown[]) => call(method, args) : undefined,
  });
}

/**
 * Codes of a temporarily unavailable database: from Node.js (except `ERR_…`, which are bugs), PostgreSQL and SQLite.
 * PostgreSQL has rolled back a transaction that met a conflict (40001) or a deadlock (40P01), so it can be repeated.
 */
const UNAVAILABLE_CODES = /^(E(?!RR_)[A-Z_]+|08\w{3}|40001|40P01|53300|57014|57P0\d|SQLITE_BUSY\w*)$/;
const UNAVAILABLE_MESSAGES =
  /Connection terminated|is not queryable|timeout exceeded when trying to connect|Query read timeout|database is locked/;

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
      await listener.close();
      await store.close();
    },
  };
}
