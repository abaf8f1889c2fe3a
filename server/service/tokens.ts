import { createHash } from 'node:crypto';
import { randomBase62 } from '../access/base62';

const TOKEN_LENGTH = 43;

/** About 256 random bits: what is shown once, while the database keeps its hash. */
export function newToken(): string {
  return randomBase62(TOKEN_LENGTH);
}

/** A plain hash is enough for what nobody can guess. */
export function tokenHash(token: string): string {
  return createHash('sha256').update(token).digest('hex');
}
