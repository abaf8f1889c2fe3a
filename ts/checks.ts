import { types } from 'node:util';
import { CapstanError } from './errors';
import { nearest } from './nearest';

/** The rule that a number must satisfy. Bounds are inclusive, except for `isMinOpen`. */
export interface NumberRule {
  min?: number;
  max?: number;
  /** Excludes the minimum itself. */
  isMinOpen?: boolean;
  isInteger?: boolean;
}

/** @throws CapstanError `invalid_argument` with `param`, the expected range and the received value. */
export function checkNumber(param: string, value: unknown, rule: NumberRule = {}): number {
  const { min = -Infinity, max = Infinity } = rule;
  const isInside =
    typeof value === 'number' &&
    Number.isFinite(value) &&
    value >= min &&
    value <= max &&
    !(rule.isMinOpen && value === min) &&
    (!rule.isInteger || Number.isSafeInteger(value));
  if (!isInside) throw CapstanError.argument(param, describeNumber(rule), value);
  return value;
}

export function checkBoolean(param: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw CapstanError.argument(param, 'true or false', value);
  return value;
}

export function checkString(param: string, value: unknown): string {
  if (typeof value !== 'string') throw CapstanError.argument(param, 'a string', value);
  return value;
}

export function checkOneOf<T extends string>(param: string, value: unknown, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw CapstanError.argument(param, `one of ${choices.join(', ')}`, value);
  return found;
}

export function checkObject(param: string, value: unknown): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw CapstanError.argument(param, 'an object', value);
  return value as Record<string, unknown>;
}

/** NOTE: not `instanceof`, because a program may load two copies of the library. */
export function checkEngine<T>(engine: T): T {
  if (typeof (engine as { chat?: unknown } | null | undefined)?.chat !== 'function')
    throw CapstanError.argument('engine', 'an engine, as await Engine.load(model) returns it', engine);
  return engine;
}

/**
 * Checks a JSON Schema. A schema object of a library, such as Zod, would be read as a schema without rules.
 * NOTE: plain objects of another `vm` context have another prototype, which has none itself.
 */
export function checkPlainSchema(param: string, value: unknown): Record<string, unknown> {
  if (typeof value !== 'function') {
    const fields = checkObject(param, value);
    const prototype = Object.getPrototypeOf(fields) as object | null;
    if (prototype === null || Object.getPrototypeOf(prototype) === null) return fields;
  }
  throw CapstanError.unexpected(
    'invalid_argument',
    param,
    'a JSON Schema as a plain object',
    'a schema object of a library. Convert it, with Zod 4 by z.toJSONSchema(schema), or use generateObject or runTools, ' +
      'which take it as it is',
  );
}

/**
 * Returns token ids in the form that the addon takes. Each must be below `vocabSize`. NOTE: not `instanceof`, because
 * arrays from a thread are of another class where the host runs this code in a `vm` context, as Jest does.
 */
export function checkTokenIds(param: string, value: unknown, vocabSize: number): Int32Array {
  if (!Array.isArray(value) && !types.isInt32Array(value))
    throw CapstanError.argument(param, 'an array of token ids', value);
  const ids = value as ArrayLike<unknown>;
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i];
    if (!Number.isInteger(id) || (id as number) < 0 || (id as number) >= vocabSize) {
      throw CapstanError.argument(`${param}[${i}]`, `a token id from 0 to ${vocabSize - 1}`, id);
    }
  }
  return types.isInt32Array(value) ? value : Int32Array.from(value as number[]);
}

/** Refuses unknown options, because a misspelt one would silently do nothing. */
export function checkKnownKeys(param: string, value: object, known: readonly string[]): void {
  const unknown = Object.keys(value).find((key) => !known.includes(key));
  if (unknown === undefined) return;
  const similar = nearest(unknown, known);
  throw CapstanError.unexpected(
    'invalid_argument',
    `${param}.${unknown}`,
    `one of the options ${known.join(', ')}`,
    `an unknown option${similar === undefined ? '' : `. Did you mean ${similar}?`}`,
  );
}

function describeNumber({ min, max, isMinOpen, isInteger }: NumberRule): string {
  const noun = isInteger ? 'an integer' : 'a number';
  if (min !== undefined && max !== undefined)
    return `${noun} ${isMinOpen ? `above ${min} and up to` : `from ${min} to`} ${max}`;
  if (min !== undefined) return `${noun} ${isMinOpen ? `above ${min}` : `of ${min} or more`}`;
  return max === undefined ? noun : `${noun} of ${max} or less`;
}
