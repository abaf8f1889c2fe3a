import { unsupported } from './schema-error';
import { validates } from './schema-keywords';
import type { Schema } from './schema-types';

const MAX_SCHEMAS = 10_000;
/** Number of JSON values in schemas that are merged or compared. */
const MAX_VALUES = 300_000;

/** Parts of the grammar that one keyword makes many of: rules, constants and multiples. */
const MAX_PARTS = 100_000;

/** Bounds the time to convert the schemas of one grammar to about half a second, because other grammars wait for it. */
export class SchemaBudget {
  #numSchemas = 0;
  #numValues = 0;
  #numParts = 0;

  /** @throws CapstanError `invalid_argument` over the limit. */
  countSchema(path: string): void {
    if (++this.#numSchemas > MAX_SCHEMAS) throw unsupported(path, `more than ${MAX_SCHEMAS} schemas`);
  }

  /** @throws CapstanError `invalid_argument` over the limit. */
  countParts(path: string, num: number): void {
    this.#numParts += num;
    if (this.#numParts > MAX_PARTS) throw unsupported(path, `more than ${MAX_PARTS} rules and constants`);
  }

  /**
   * Counts the values of schemas that are traversed `times` times.
   * @throws CapstanError `invalid_argument` over the limit.
   */
  countValues(path: string, schemas: readonly Schema[], times = 1): void {
    const left = (MAX_VALUES - this.#numValues) / times;
    const values = schemas.flatMap((schema) =>
      Object.entries(schema).flatMap(([key, value]) => (validates(key) ? [value] : [])),
    );
    this.#numValues += countValues(values, left) * times;
    if (this.#numValues > MAX_VALUES) throw unsupported(path, `combines schemas of more than ${MAX_VALUES} values`);
  }
}

/** Counts nested values and stops above `max`. */
function countValues(value: unknown, max: number): number {
  const open: unknown[] = [value];
  let num = 0;
  while (open.length > 0 && num <= max) {
    const next = open.pop();
    num++;
    if (typeof next !== 'object' || next === null) continue;
    for (const part of Array.isArray(next) ? (next as unknown[]) : Object.values(next)) open.push(part);
  }
  return num;
}
