import { parentPort, workerData } from 'node:worker_threads';
import { AccessError } from './errors';
import type { DatabaseLocation } from './location';
import { listen } from './notifications';
import { type AccessStore, openStore } from './store';

/** One call of the store, and its answer. */
export interface StoreCall {
  id: number;
  method: keyof AccessStore;
  args: unknown[];
}

/** What comes unasked: another process changed something. */
export interface StorePush {
  push: true;
}

export type StoreAnswer = { id: number; value: unknown } | { id: number; error: { code: AccessError['code'] | undefined; message: string } };

/** The thread in which a serving process talks to its database. A call waits for the opening; where that failed each call tries again. */
function serveStore(port: NonNullable<typeof parentPort>, location: DatabaseLocation): void {
  let opened: Promise<AccessStore> | undefined;
  const open = () => opened ??= openStore(location).catch((error: unknown) => { opened = undefined; throw error; });
  const answer = async ({ id, method, args }: StoreCall): Promise<StoreAnswer> => {
    try {
      const store = await open();
      return { id, value: await (store[method] as (...values: unknown[]) => Promise<unknown>)(...args) };
    } catch (error) {
      return { id, error: { code: error instanceof AccessError ? error.code : undefined, message: (error as Error).message } };
    }
  };
  const listener = listen(location, () => port.postMessage({ push: true } satisfies StorePush));
  port.on('message', (call: StoreCall) => void answer(call).then(async (reply) => {
    if (call.method === 'close') await listener?.close();
    port.postMessage(reply);
    if (call.method === 'close') port.close();
  }));
}

if (parentPort !== null) serveStore(parentPort, workerData as DatabaseLocation);
