/**
 * Trims spaces and tabs, the only white space around a header value (RFC 9110, 5.6.3). `String.trim` also removes
 * characters that other parsers keep, such as U+00A0. A value would then mean different things to them and to us.
 */
export function trimBlanks(value: string): string {
  let start = 0;
  let end = value.length;
  while (start < end && isBlank(value.charCodeAt(start))) start++;
  while (end > start && isBlank(value.charCodeAt(end - 1))) end--;
  return start === 0 && end === value.length ? value : value.slice(start, end);
}

function isBlank(code: number): boolean {
  return code === 0x20 || code === 0x09;
}
