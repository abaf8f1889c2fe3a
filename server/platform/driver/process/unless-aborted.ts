/** Resolves or rejects with `promise`, and rejects as soon as the signal aborts. The work behind it continues. */
export async function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  let onAbort = (): void => {};
  const aborted = new Promise<never>((_resolve, reject) => {
    onAbort = () => reject(signal.reason as Error);
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
  return Promise.race([aborted, promise]).finally(() => signal.removeEventListener('abort', onAbort));
}
