/** Orders in which keys can be listed. */
export const KEY_SORTS = ['created', 'name', 'last-used', 'expires'] as const;

export type KeySort = (typeof KEY_SORTS)[number];
