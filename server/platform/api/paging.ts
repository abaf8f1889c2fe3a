import type { IdPrefix } from 'capstan/internal';
import type { Page } from './json-schema';
import { ApiProblem } from './problem';

const CURSOR = 'the `next` of a page of this list';

/** Query parameters of a list whose cursors match `pattern`. Other cursors are refused without a query. */
export function paging(pattern: string) {
  return {
    limit: { type: 'integer', minimum: 1, maximum: 100, default: 50 },
    after: { type: 'string', maxLength: 1_000, pattern, description: CURSOR },
  } as const;
}

export const pagingById = (...prefixes: IdPrefix[]) => paging(`^(${prefixes.join('|')})_[0-9a-z]{26}$`);

/** Cursors that fit the number columns: 15 digits for sequence numbers, 9 for version numbers. */
export const pagingByNumber = (maxDigits: 9 | 15) => paging(`^\\d{1,${maxDigits}}$`);

export function cursorNumber(after: string | undefined): number | undefined {
  return after === undefined ? undefined : Number(after);
}

/** The error for a cursor of valid form that does not exist. */
export function badCursor(): ApiProblem {
  return new ApiProblem('invalid_request', `?after: expected ${CURSOR}`, {
    errors: [{ pointer: '?after', message: `expected ${CURSOR}` }],
  });
}

export interface Paging {
  limit: number;
  after?: string;
}

/** Returns a page of a short list in memory. */
export function pageOf<T>(items: readonly T[], { limit, after }: Paging, idOf: (item: T) => string): Page<T> {
  const start = after === undefined ? 0 : items.findIndex((item) => idOf(item) === after) + 1;
  if (after !== undefined && start === 0) throw badCursor();
  const data = items.slice(start, start + limit);
  return { data, next: start + limit < items.length ? idOf(data[data.length - 1]) : null };
}

/** Builds a page from the rows of a query with `limit + 1`. */
export function pageOfRows<R, T>(
  rows: readonly R[],
  limit: number,
  cursorOf: (row: R) => string,
  toItem: (row: R) => T,
): Page<T> {
  const shown = rows.slice(0, limit);
  return { data: shown.map(toItem), next: rows.length > limit ? cursorOf(shown[shown.length - 1]) : null };
}
