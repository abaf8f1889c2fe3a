import { setImmediate as nextTurn } from 'node:timers/promises';

const ITEMS_PER_TURN = 8_192;

/** Maps a long list; whatever else there is to do has its turn between parts of it. */
export async function mapInTurns<T, U>(items: Iterable<T>, map: (item: T) => U): Promise<U[]> {
  const mapped: U[] = [];
  for (const item of items) {
    if (mapped.length > 0 && mapped.length % ITEMS_PER_TURN === 0) await nextTurn();
    mapped.push(map(item));
  }
  return mapped;
}
