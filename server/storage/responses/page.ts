import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';

const DEFAULT_LIMIT = 20;
const MAX_LIMIT = 100;

/** What a client asks of a list. */
export interface PageQuery {
  limit: number;
  /** The id of the last item of the page before. */
  after: string | null;
  isAscending: boolean;
}

/** Throws ApiError for an invalid `limit` or `order`. */
export function readPage(query: URLSearchParams, defaultOrder: 'asc' | 'desc'): PageQuery {
  return {
    limit: readLimit(query.get('limit')),
    after: query.get('after'),
    isAscending: readOrder(query.get('order') ?? defaultOrder) === 'asc',
  };
}

/** Returns a page in the form of OpenAI. */
export function listOf(data: readonly { id: string }[], hasMore: boolean): object {
  return {
    object: 'list',
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: hasMore,
  };
}

/** Items whose order is known. Only the items of the page are made, because there may be very many. */
export interface PagedItems {
  length: number;
  /** Returns the index of the first item with an id in the order of the page, or -1. */
  indexOf: (id: string, isAscending: boolean) => number;
  at: (index: number) => { id: string };
}

export function pageOf({ length, indexOf, at }: PagedItems, { limit, after, isAscending }: PageQuery): object {
  const found = after === null ? undefined : indexOf(after, isAscending);
  if (found === -1) throw invalidAfter(after);
  let start = 0;
  if (found !== undefined) start = isAscending ? found + 1 : length - found;
  const size = Math.max(Math.min(limit, length - start), 0);
  const data = Array.from({ length: size }, (_, i) => at(isAscending ? start + i : length - 1 - start - i));
  return listOf(data, start + limit < length);
}

export function invalidAfter(after: string | null): ApiError {
  return new ApiError('invalid_value', `after: expected the id of an item, got ${show(after)}`, { param: 'after' });
}

function readLimit(text: string | null): number {
  if (text === null) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (/^\d{1,3}$/.test(text) && limit >= 1 && limit <= MAX_LIMIT) return limit;
  throw new ApiError('invalid_value', `limit: expected an integer from 1 to ${MAX_LIMIT}, got ${show(text)}`, {
    param: 'limit',
  });
}

function readOrder(text: string): 'asc' | 'desc' {
  if (text === 'desc' || text === 'asc') return text;
  throw new ApiError('invalid_value', `order: expected asc or desc, got ${show(text)}`, { param: 'order' });
}
