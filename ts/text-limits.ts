const MIN_LOOSE_BYTES = 2 ** 20;
const LOOSE_BYTES_PER_TOKEN = 8;

/**
 * Returns the maximum length in bytes of a text that may be longer than the context, because it is only counted or will
 * be truncated. Tokenizing it delays other prompts.
 */
export function looseTextBytes(maxModelLen: number): number {
  return Math.max(MIN_LOOSE_BYTES, maxModelLen * LOOSE_BYTES_PER_TOKEN);
}
