/** The thread that renders and tokenizes. `openText` starts it. */
import { parentPort, type TransferListItem, workerData } from 'node:worker_threads';
import { answerCalls } from '../thread-calls';
import { toThreadError } from '../thread-error';
import { type EncodedChat, TextService, type TextServiceOptions } from './text-service';

type Methods = Record<string, (...args: unknown[]) => Promise<unknown>>;

if (parentPort !== null) {
  const loading = TextService.load(workerData as TextServiceOptions);
  // Each call reports the error.
  loading.catch(() => {});
  answerCalls(parentPort, {
    run: async (method, args, signal) => {
      const service = await loading;
      return method === 'traits' ? service.traits : (service as unknown as Methods)[method](...args, signal);
    },
    toError: toThreadError,
    transferOf: (value) => tokenMemory(value),
  });
}

/** Token ids are moved to the caller, because a long prompt has many. */
function tokenMemory(value: unknown): TransferListItem[] {
  const ids = value instanceof Int32Array ? value : (value as Partial<EncodedChat> | null)?.promptTokenIds;
  return ids instanceof Int32Array && ids.buffer instanceof ArrayBuffer ? [ids.buffer] : [];
}
