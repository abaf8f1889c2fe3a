import { setImmediate as nextTurn } from 'node:timers/promises';

const ITEMS_PER_TURN = 8_192;

/** Maps a long list and yields to the event loop after every batch. */
export async function mapInTurns<T, U>(items: Iterable<T>, map: (item: T) => U): Promise<U[]> {
  const mapped: U[] = [];
  for (const item of items) {
    if (mapped.length > 0 && mapped.length % ITEMS_PER_TURN === 0) await nextTurn();
    mapped.push(map(item));
  }
  return mapped;
}
