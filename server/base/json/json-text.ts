import { isUtf8 } from 'node:buffer';
import { ApiError } from '../errors';

/** Recursive functions overflow the stack on deeper values. No real request nests like this. */
const MAX_DEPTH = 256;

const [QUOTE, BACKSLASH, COLON, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = Buffer.from('"\\:[]{}');
const SEED_KEY = Buffer.from('"seed"');

export interface JsonText {
  readonly value: unknown;
  /** The exact value of the top-level `seed`, if it is an integer. A double would lose digits. */
  readonly seed: bigint | undefined;
}

/**
 * Parses JSON. Throws ApiError `invalid_json` for invalid JSON, invalid Unicode and values that are nested too deeply.
 */
export function parseJsonText(bytes: Buffer): JsonText {
  if (!isUtf8(bytes)) throw new ApiError('invalid_json', 'The body is not valid JSON: expected UTF-8');
  const seedStart = findSeed(bytes);
  const text = bytes.toString('utf8');
  const value = parse(text);
  // Escapes can produce lone surrogates, which are not valid text.
  if (/\\u[dD][89a-fA-F]/.test(text)) checkWellFormed(value);
  return { value, seed: seedStart === undefined ? undefined : integerAt(bytes, seedStart) };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new ApiError('invalid_json', 'The body is not valid JSON');
  }
}

/**
 * Returns where the value of the last top-level `seed` begins. Also checks the depth. The text need not be valid JSON.
 */
function findSeed(bytes: Buffer): number | undefined {
  let depth = 0;
  let stringStart = 0;
  let stringEnd = 0;
  let seedStart: number | undefined;
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
          `The body is nested too deeply: expected at most ${MAX_DEPTH} levels of arrays and objects`,
        );
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
      depth--;
    } else if (
      byte === COLON &&
      depth === 1 &&
      stringEnd - stringStart === SEED_KEY.length &&
      SEED_KEY.compare(bytes, stringStart, stringEnd) === 0
    ) {
      seedStart = i + 1;
    }
  }
  return seedStart;
}

/** Longer numbers are out of range for a 64-bit integer. */
const MAX_INTEGER_BYTES = 64;

function integerAt(bytes: Buffer, start: number): bigint | undefined {
  const [, digits] = /^\s*(-?\d+)\s*[,}]/.exec(bytes.toString('latin1', start, start + MAX_INTEGER_BYTES)) ?? [];
  return digits === undefined ? undefined : BigInt(digits);
}

function checkWellFormed(value: unknown): void {
  if (typeof value === 'string') {
    if (/[\ud800-\udfff]/u.test(value))
      throw new ApiError(
        'invalid_json',
        'The body is not valid JSON: expected complete characters in strings, got a lone surrogate',
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
