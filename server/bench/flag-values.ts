import { UsageError } from '../flag-values';

/** Values of the benchmark's flags; each throws a UsageError that names the flag, what was expected and what came. */

export function parseWhole(flag: string, value: string, min: number): number {
  const number = /^\d{1,15}$/.test(value) ? Number(value) : NaN;
  if (!(number >= min)) throw new UsageError(`${flag}: expected a whole number of ${min} or more, got '${value}'`);
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

/** Requests a second. */
export function parseRate(flag: string, value: string): number {
  if (value === 'inf') return Infinity;
  const rate = parseNumber(flag, value, 0);
  if (rate === 0) throw new UsageError(`${flag}: expected requests per second above 0, or inf, got '${value}'`);
  return rate;
}

export function parseOneOf<const T extends string>(flag: string, value: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new UsageError(`${flag}: expected ${choices.join(', ')}, got '${value}'`);
  return found;
}

/** `50,99,99.9` */
export function parsePercentiles(flag: string, value: string): number[] {
  return value.split(',').map((part) => parseNumber(flag, part.trim(), 0, 100));
}

/** `name:milliseconds`, several. */
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

/** `KEY=VALUE`, several. */
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
    // Told below.
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw new UsageError(`${flag}: expected an object of JSON, got '${value.slice(0, 100)}'`);
  return parsed as Record<string, unknown>;
}

/** An http(s) URL without a slash at its end. */
export function parseBaseUrl(flag: string, value: string): string {
  const url = URL.canParse(value) ? new URL(value) : undefined;
  if (url === undefined || !['http:', 'https:'].includes(url.protocol))
    throw new UsageError(`${flag}: expected a URL such as http://127.0.0.1:8080, got '${value}'`);
  // Of the addresses that people have at hand, many end in /v1, which is part of the routes here.
  return value.replace(/\/+$/, '').replace(/\/v1$/, '');
}
