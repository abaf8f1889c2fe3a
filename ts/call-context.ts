import { setMaxListeners } from 'node:events';
import { checkNumber, checkString } from './checks';
import { CapstanError } from './errors';

/** Settings of one call that do not affect its tokens. */
export interface CallContext {
  /** Aborting it ends the call with code `aborted`. */
  signal?: AbortSignal;
  /** Partition of the prefix cache. Calls share cached prompts only with calls of the same salt. Default: `''`. */
  cacheSalt?: string;
  /** The `id` of the {@link Generation} and its result. Default: a random UUID. */
  requestId?: string;
  /**
   * Lower numbers are served first. A call with a lower number preempts those with a higher one, whose results stay the
   * same. Above 0: background work, which uses what other calls leave idle and takes no place in their queue. Default:
   * 0.
   */
  priority?: number;
  /**
   * Called once, when the prompt is tokenized and before the engine computes it. Returns the most completion tokens of
   * each choice, or undefined for no further limit. An error that it throws ends the call.
   */
  onPrompt?: (prompt: PromptSize) => number | undefined;
}

/** Names of the fields of a {@link CallContext}. */
export const CONTEXT_KEYS: readonly string[] = Object.keys({
  signal: true,
  cacheSalt: true,
  requestId: true,
  priority: true,
  onPrompt: true,
} satisfies Record<keyof CallContext, true>);

/** What a call is going to compute. */
export interface PromptSize {
  /** Tokens of the prompt, with those that the prefix cache has. */
  promptTokens: number;
  /** Choices that are computed from it. */
  numChoices: number;
  /** The most completion tokens of each choice that the call and the context allow. */
  maxTokens: number;
}

/** The priority of calls without one. Higher numbers are background work. */
export const DEFAULT_PRIORITY = 0;
/** The addon holds priorities as 32-bit integers. */
const MAX_PRIORITY = 2 ** 31 - 1;

export function checkContext(
  signal: unknown,
  cacheSalt: unknown,
  requestId: unknown,
  priority: unknown,
  onPrompt?: unknown,
): void {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw CapstanError.argument(
      'signal',
      `an AbortSignal${signal instanceof AbortController ? ', the signal of the AbortController' : ''}`,
      signal,
    );
  checkString('cacheSalt', cacheSalt);
  checkString('requestId', requestId);
  checkPriority(priority);
  if (onPrompt !== undefined && typeof onPrompt !== 'function')
    throw CapstanError.argument('onPrompt', 'a function', onPrompt);
}

export function checkPriority(priority: unknown): number {
  return checkNumber('priority', priority, { min: -MAX_PRIORITY, max: MAX_PRIORITY, isInteger: true });
}

/** The fields of a {@link CallContext} in the options of a call. Those of `context` take precedence. */
export function splitContext<T extends CallContext>(
  options: T,
  context: CallContext,
): { context: CallContext; rest: Omit<T, keyof CallContext> } {
  if (typeof options !== 'object' || options === null) return { context, rest: options };
  const { signal, cacheSalt, requestId, priority, onPrompt, ...rest } = options;
  const given = Object.entries({ signal, cacheSalt, requestId, priority, onPrompt }).filter(
    ([, value]) => value !== undefined,
  );
  return { context: { ...Object.fromEntries(given), ...context }, rest };
}

/** NOTE: lifts Node's limit of listeners, because one signal may be shared by many calls. */
export function whenAborted(signal: AbortSignal, run: () => void): void {
  setMaxListeners(0, signal);
  signal.addEventListener('abort', run, { once: true });
}
