import { createHash } from 'node:crypto';
import { randomBase62 } from 'capstan/internal';

const TOKEN_LENGTH = 43;

/** Returns a random token of about 256 bits. Show it once and store only its hash. */
export function newToken(): string {
  return randomBase62(TOKEN_LENGTH);
}

/** Returns the SHA-256 of a token. A slow hash is not needed, because a token cannot be guessed. */
export function tokenHash(token: string): string {
  return createHash('sha256').update(token).digest('hex');
}
