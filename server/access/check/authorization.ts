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
  const value = onlyValue(headers, 'authorization');
  if (value === undefined || value.slice(0, SCHEME.length).toLowerCase() !== SCHEME) return undefined;
  const key = value.slice(SCHEME.length);
  return VISIBLE_ASCII.test(key) ? key : undefined;
}

/**
 * Returns the headers of a request to Anthropic's interface with the key of `x-api-key` in the Authorization header.
 * Two `x-api-key` headers, and a key that differs from that of the Authorization header, leave no key.
 */
export function withBearerKey(headers: RawHeaders): RawHeaders {
  const has = (wanted: string) => headers.some(([name]) => name === wanted);
  if (!has('x-api-key')) return headers;
  const key = onlyValue(headers, 'x-api-key');
  const isSame = !has('authorization') || bearerKey(headers) === key;
  const others = headers.filter(([name]) => name !== 'authorization');
  return key === undefined || !isSame ? others : [...others, ['authorization', `Bearer ${key}`]];
}

/** Returns the value of a header without blanks around it. Undefined for none, several, or one that is too long. */
function onlyValue(headers: RawHeaders, wanted: string): string | undefined {
  let value: string | undefined;
  for (const [name, candidate] of headers) {
    if (name !== wanted) continue;
    if (value !== undefined) return undefined;
    value = candidate;
  }
  return value === undefined || value.length > MAX_VALUE_LENGTH ? undefined : trimBlanks(value);
}
