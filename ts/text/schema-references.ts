import { unsupported } from './schema-error';
import { asSchema, unescapePointer } from './schema-merge';
import type { Schema } from './schema-types';

/** Levels of objects and arrays. A schema takes at least two. */
const MAX_NESTING = 256;

/** Finds the targets of `$ref` within one schema: by JSON pointer, `$anchor` or `$id`. */
export class SchemaReferences {
  readonly root: Schema;
  readonly #document: unknown;
  /** By `$id` and by `#` and `$anchor`. */
  #named: ReadonlyMap<string, unknown> | undefined;

  constructor(document: unknown) {
    checkNesting(document);
    this.#document = document;
    this.root = asSchema(document, '#');
  }

  /** @throws CapstanError `invalid_argument` if the schema has no such part. */
  resolve(reference: unknown, path: string): Schema {
    if (typeof reference !== 'string') throw unsupported(path, 'expected a text');
    if (reference === '#' || reference.startsWith('#/')) return this.#at(reference, path);
    this.#named ??= namedParts(this.#document);
    if (this.#named.has(reference)) return asSchema(this.#named.get(reference), reference);
    throw unsupported(path, 'only references within the schema are supported, such as #/$defs/name');
  }

  #at(pointer: string, path: string): Schema {
    let at: unknown = this.#document;
    for (const part of pointer.split('/').slice(1)) {
      const key = decodePointer(part, path);
      if (typeof at !== 'object' || at === null || !Object.hasOwn(at, key))
        throw unsupported(path, 'the target of the reference does not exist');
      at = (at as Schema)[key];
    }
    return asSchema(at, pointer);
  }
}

/** Bounds the recursion of everything that reads the schema. */
function checkNesting(document: unknown): void {
  // Sets, because one object may occur in several places.
  let level = new Set<unknown>(typeof document === 'object' && document !== null ? [document] : []);
  for (let depth = 0; level.size > 0; depth++) {
    if (depth > MAX_NESTING) throw unsupported('#', `nested deeper than ${MAX_NESTING} levels of JSON`);
    const next = new Set<unknown>();
    for (const part of level)
      for (const value of Object.values(part as object))
        if (typeof value === 'object' && value !== null) next.add(value);
    level = next;
  }
}

function decodePointer(part: string, path: string): string {
  try {
    return unescapePointer(decodeURIComponent(part));
  } catch {
    throw unsupported(path, 'the reference is not a JSON pointer');
  }
}

function namedParts(document: unknown): ReadonlyMap<string, unknown> {
  const named = new Map<string, unknown>();
  const parts = new Set<unknown>([document]);
  for (const part of parts) {
    if (typeof part !== 'object' || part === null) continue;
    const { $id, $anchor } = part as Schema;
    if (typeof $id === 'string') named.set($id, part);
    if (typeof $anchor === 'string') named.set(`#${$anchor}`, part);
    for (const value of Object.values(part)) parts.add(value);
  }
  return named;
}
