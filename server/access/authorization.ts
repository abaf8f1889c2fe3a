/** What the check reads of a request; names in lower case, duplicates kept. */
export type RawHeaders = readonly (readonly [name: string, value: string])[];

/** Longest value that can hold a key: the longest fixed key is 200 characters. */
const MAX_VALUE_LENGTH = 256;
const SCHEME = 'bearer ';
const VISIBLE_ASCII = /^[\x21-\x7e]{1,200}$/;

/**
 * The bearer value of the one Authorization header, else undefined. The scheme's case does not matter; exactly one space follows it;
 * blanks around the header's value are not part of it; two headers, equal or not, are none.
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

/** Space and tab alone are blanks of a header. */
function trimBlanks(value: string): string {
  let start = 0;
  let end = value.length;
  while (start < end && isBlank(value.charCodeAt(start))) start++;
  while (end > start && isBlank(value.charCodeAt(end - 1))) end--;
  return start === 0 && end === value.length ? value : value.slice(start, end);
}

function isBlank(code: number): boolean {
  return code === 0x20 || code === 0x09;
}
