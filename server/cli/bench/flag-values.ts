import { UsageError } from '../../base/usage-error';
import { anyOf } from '../../base/words';

/** Parsers of flag values. Each throws a UsageError that names the flag, the expected value and the actual value. */

export function parseWhole(flag: string, value: string, min: number, max = Infinity): number {
  const number = /^\d{1,15}$/.test(value) ? Number(value) : NaN;
  if (!(number >= min && number <= max))
    throw new UsageError(
      `${flag}: expected a whole number ${max === Infinity ? `of ${min} or more` : `from ${min} to ${max}`}, got '${value}'`,
    );
  return number;
}

export function parseNumber(flag: string, value: string, min: number, max = Infinity): number {
  const number = /^\d+(\.\d+)?$/.test(value) ? Number(value) : NaN;
  if (!(number >= min && number <= max))
    throw new UsageError(
      `${flag}: expected a number ${max === Infinity ? `of ${min} or more` : `from ${min} to ${max}`}, got '${value}'`,
    );
  return number;
}

/** Parses requests per second, or `inf`. */
export function parseRate(flag: string, value: string): number {
  if (value === 'inf') return Infinity;
  const rate = parseNumber(flag, value, 0);
  if (rate === 0) throw new UsageError(`${flag}: expected requests per second above 0, or inf, got '${value}'`);
  return rate;
}

export function parseOneOf<const T extends string>(flag: string, value: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new UsageError(`${flag}: expected ${anyOf(choices)}, got '${value}'`);
  return found;
}

/** Parses, for example, `50,99,99.9`. */
export function parsePercentiles(flag: string, value: string): number[] {
  return value.split(',').map((part) => parseNumber(flag, part.trim(), 0, 100));
}

/** Parses, for example, `1,2,4,8`. Returns the numbers in ascending order, each once. */
export function parseWholes(flag: string, value: string, min: number, max = Infinity): number[] {
  const numbers = value.split(',').map((part) => parseWhole(flag, part.trim(), min, max));
  return [...new Set(numbers)].sort((a, b) => a - b);
}

/** Parses a list of `name:milliseconds`. */
export function parseBounds<const T extends string>(
  flag: string,
  values: readonly string[],
  names: readonly T[],
): Partial<Record<T, number>> {
  const bounds: Partial<Record<T, number>> = {};
  for (const value of values) {
    const at = value.indexOf(':');
    bounds[parseOneOf(flag, at < 0 ? value : value.slice(0, at), names)] = parseNumber(
      flag,
      at < 0 ? '' : value.slice(at + 1),
      0,
    );
  }
  return bounds;
}

/** Parses a list of `KEY=VALUE`. */
export function parsePairs(flag: string, values: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    values.map((value) => {
      const at = value.indexOf('=');
      if (at < 1) throw new UsageError(`${flag}: expected KEY=VALUE, got '${value}'`);
      return [value.slice(0, at), value.slice(at + 1)];
    }),
  );
}

export function parseJsonObject(flag: string, value: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(value);
  } catch {
    // Reported below.
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw new UsageError(`${flag}: expected a JSON object, got '${value.slice(0, 100)}'`);
  return parsed as Record<string, unknown>;
}

/** Parses an http(s) URL. Removes trailing slashes and `/v1`. */
export function parseBaseUrl(flag: string, value: string): string {
  const url = URL.canParse(value) ? new URL(value) : undefined;
  if (url === undefined || !['http:', 'https:'].includes(url.protocol))
    throw new UsageError(`${flag}: expected a URL such as http://127.0.0.1:8080, got '${value}'`);
  // Base URLs for OpenAI clients end in /v1. Here /v1 is part of the routes.
  return value.replace(/\/+$/, '').replace(/\/v1$/, '');
}
