import type { IdPrefix } from '../access/ids';
import type { Page } from './json-schema';
import { ApiProblem } from './problem';

const CURSOR = 'the next of a page of this list';

/** The parameters of a list whose pages end at something that looks like `pattern`: nothing else is looked for. */
export function paging(pattern: string) {
  return {
    limit: { type: 'integer', minimum: 1, maximum: 100, default: 50 },
    after: { type: 'string', maxLength: 1_000, pattern, description: CURSOR },
  } as const;
}

export const pagingById = (...prefixes: IdPrefix[]) => paging(`^(${prefixes.join('|')})_[0-9a-z]{26}$`);

/** What fits the columns that count: sequence numbers, and those of versions. */
export const pagingByNumber = (maxDigits: 9 | 15) => paging(`^\\d{1,${maxDigits}}$`);

export function cursorNumber(after: string | undefined): number | undefined {
  return after === undefined ? undefined : Number(after);
}

/** Of what looks like a cursor, and is none. */
export function badCursor(): ApiProblem {
  return new ApiProblem('invalid_request', `?after: expected ${CURSOR}`, {
    errors: [{ pointer: '?after', message: `expected ${CURSOR}` }],
  });
}

export interface Paging {
  limit: number;
  after?: string;
}

/** A page of a short list that is in memory, in the order of its ids' list. */
export function pageOf<T>(items: readonly T[], { limit, after }: Paging, idOf: (item: T) => string): Page<T> {
  const start = after === undefined ? 0 : items.findIndex((item) => idOf(item) === after) + 1;
  if (after !== undefined && start === 0) throw badCursor();
  const data = items.slice(start, start + limit);
  return { data, next: start + limit < items.length ? idOf(data[data.length - 1]) : null };
}

/** A page out of one row more than was asked for. */
export function pageOfRows<R, T>(
  rows: readonly R[],
  limit: number,
  cursorOf: (row: R) => string,
  toItem: (row: R) => T,
): Page<T> {
  const shown = rows.slice(0, limit);
  return { data: shown.map(toItem), next: rows.length > limit ? cursorOf(shown[shown.length - 1]) : null };
}
