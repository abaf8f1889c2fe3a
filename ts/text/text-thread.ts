/** The thread that renders and tokenizes. `TextThread` starts it. */
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { CapstanError, type CapstanErrorCode } from '../errors';
import { abortedError } from '../job-queue';
import { TextService, type TextServiceOptions, type TextTraits, type TextWork } from './text-service';

export type TextMethod = keyof TextWork;

/** From the client: work, or the id of work whose caller has left. */
export type TextMessage = { id: number; method: TextMethod; args: unknown[] } | { abort: number };

/** To the client: first what was loaded, then the results. */
export type TextReply = { traits: TextTraits } | { id: number; value: unknown } | { id: number; error: TextError };

/** The fields of a CapstanError. */
export interface TextError {
  code: CapstanErrorCode;
  message: string;
  param?: string | undefined;
  expected?: string | undefined;
  received?: string | undefined;
  stack?: string | undefined;
}

type Call = (service: Record<TextMethod, (...args: unknown[]) => Promise<unknown>>) => Promise<void>;

if (parentPort !== null) void serve(parentPort, workerData as TextServiceOptions);

async function serve(port: MessagePort, options: TextServiceOptions): Promise<void> {
  const service = await TextService.load(options).catch((error: unknown) =>
    reply(port, { id: 0, error: toTextError(error) }),
  );
  // The thread ends, because nothing keeps it alive.
  if (service === undefined) return;
  const callers = new Map<number, AbortController>();
  const waiting: Call[] = [];
  reply(port, { traits: service.traits });

  // Between two calls the thread receives messages, so that a call whose caller has left is skipped.
  const next = (): void => {
    const call = waiting.shift();
    if (waiting.length > 0) setImmediate(next);
    void call?.(service as unknown as Parameters<Call>[0]);
  };

  port.on('message', (message: TextMessage) => {
    if ('abort' in message) return callers.get(message.abort)?.abort();
    const { id, method, args } = message;
    const caller = new AbortController();
    callers.set(id, caller);
    waiting.push(async (methods) => {
      try {
        if (caller.signal.aborted) throw abortedError(caller.signal);
        reply(port, { id, value: await methods[method](...args, caller.signal) });
      } catch (error) {
        reply(port, { id, error: toTextError(error) });
      } finally {
        callers.delete(id);
      }
    });
    if (waiting.length === 1) setImmediate(next);
  });
}

function reply(port: MessagePort, message: TextReply): void {
  port.postMessage(message);
}

function toTextError(error: unknown): TextError {
  const { code, message, param, expected, received, stack } = CapstanError.from(error);
  return { code, message, param, expected, received, ...(code === 'internal_error' ? { stack } : {}) };
}
