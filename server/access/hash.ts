import argon2 from 'argon2';

/** OWASP's parameters for argon2id: 19 MiB, two passes, one lane. About 30 ms of one core. */
const PARAMETERS = { type: argon2.argon2id, memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const;

/** What is stored of a key. It is no credential: presented as a key it has the wrong shape. */
export function hashSecret(secret: string): Promise<string> {
  return argon2.hash(secret, PARAMETERS);
}

/** Off the event loop. A stored hash that cannot be read counts as no match. */
export async function verifySecret(hash: string, secret: string): Promise<boolean> {
  try {
    return await argon2.verify(hash, secret);
  } catch {
    return false;
  }
}
