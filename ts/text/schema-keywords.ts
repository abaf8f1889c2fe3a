import { unsupported } from './schema-error';
import type { Schema } from './schema-merge';

const MAX_COUNT = 1_000_000_000;

export function listAt(value: unknown, path: string): unknown[] {
  if (!Array.isArray(value)) throw unsupported(path, 'expected an array');
  return value;
}

/** Returns the bounds that two keywords set; a maximum of null means no limit. */
export function counts(schema: Schema, minKey: string, maxKey: string, path: string): [number, number | null] {
  const read = (key: string): number | null => {
    const value = schema[key];
    if (value === undefined) return null;
    if (typeof value !== 'number' || !Number.isInteger(value) || value < 0)
      throw unsupported(`${path}/${key}`, 'expected an integer of 0 or more');
    return Math.min(value, MAX_COUNT);
  };
  const [min, max] = [read(minKey) ?? 0, read(maxKey)];
  if (max !== null && max < min) throw unsupported(`${path}/${maxKey}`, `below ${minKey}: no value matches`);
  return [min, max];
}
