import { trimBlanks } from '../../base/blanks';

/** Request headers with lower-case names, including duplicates. */
export type RawHeaders = readonly (readonly [name: string, value: string])[];

/** Longer than any valid value: the longest fixed key has 200 characters. */
const MAX_VALUE_LENGTH = 256;
const SCHEME = 'bearer ';
const VISIBLE_ASCII = /^[\x21-\x7e]{1,200}$/;

/**
 * Returns the key of the Authorization header, or undefined. The scheme is case-insensitive and followed by exactly one
 * space. Blanks around the header value are ignored. Two Authorization headers, equal or not, are refused.
 */
export function bearerKey(headers: RawHeaders): string | undefined {
  let value: string | undefined;
  for (const [name, candidate] of headers) {
    if (name !== 'authorization') continue;
    if (value !== undefined) return undefined;
    value = candidate;
  }
  if (value === undefined || value.length > MAX_VALUE_LENGTH) return undefined;
  value = trimBlanks(value);
  if (value.slice(0, SCHEME.length).toLowerCase() !== SCHEME) return undefined;
  const key = value.slice(SCHEME.length);
  return VISIBLE_ASCII.test(key) ? key : undefined;
}
