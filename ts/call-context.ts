import { setMaxListeners } from 'node:events';
import { checkString } from './checks';
import { CapstanError } from './errors';

/** Settings of one call that do not affect its tokens. */
export interface CallContext {
  /** Aborting it ends the call with code `aborted`. */
  signal?: AbortSignal;
  /** Partition of the prefix cache. Calls share cached prompts only with calls of the same salt. Default: `''`. */
  cacheSalt?: string;
  /** The `id` of the {@link Generation} and its result. Default: a random UUID. */
  requestId?: string;
}

export function checkContext(signal: unknown, cacheSalt: unknown, requestId: unknown): void {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', signal);
  checkString('cacheSalt', cacheSalt);
  checkString('requestId', requestId);
}

/** The fields of a {@link CallContext} in the options of a call. Those of `context` take precedence. */
export function splitContext<T extends CallContext>(
  options: T,
  context: CallContext,
): { context: CallContext; rest: Omit<T, keyof CallContext> } {
  if (typeof options !== 'object' || options === null) return { context, rest: options };
  const { signal, cacheSalt, requestId, ...rest } = options;
  const given = Object.entries({ signal, cacheSalt, requestId }).filter(([, value]) => value !== undefined);
  return { context: { ...Object.fromEntries(given), ...context }, rest };
}

/** NOTE: lifts Node's limit of listeners, because one signal may be shared by many calls. */
export function whenAborted(signal: AbortSignal, run: () => void): void {
  setMaxListeners(0, signal);
  signal.addEventListener('abort', run, { once: true });
}
