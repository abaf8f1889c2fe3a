import { randomBase62, toBase62 } from './base62';
import { crc32 } from './crc32';

/**
 * `sk-cap1_` + public id (12) + `_` + random secret (32) + checksum (6), in base62. The checksum is the CRC-32 of all before it: it
 * tells typos and noise from keys without a look-up, and is no defence.
 */
const PREFIX = 'sk-cap1_';
const PUBLIC_ID_LENGTH = 12;
const SECRET_LENGTH = 32;
const CHECKSUM_LENGTH = 6;
const KEY_LENGTH = PREFIX.length + PUBLIC_ID_LENGTH + 1 + SECRET_LENGTH + CHECKSUM_LENGTH;
const KEY_PATTERN = /^sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}$/;
const KEYS_IN_TEXT = /sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}/g;
export const PUBLIC_ID_PATTERN = /^[0-9A-Za-z]{12}$/;

/** A new key of this public id, or of a new one. */
export function generateKey(publicId = randomBase62(PUBLIC_ID_LENGTH)): { publicId: string; secret: string } {
  return { publicId, secret: withChecksum(`${PREFIX}${publicId}_${randomBase62(SECRET_LENGTH)}`) };
}

/** The public id of a key of the right shape and checksum, else undefined. Says nothing about whether the key exists. */
export function parseKey(text: string): string | undefined {
  if (text.length !== KEY_LENGTH || !KEY_PATTERN.test(text)) return undefined;
  const bodyLength = KEY_LENGTH - CHECKSUM_LENGTH;
  if (!text.endsWith(toBase62(crc32(text, bodyLength), CHECKSUM_LENGTH))) return undefined;
  return text.slice(PREFIX.length, PREFIX.length + PUBLIC_ID_LENGTH);
}

/** How a key is shown and logged once its secret is gone: `sk-cap1_ID_…` and its last four characters. */
export function displayKey(secret: string): string {
  return `${secret.slice(0, PREFIX.length + PUBLIC_ID_LENGTH + 1)}…${secret.slice(-4)}`;
}

/** The last line of defence of logs: every key in a text (by pattern and checksum) becomes its display form. */
export function redactKeys(text: string): string {
  return text.includes(PREFIX)
    ? text.replace(KEYS_IN_TEXT, (match) => (parseKey(match) === undefined ? match : displayKey(match)))
    : text;
}

function withChecksum(body: string): string {
  return body + toBase62(crc32(body), CHECKSUM_LENGTH);
}
