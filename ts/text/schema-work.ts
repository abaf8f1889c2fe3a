import { unsupported } from './schema-error';
import { ANNOTATIONS, type Schema } from './schema-merge';

const MAX_SCHEMAS = 10_000;
/** Values of schemas that are merged or compared. */
const MAX_VALUES = 300_000;

/** Bounds what turning the schemas of one grammar into rules takes, which holds up everything else: about half a second. */
export class SchemaWork {
  #numSchemas = 0;
  #numValues = 0;

  /** @throws CapstanError `invalid_argument` when that is one too many. */
  countSchema(path: string): void {
    if (++this.#numSchemas > MAX_SCHEMAS) throw unsupported(path, `more than ${MAX_SCHEMAS} schemas`);
  }

  /** Schemas that are walked as a whole, `times` over. */
  countValues(path: string, schemas: readonly Schema[], times = 1): void {
    const left = (MAX_VALUES - this.#numValues) / times;
    const walked = schemas.flatMap((schema) =>
      Object.entries(schema).flatMap(([key, value]) => (ANNOTATIONS.has(key) ? [] : [value])),
    );
    this.#numValues += countValues(walked, left) * times;
    if (this.#numValues > MAX_VALUES) throw unsupported(path, `combines schemas of more than ${MAX_VALUES} values`);
  }
}

/** Stops counting beyond `max`. */
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
