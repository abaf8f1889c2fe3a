/** The events of a call in groups: those that are there at once come together, so that a step's chunks go out in one write. Leaving the loop ends the call. */
export async function* readyEvents<E>(events: AsyncIterable<E>): AsyncGenerator<E[], void> {
  const iterator = events[Symbol.asyncIterator]();
  try {
    let next = watch(iterator.next());
    for (;;) {
      const first = await next.promise;
      if (first.done === true) return;
      const group = [first.value];
      next = watch(iterator.next());
      // A promise that is settled by now has told its watcher before this goes on.
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
  /** Once it is there; an error stays with the promise. */
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
