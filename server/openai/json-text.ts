import { isUtf8 } from 'node:buffer';
import { ApiError } from '../errors';

/** Deeper values overflow what walks them; no client nests like this. */
const MAX_DEPTH = 256;

const [QUOTE, BACKSLASH, COLON, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = Buffer.from('"\\:[]{}');
const SEED_KEY = Buffer.from('"seed"');

export interface JsonText {
  readonly value: unknown;
  /** The top-level `seed` where it is an integer, without the loss of a double. */
  readonly seed: bigint | undefined;
}

/** @throws ApiError `invalid_json` for what is no JSON text of Unicode characters, or nested too deep. */
export function parseJsonText(bytes: Buffer): JsonText {
  if (!isUtf8(bytes)) throw new ApiError('invalid_json', 'The body is not valid JSON: expected UTF-8');
  const seedAt = scan(bytes);
  const text = bytes.toString('utf8');
  const value = parse(text);
  // An escape can name half a character, which no text holds.
  if (/\\u[dD][89a-fA-F]/.test(text)) checkWellFormed(value);
  return { value, seed: seedAt === undefined ? undefined : integerAt(bytes, seedAt) };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new ApiError('invalid_json', 'The body is not valid JSON');
  }
}

/** Where the value of the last top-level `seed` begins. Does not care whether the rest is JSON. */
function scan(bytes: Buffer): number | undefined {
  let depth = 0;
  let stringStart = 0;
  let stringEnd = 0;
  let seedAt: number | undefined;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i];
    if (byte === QUOTE) {
      stringStart = i++;
      while (i < bytes.length && bytes[i] !== QUOTE) i += bytes[i] === BACKSLASH ? 2 : 1;
      stringEnd = i + 1;
    } else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
      if (++depth > MAX_DEPTH)
        throw new ApiError(
          'invalid_json',
          `The body is not acceptable JSON: expected at most ${MAX_DEPTH} levels of lists and objects`,
        );
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
      depth--;
    } else if (
      byte === COLON &&
      depth === 1 &&
      stringEnd - stringStart === SEED_KEY.length &&
      SEED_KEY.compare(bytes, stringStart, stringEnd) === 0
    ) {
      seedAt = i + 1;
    }
  }
  return seedAt;
}

/** More digits than a 64-bit integer has are out of its range as a double too. */
const MAX_INTEGER_BYTES = 64;

function integerAt(bytes: Buffer, at: number): bigint | undefined {
  const [, digits] = /^\s*(-?\d+)\s*[,}]/.exec(bytes.toString('latin1', at, at + MAX_INTEGER_BYTES)) ?? [];
  return digits === undefined ? undefined : BigInt(digits);
}

function checkWellFormed(value: unknown): void {
  if (typeof value === 'string') {
    if (/[\ud800-\udfff]/u.test(value))
      throw new ApiError(
        'invalid_json',
        'The body is not acceptable JSON: expected whole characters in strings, got half of a surrogate pair',
      );
  } else if (Array.isArray(value)) {
    value.forEach(checkWellFormed);
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, field] of Object.entries(value)) {
      checkWellFormed(key);
      checkWellFormed(field);
    }
  }
}
