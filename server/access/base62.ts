import { randomBytes } from 'node:crypto';

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
/** Bytes from here on would make the first digits likelier than the others. */
const REJECT_FROM = 256 - (256 % 62);

/** Digits from the system's random source, each of them equally likely. */
export function randomBase62(length: number): string {
  let text = '';
  while (text.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < REJECT_FROM && text.length < length) text += DIGITS[byte % 62];
    }
  }
  return text;
}

/** `value` is a 32-bit unsigned integer; six digits hold any. */
export function toBase62(value: number, length: number): string {
  let text = '';
  for (let rest = value; text.length < length; rest = Math.floor(rest / 62)) text = DIGITS[rest % 62] + text;
  return text;
}
