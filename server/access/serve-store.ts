import type { MessagePort } from 'node:worker_threads';
import type { DatabaseLocation } from './location';
import { listen } from './notifications';

/** One call of a store, and its answer. */
export interface StoreCall {
  id: number;
  method: string;
  args: unknown[];
}

/** What comes unasked: another process changed something. */
export interface StorePush {
  push: true;
}

/** An error as it crosses: its class by name. */
export interface CrossedError {
  name: string;
  code: string | undefined;
  message: string;
}

export type StoreAnswer = { id: number; value: unknown } | { id: number; error: CrossedError };

/** The thread in which a serving process talks to its database. A call waits for the opening; where that failed each call tries again. */
export function serveStore<S extends object>(
  port: MessagePort,
  location: DatabaseLocation,
  openStore: () => Promise<S>,
): void {
  let opened: Promise<S> | undefined;
  const open = () =>
    (opened ??= openStore().catch((error: unknown) => {
      opened = undefined;
      throw error;
    }));
  const answer = async ({ id, method, args }: StoreCall): Promise<StoreAnswer> => {
    try {
      const store = (await open()) as Record<string, (...values: unknown[]) => Promise<unknown>>;
      return { id, value: await store[method](...args) };
    } catch (error) {
      const { name, message, code } = error as Error & { code?: unknown };
      return { id, error: { name, code: typeof code === 'string' ? code : undefined, message } };
    }
  };
  const listener = listen(location, () => port.postMessage({ push: true } satisfies StorePush));
  port.on(
    'message',
    (call: StoreCall) =>
      void answer(call).then(async (reply) => {
        if (call.method === 'close') await listener?.close();
        port.postMessage(reply);
        if (call.method === 'close') port.close();
      }),
  );
}
