import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { AccessError } from './errors';
import type { DatabaseLocation } from './location';
import { listen } from './notifications';
import { type AccessStore, openStore } from './store';
import type { StoreAnswer, StoreCall, StorePush } from './store-thread';

const THREAD_FILE = path.join(__dirname, 'store-thread.js');

export type CreateThread = (location: DatabaseLocation) => Worker;

/**
 * The store of a serving process, with a push when another process changed something and the database can tell; in a thread of its own: a slow disk or a lock held by another process never holds up requests. Run
 * from sources that are not compiled (tests), where the thread has no file, it stays in this thread.
 */
export async function openServingStore(location: DatabaseLocation, onPush: () => void, createThread?: CreateThread): Promise<AccessStore> {
  const isCompiled = fs.existsSync(THREAD_FILE);
  if (createThread === undefined && !isCompiled) return openHere(location, onPush);
  const thread = new StoreThread(() => (createThread ?? startThread)(location), onPush);
  const store = new Proxy({} as AccessStore, {
    // Awaiting the store itself must not call it.
    get: (_target, method) => (typeof method === 'string' && method !== 'then' ? (...args: unknown[]) => thread.call(method as keyof AccessStore, args) : undefined),
  });
  await store.readState();
  return store;
}

async function openHere(location: DatabaseLocation, onPush: () => void): Promise<AccessStore> {
  const store = await openStore(location);
  const listener = listen(location, onPush);
  return { ...store, close: async () => { await listener?.close(); await store.close(); } };
}

function startThread(location: DatabaseLocation): Worker {
  return new Worker(THREAD_FILE, { workerData: location, name: 'capstan-access' });
}

interface PendingCall {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

/** Calls across the thread boundary. A thread that died fails its open calls and is started again at the next one. */
class StoreThread {
  readonly #start: () => Worker;
  readonly #onPush: () => void;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #isClosed = false;
  #lastId = 0;

  constructor(start: () => Worker, onPush: () => void) {
    this.#start = start;
    this.#onPush = onPush;
  }

  async call(method: keyof AccessStore, args: unknown[]): Promise<unknown> {
    if (this.#isClosed) {
      if (method === 'close') return undefined;
      throw new AccessError('database_error', 'the key database is closed');
    }
    if (method === 'close') this.#isClosed = true;
    const worker = this.#worker ??= this.#spawn();
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
    worker.on('error', (error: Error) => fail(new AccessError('database_error', `the thread of the key database failed: ${error.message}`, { cause: error })));
    worker.on('exit', () => fail(new AccessError('database_error', 'the thread of the key database ended')));
    worker.unref();
    return worker;
  }

  #settle(worker: Worker, answer: StoreAnswer): void {
    const call = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    if (this.#pending.size === 0) worker.unref();
    if ('value' in answer) call?.resolve(answer.value);
    else call?.reject(answer.error.code === undefined ? new Error(answer.error.message) : new AccessError(answer.error.code, answer.error.message));
  }
}
