import type * as Argon2 from 'argon2';
import { requireNative } from '../../base/native-require';

const argon2 = requireNative('argon2') as typeof Argon2;

/** OWASP parameters for argon2id: 19 MiB, two passes, one lane. About 30 ms of one core. */
const PARAMETERS = { type: argon2.argon2id, memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const;

/** Returns the hash to store. The hash itself does not have the form of a key, so it is never accepted as one. */
export function hashSecret(secret: string): Promise<string> {
  return argon2.hash(secret, PARAMETERS);
}

/** Runs off the event loop. Returns false if the stored hash is malformed. */
export async function verifySecret(hash: string, secret: string): Promise<boolean> {
  try {
    return await argon2.verify(hash, secret);
  } catch {
    return false;
  }
}
