import { readFileSync, statSync } from 'node:fs';
import type { EngineOptions } from '../../ts';
import { UsageError } from '../base/usage-error';
import { anyOf } from '../base/words';

const DTYPES: Readonly<Record<string, EngineOptions['dtype']>> = {
  auto: 'auto',
  f32: 'f32',
  float32: 'f32',
  float: 'f32',
  f16: 'f16',
  float16: 'f16',
  half: 'f16',
  bf16: 'bf16',
  bfloat16: 'bf16',
};

export function parseChoice<const T extends string>(value: string, source: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new UsageError(`${source}: expected ${anyOf(choices)}, got '${value}'`);
  return found;
}

export function parseDtype(value: string, source: string): NonNullable<EngineOptions['dtype']> {
  return parseAlias(value, source, DTYPES);
}

function parseAlias<T>(value: string, source: string, aliases: Readonly<Record<string, T>>): NonNullable<T> {
  const found = Object.hasOwn(aliases, value) ? aliases[value] : undefined;
  if (found === undefined || found === null)
    throw new UsageError(`${source}: expected ${anyOf(Object.keys(aliases))}, got '${value}'`);
  return found;
}

const CACHE_DTYPES: Readonly<Record<string, EngineOptions['kvCacheDtype']>> = {
  ...DTYPES,
  int8: 'int8',
  int8_per_token_head: 'int8',
  fp8: 'fp8',
  fp8_e4m3: 'fp8',
};

export function parseCacheDtype(value: string, source: string): NonNullable<EngineOptions['kvCacheDtype']> {
  return parseAlias(value, source, CACHE_DTYPES);
}

export function parsePort(value: string, source: string): number {
  const port = /^\d{1,5}$/.test(value) ? Number(value) : NaN;
  if (!(port <= 65535)) throw new UsageError(`${source}: expected a port from 0 to 65535, got '${value}'`);
  return port;
}

export function parseSeconds(value: string, source: string, min: number): number {
  const seconds = /^\d+(\.\d+)?$/.test(value) ? Number(value) : NaN;
  if (!(seconds >= min && seconds <= 86_400))
    throw new UsageError(`${source}: expected seconds from ${min} to 86400, got '${value}'`);
  return seconds * 1000;
}

/** As in vLLM: lower case means powers of 1,000, upper case powers of 1,024. */
const COUNT_UNITS: Readonly<Record<string, number>> = {
  '': 1,
  k: 1e3,
  m: 1e6,
  g: 1e9,
  K: 2 ** 10,
  M: 2 ** 20,
  G: 2 ** 30,
};

export function parseCount(value: string, source: string, min = 1): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)([kmgKMG]?)$/.exec(value) ?? [];
  const count = digits === undefined ? NaN : Number(digits) * COUNT_UNITS[unit];
  if (!Number.isSafeInteger(count) || count < min)
    throw new UsageError(`${source}: expected a whole number of ${min} or more, such as 8192 or 8K, got '${value}'`);
  return count;
}

const BYTE_UNITS: Readonly<Record<string, number>> = { '': 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

/** Parses a size in powers of 1,024: 2G, 2g, 2GB and 2GiB are equal. */
export function parseBytes(value: string, source: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?$/i.exec(value) ?? [];
  const bytes = digits === undefined ? NaN : Math.round(Number(digits) * BYTE_UNITS[unit.toLowerCase()]);
  if (!Number.isSafeInteger(bytes) || bytes < 1)
    throw new UsageError(`${source}: expected a number of bytes, such as 512M or 2G, got '${value}'`);
  return bytes;
}

/** Parses a share above 0 and at most 1. */
export function parseShare(value: string, source: string): number {
  const share = /^\d*\.?\d+$/.test(value) ? Number(value) : NaN;
  if (!(share > 0 && share <= 1))
    throw new UsageError(`${source}: expected a number above 0 and at most 1, such as 0.9, got '${value}'`);
  return share;
}

/** Parses a number of 0 or more. */
export function parseNotNegative(value: string, source: string): number {
  const number = /^\d*\.?\d+$/.test(value) ? Number(value) : NaN;
  if (!Number.isFinite(number))
    throw new UsageError(`${source}: expected a number of 0 or more, such as 0.7, got '${value}'`);
  return number;
}

export function parseBoolean(value: string, source: string): boolean {
  if (/^(1|true|yes|on)$/i.test(value)) return true;
  if (/^(0|false|no|off)$/i.test(value)) return false;
  throw new UsageError(`${source}: expected true or false, got '${value}'`);
}

/** Parses a whole number of `min` or more. */
export function parseInteger(value: string, source: string, min: number): number {
  const number = /^-?\d{1,15}$/.test(value) ? Number(value) : NaN;
  if (!(number >= min)) throw new UsageError(`${source}: expected a whole number of ${min} or more, got '${value}'`);
  return number;
}

export function parseJsonObject(
  value: string,
  source: string,
  example = '{"temperature": 0.7}',
): Record<string, unknown> {
  try {
    const parsed = JSON.parse(value) as unknown;
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed))
      return parsed as Record<string, unknown>;
  } catch {
    // Reported below.
  }
  throw new UsageError(`${source}: expected a JSON object, such as ${example}, got '${value}'`);
}

/** Parses NAME=FOLDER, the JSON object of vLLM, or a JSON list of such objects. Returns names and folders. */
export function parseLoraModules(value: string, source: string): [name: string, folder: string][] {
  const modules = /^[[{]/.test(value)
    ? parseJson(value)
    : { name: value.slice(0, Math.max(0, value.indexOf('='))), path: value.slice(value.indexOf('=') + 1) };
  return [modules].flat().map((module) => {
    const { name, path } = (module ?? {}) as { name?: unknown; path?: unknown };
    if (typeof name === 'string' && name !== '' && typeof path === 'string' && path !== '') return [name, path];
    throw new UsageError(
      `${source}: expected an adapter such as sql=/models/sql or {"name": "sql", "path": "/models/sql"}, got '${value}'`,
    );
  });
}

/** Returns undefined for text that is not JSON. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Parses one name, or a JSON list of names (`["a", "b"]`), as vLLM does. */
export function parseNames(value: string, source: string): string[] {
  if (!value.startsWith('[')) return [value];
  try {
    const parsed = JSON.parse(value) as unknown;
    if (Array.isArray(parsed) && parsed.every((item) => typeof item === 'string')) return parsed;
  } catch {
    // Reported below.
  }
  throw new UsageError(`${source}: expected names, or a JSON list of strings, got '${value}'`);
}

export function readTextFile(path: string, source: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new UsageError(
      `${source}: expected a readable file, got '${path}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
    );
  }
}

export function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true;
}

/** Collects the values of a repeatable flag. */
export function collect(value: string, previous: string[] = []): string[] {
  return [...previous, value];
}
