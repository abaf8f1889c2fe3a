import type * as Argon2 from '@node-rs/argon2';
import { requireNative } from '../../base/native-require';

/** Loaded on first use, because most processes never check a key. */
let library: typeof Argon2 | undefined;
const argon2 = () => (library ??= requireNative('@node-rs/argon2') as typeof Argon2);

/** OWASP parameters for argon2id: 19 MiB, two passes, one lane. About 12 ms of one core. */
const PARAMETERS: Argon2.Options = {
  algorithm: 2 satisfies Argon2.Algorithm.Argon2id,
  memoryCost: 19_456,
  timeCost: 2,
  parallelism: 1,
};

/** Returns the hash to store. The hash itself does not have the form of a key, so it is never accepted as one. */
export function hashSecret(secret: string): Promise<string> {
  return argon2().hash(secret, PARAMETERS);
}

/** Runs off the event loop. Returns false if the stored hash is malformed. */
export async function verifySecret(hash: string, secret: string): Promise<boolean> {
  const { verify } = argon2();
  try {
    return await verify(hash, secret);
  } catch {
    return false;
  }
}
