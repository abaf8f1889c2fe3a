import { type RawBuilder, type SelectQueryBuilder, sql } from 'kysely';
import type { ApiKey } from './api-key';
import { AccessError } from '../errors';
import { describeKeys, type KeyFilter, selectKeys } from './queries';
import { KEY_SORTS, type KeySort } from './sorts';
import type { AccessTables, Db } from '../store/schema';

export interface KeyPaging {
  /** 1 to 100; default 100. */
  limit?: number;
  /** `next` of the previous page, requested with the same order. */
  after?: string;
  /** Default `created`. Unused keys sort first, and keys without expiry last. */
  sort?: KeySort;
  descending?: boolean;
}

export interface KeyPage {
  data: ApiKey[];
  /** Null on the last page. */
  next: string | null;
}

interface Cursor {
  order: string;
  value: string | number;
  id: string;
}

const MAX_LIMIT = 100;
/** The largest time of a JavaScript Date. */
const NEVER_MS = 8_640_000_000_000_000;

/** None of these is null, because SQLite and PostgreSQL sort null differently. */
const SORT_COLUMNS: Readonly<Record<KeySort, RawBuilder<string | number>>> = {
  created: sql`created_at`,
  name: sql`name`,
  'last-used': sql`coalesce(last_used_at, 0)`,
  expires: sql`coalesce(expires_at, ${sql.lit(NEVER_MS)})`,
};

/** Returns one page of keys. Keys created or deleted between two pages do not shift the others. */
export async function pageKeys(
  db: Db,
  filter: KeyFilter,
  { limit = MAX_LIMIT, after, sort = 'created', descending = false }: KeyPaging,
  nowMs: number,
): Promise<KeyPage> {
  if (!(Number.isInteger(limit) && limit >= 1 && limit <= MAX_LIMIT))
    throw new AccessError('invalid_argument', `limit: expected an integer from 1 to ${MAX_LIMIT}`);
  if (!KEY_SORTS.includes(sort)) throw new AccessError('invalid_argument', `sort: expected ${KEY_SORTS.join(', ')}`);
  const order = orderOf(sort, descending);
  const column = SORT_COLUMNS[sort];
  const direction = descending ? 'desc' : 'asc';
  let query = selectKeys(db, filter)
    .select(column.as('sort_value'))
    .orderBy(column, direction)
    .orderBy('id', direction)
    .limit(limit + 1);
  if (after !== undefined) query = startAfter(query, demandCursor(after, order), column, descending);
  const rows = await query.execute();
  const page = rows.slice(0, limit);
  const last = page.at(-1);
  const next =
    rows.length > limit && last !== undefined ? formatCursor({ order, value: last.sort_value, id: last.id }) : null;
  return { data: await describeKeys(db, page, nowMs), next };
}

/** Returns whether `text` is a `next` value for this order. */
export function isKeyCursor(text: string, sort: KeySort, descending: boolean): boolean {
  return parseCursor(text, orderOf(sort, descending)) !== undefined;
}

function orderOf(sort: KeySort, descending: boolean): string {
  return `${sort}${descending ? '-' : '+'}`;
}

function startAfter<T>(
  query: SelectQueryBuilder<AccessTables, 'api_keys', T>,
  { value, id }: Cursor,
  column: RawBuilder<string | number>,
  descending: boolean,
): SelectQueryBuilder<AccessTables, 'api_keys', T> {
  const beyond = sql.raw(descending ? '<' : '>');
  // The first condition is redundant, but it lets the database use the index.
  return query.where(
    sql<boolean>`(${column} ${beyond}= ${value} and (${column} ${beyond} ${value} or id ${beyond} ${id}))`,
  );
}

function formatCursor(cursor: Cursor): string {
  return Buffer.from(JSON.stringify([cursor.order, cursor.value, cursor.id])).toString('base64url');
}

function demandCursor(text: string, order: string): Cursor {
  const cursor = parseCursor(text, order);
  if (cursor === undefined)
    throw new AccessError('invalid_argument', 'after: expected the next value of a page with the same order');
  return cursor;
}

function parseCursor(text: string, wantedOrder: string): Cursor | undefined {
  try {
    const [order, value, id] = JSON.parse(Buffer.from(text, 'base64url').toString()) as unknown[];
    const isValue = wantedOrder.startsWith('name') ? typeof value === 'string' : Number.isSafeInteger(value);
    if (order === wantedOrder && isValue && typeof id === 'string')
      return { order, value: value as string | number, id };
  } catch {
    // Malformed text is not a cursor either.
  }
  return undefined;
}
