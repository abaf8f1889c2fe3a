import { randomBytes } from 'node:crypto';

const CROCKFORD = '0123456789abcdefghjkmnpqrstvwxyz';
const TIME_LENGTH = 10;
const RANDOM_LENGTH = 16;

export type IdPrefix =
  | 'usr'
  | 'org'
  | 'dep'
  | 'key'
  | 'aud'
  | 'gtw'
  | 'inv'
  | 'img'
  | 'con'
  | 'src'
  | 'ver'
  | 'rep'
  | 'bnd'
  | 'tok'
  | 'whk'
  | 'whd'
  | 'idp'
  | 'prc'
  | 'bud'
  | 'file'
  | 'batch';

/** Returns an id such as `key_` and 26 characters: 48 bits of milliseconds, then 80 random bits. Ids sort by time. */
export function newId(prefix: IdPrefix, nowMs = Date.now()): string {
  let time = '';
  for (let rest = nowMs; time.length < TIME_LENGTH; rest = Math.floor(rest / 32)) {
    time = CROCKFORD[rest % 32] + time;
  }
  const random = Array.from(randomBytes(RANDOM_LENGTH), (byte) => CROCKFORD[byte % 32]).join('');
  return `${prefix}_${time}${random}`;
}
