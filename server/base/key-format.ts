import { randomBase62, toBase62 } from './base62';
import { crc32 } from './crc32';

/**
 * A key is `sk-cap1_` + public id (12) + `_` + random secret (32) + checksum (6), in base62. The checksum is the CRC-32
 * of everything before it. It detects typos and noise without a look-up. It is not a security measure.
 */
const PREFIX = 'sk-cap1_';
const PUBLIC_ID_LENGTH = 12;
const SECRET_LENGTH = 32;
const CHECKSUM_LENGTH = 6;
const KEY_LENGTH = PREFIX.length + PUBLIC_ID_LENGTH + 1 + SECRET_LENGTH + CHECKSUM_LENGTH;
const KEY_PATTERN = /^sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}$/;
const KEYS_IN_TEXT = /sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}/g;
export const PUBLIC_ID_PATTERN = /^[0-9A-Za-z]{12}$/;

/** Creates a key with this public id, or with a new one. */
export function generateKey(publicId = randomBase62(PUBLIC_ID_LENGTH)): { publicId: string; secret: string } {
  return { publicId, secret: withChecksum(`${PREFIX}${publicId}_${randomBase62(SECRET_LENGTH)}`) };
}

/** Returns the public id if the text has the form and checksum of a key, otherwise undefined. The key may not exist. */
export function parseKey(text: string): string | undefined {
  if (text.length !== KEY_LENGTH || !KEY_PATTERN.test(text)) return undefined;
  const bodyLength = KEY_LENGTH - CHECKSUM_LENGTH;
  if (!text.endsWith(toBase62(crc32(text, bodyLength), CHECKSUM_LENGTH))) return undefined;
  return text.slice(PREFIX.length, PREFIX.length + PUBLIC_ID_LENGTH);
}

/** Returns the form of a key for display and logs: `sk-cap1_ID_…` and its last four characters. */
export function displayKey(secret: string): string {
  return `${secret.slice(0, PREFIX.length + PUBLIC_ID_LENGTH + 1)}…${secret.slice(-4)}`;
}

/** Replaces every key in a text by its display form. Keys are recognised by pattern and checksum. */
export function redactKeys(text: string): string {
  return text.includes(PREFIX)
    ? text.replace(KEYS_IN_TEXT, (match) => (parseKey(match) === undefined ? match : displayKey(match)))
    : text;
}

function withChecksum(body: string): string {
  return body + toBase62(crc32(body), CHECKSUM_LENGTH);
}
