/**
 * Returns a signal that aborts some time after another one, and at once when `limit` aborts. Most providers finish a
 * response that is not streamed although its client has left, and charge for it. So the gateway reads its usage.
 */
export function lingering(gone: AbortSignal, limit: AbortSignal | undefined, lingerMs: number): AbortSignal {
  const controller = new AbortController();
  const wait = (): void => void setTimeout(() => controller.abort(gone.reason), lingerMs).unref();
  if (gone.aborted) wait();
  else gone.addEventListener('abort', wait, { once: true });
  return limit === undefined ? controller.signal : AbortSignal.any([controller.signal, limit]);
}
