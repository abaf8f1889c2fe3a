import type { MessagePort } from 'node:worker_threads';
import type { DatabaseLocation } from './location';
import type { ThreadCall, ThreadReply } from '../../../ts/thread-calls';
import { type ChangeListener, listen } from '../feed/notifications';

/** Sent without a call: another process may have changed the database. */
interface StorePush {
  push: true;
}

/** An error in a form that can be cloned. */
export interface SerializedError {
  name: string;
  code: string | undefined;
  message: string;
}

/**
 * Serves store calls in the worker thread. Calls wait until the store is open. If opening fails, the next call retries.
 */
export function serveStore<S extends object>(
  port: MessagePort,
  location: DatabaseLocation,
  openStore: () => Promise<S>,
): void {
  let opened: Promise<S> | undefined;
  let listener: ChangeListener | undefined;
  const openAndListen = async (): Promise<S> => {
    try {
      const store = await openStore();
      listener = listen(location, () => port.postMessage({ push: true } satisfies StorePush));
      return store;
    } catch (error) {
      opened = undefined;
      throw error;
    }
  };
  const open = () => (opened ??= openAndListen());
  const callStore = async ({ id, method, args }: ThreadCall): Promise<ThreadReply<SerializedError>> => {
    try {
      const store = (await open()) as Record<string, (...values: unknown[]) => Promise<unknown>>;
      return { id, value: await store[method](...args) };
    } catch (error) {
      const { name, message, code } = error as Error & { code?: unknown };
      return { id, error: { name, code: typeof code === 'string' ? code : undefined, message } };
    }
  };
  port.on(
    'message',
    (call: ThreadCall) =>
      void callStore(call).then(async (reply) => {
        if (call.method === 'close') await listener?.close();
        port.postMessage(reply);
        if (call.method === 'close') port.close();
      }),
  );
}
