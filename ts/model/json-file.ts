import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CapstanError, escapeControls, showValue } from '../errors';

/** Maximum of sizes and counts, because the addon stores them in 32 bits. */
const MAX_INT = 2 ** 31 - 1;

export type JsonObject = Record<string, unknown>;

/** Returns the JSON object in a file of the model directory, or undefined if the file does not exist. */
export async function readJsonFile(modelDir: string, name: string): Promise<JsonObject | undefined> {
  const text = await readTextFile(modelDir, name);
  return text === undefined ? undefined : parseJsonObject(text, name);
}

/** Returns undefined if the file does not exist. @throws CapstanError `io_error` if it exists but cannot be read. */
export async function readTextFile(modelDir: string, name: string): Promise<string | undefined> {
  return (await readBytes(modelDir, name))?.toString('utf8');
}

/** As {@link readTextFile}. */
export async function readBytes(modelDir: string, name: string): Promise<Buffer | undefined> {
  try {
    return await readFile(join(modelDir, name));
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new CapstanError('io_error', `cannot read ${name}: ${(cause as Error).message}`, { param: name, cause });
  }
}

/** @throws CapstanError `invalid_model` that names the file. */
export function parseJsonObject(text: string, name: string): JsonObject {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (cause) {
    // The message quotes the text.
    const reason = escapeControls((cause as Error).message);
    throw new CapstanError('invalid_model', `${name}: expected JSON, got text that does not parse (${reason})`, {
      param: name,
      cause,
    });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw CapstanError.mismatch('invalid_model', name, 'a JSON object', value);
  }
  return value as JsonObject;
}

/** Python writes the numbers Infinity, -Infinity and NaN, which JSON does not have. They become strings. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const quoted = text.replace(/"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g, (part) => (part[0] === '"' ? part : `"${part}"`));
    if (quoted === text) throw error;
    return JSON.parse(quoted);
  }
}

/**
 * Typed access to one JSON object of a file. null counts as absent. Errors are `invalid_model` and name file and key.
 */
export class JsonReader {
  readonly #object: JsonObject;
  /** Names the object in errors. */
  readonly where: string;

  constructor(object: JsonObject, where: string) {
    this.#object = object;
    this.where = where;
  }

  keys(): string[] {
    return Object.keys(this.#object);
  }

  has(key: string): boolean {
    return this.#object[key] !== undefined;
  }

  isNull(key: string): boolean {
    return this.#object[key] === null;
  }

  raw(key: string): unknown {
    return this.#object[key] ?? undefined;
  }

  positiveInt(key: string, fallback?: number, max = MAX_INT): number {
    return this.#read(
      key,
      fallback,
      `an integer from 1 to ${max}`,
      (value) => Number.isInteger(value) && (value as number) > 0 && (value as number) <= max,
    );
  }

  nonNegativeInt(key: string, fallback?: number): number {
    return this.#read(
      key,
      fallback,
      `an integer from 0 to ${MAX_INT}`,
      (value) => Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_INT,
    );
  }

  positiveNumber(key: string, fallback?: number): number {
    return this.#read(key, fallback, 'a number above 0', (value) => Number.isFinite(value) && (value as number) > 0);
  }

  boolean(key: string, fallback?: boolean): boolean {
    return this.#read(key, fallback, 'true or false', (value) => typeof value === 'boolean');
  }

  string(key: string, fallback?: string): string {
    return this.#read(key, fallback, 'a string', (value) => typeof value === 'string');
  }

  object(key: string): JsonReader | undefined {
    const value = this.raw(key);
    if (value === undefined) return undefined;
    if (typeof value !== 'object' || Array.isArray(value)) throw this.mismatch(key, 'an object', value);
    return new JsonReader(value as JsonObject, `${this.where}: ${key}`);
  }

  /** Returns the token ids of a key that holds one integer, a list, or nothing. */
  tokenIds(key: string): number[] {
    const value = this.raw(key);
    if (value === undefined) return [];
    const ids: unknown[] = Array.isArray(value) ? value : [value];
    return ids.map((id) => {
      if (!Number.isSafeInteger(id) || (id as number) < 0) throw this.mismatch(key, 'a token id or a list of them', id);
      return id as number;
    });
  }

  mismatch(key: string, expected: string, received: unknown): CapstanError {
    const where = `${this.where}: ${key}`;
    const isMissing = received === undefined;
    const shown = isMissing ? 'nothing' : showValue(received);
    const message = `${where}: expected ${expected}, ${isMissing ? 'but it is missing' : `got ${shown}`}`;
    return new CapstanError('invalid_model', message, { param: key, expected, received: shown });
  }

  #read<T>(key: string, fallback: T | undefined, expected: string, isValid: (value: unknown) => boolean): T {
    const value = this.raw(key) ?? fallback;
    if (!isValid(value)) throw this.mismatch(key, expected, value);
    return value as T;
  }
}
