/** Resolves with the promise, or once the time is over. */
export async function within(timeMs: number, promise: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, timeMs);
  });
  await Promise.race([promise, timeout]);
  clearTimeout(timer);
}
