/**
 * Groups events that are available at the same time, so that the chunks of one step go out in one write. Leaving the
 * loop aborts the generation.
 */
export async function* readyEvents<E>(events: AsyncIterable<E>): AsyncGenerator<E[], void> {
  const iterator = events[Symbol.asyncIterator]();
  try {
    let next = watch(iterator.next());
    for (;;) {
      const first = await next.promise;
      if (first.done === true) return;
      const group = [first.value];
      next = watch(iterator.next());
      // One microtask later, `result` is set if the promise was settled already.
      await Promise.resolve();
      while (next.result !== undefined && next.result.done !== true) {
        group.push(next.result.value);
        next = watch(iterator.next());
        await Promise.resolve();
      }
      yield group;
    }
  } finally {
    await iterator.return?.();
  }
}

interface Watched<E> {
  promise: Promise<IteratorResult<E, unknown>>;
  /** Set when the promise resolves. An error stays in the promise. */
  result?: IteratorResult<E, unknown>;
}

function watch<E>(promise: Promise<IteratorResult<E, unknown>>): Watched<E> {
  const watched: Watched<E> = { promise };
  promise.then(
    (result) => {
      watched.result = result;
    },
    () => {},
  );
  return watched;
}
