import { randomBytes } from 'node:crypto';

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
/** Larger bytes are rejected, because they would make the first digits more likely than the others. */
const REJECT_FROM = 256 - (256 % 62);

/** Returns uniformly distributed digits from the system's random source. */
export function randomBase62(length: number): string {
  let text = '';
  while (text.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < REJECT_FROM && text.length < length) text += DIGITS[byte % 62];
    }
  }
  return text;
}

/** Returns `value`, a 32-bit unsigned integer, with leading zeros. Six digits hold every value. */
export function toBase62(value: number, length: number): string {
  let text = '';
  for (let rest = value; text.length < length; rest = Math.floor(rest / 62)) {
    text = DIGITS[rest % 62] + text;
  }
  return text;
}
