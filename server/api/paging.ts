import type { Page } from './json-schema';
import { ApiProblem } from './problem';

/** The parameters of every list. */
export const PAGING = {
  limit: { type: 'integer', minimum: 1, maximum: 100, default: 50 },
  after: { type: 'string', maxLength: 1_000, description: '`next` of the page before' },
} as const;

export interface Paging {
  limit: number;
  after?: string;
}

/** A page of a short list that is in memory, in the order of its ids' list. */
export function pageOf<T>(items: readonly T[], { limit, after }: Paging, idOf: (item: T) => string): Page<T> {
  const start = after === undefined ? 0 : items.findIndex((item) => idOf(item) === after) + 1;
  if (after !== undefined && start === 0) throw new ApiProblem('invalid_request', '?after: expected the next of a page', { errors: [{ pointer: '?after', message: 'expected the next of a page' }] });
  const data = items.slice(start, start + limit);
  return { data, next: start + limit < items.length ? idOf(data[data.length - 1]) : null };
}

/** A page out of one row more than was asked for. */
export function pageOfRows<R, T>(rows: readonly R[], limit: number, cursorOf: (row: R) => string, toItem: (row: R) => T): Page<T> {
  const shown = rows.slice(0, limit);
  return { data: shown.map(toItem), next: rows.length > limit ? cursorOf(shown[shown.length - 1]) : null };
}
