import { unsupported } from './schema-error';
import type { Schema, TypeName } from './schema-types';

/** Keywords that apply to one type only. Without `type` they imply it. */
export const KEYWORDS: Record<TypeName, readonly string[]> = {
  object: [
    'properties',
    'required',
    'additionalProperties',
    'unevaluatedProperties',
    'patternProperties',
    'propertyNames',
    'minProperties',
    'maxProperties',
  ],
  array: ['items', 'prefixItems', 'unevaluatedItems', 'minItems', 'maxItems', 'uniqueItems'],
  string: ['minLength', 'maxLength', 'pattern'],
  integer: [],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  boolean: [],
  null: [],
};

const APPLICATORS = ['type', 'enum', 'const', 'anyOf', 'oneOf', 'allOf', '$ref', 'format'];

/** Keywords that restrict the values and that a grammar cannot follow here. */
const REFUSED = new Set([
  'not',
  'if',
  'contains',
  'dependencies',
  'dependentRequired',
  'dependentSchemas',
  '$dynamicRef',
  '$recursiveRef',
]);

const VALIDATING = new Set([...APPLICATORS, ...Object.values(KEYWORDS).flat(), ...REFUSED]);

/** Returns whether a keyword restricts the values. All others are ignored: annotations, `x-…` and unknown ones. */
export function validates(keyword: string): boolean {
  return VALIDATING.has(keyword);
}

/** Returns the first keyword that restricts the values and is not one of `keywords`. */
export function keywordBeside(schema: Schema, keywords: readonly string[]): string | undefined {
  return Object.keys(schema).find((key) => validates(key) && !keywords.includes(key));
}

/** @throws CapstanError `invalid_argument` for a keyword that cannot be followed. */
export function checkKeywords(schema: Schema, path: string): void {
  const refused = Object.keys(schema).find((key) => REFUSED.has(key));
  if (refused !== undefined) throw unsupported(`${path}/${refused}`, 'this keyword is not supported');
}

const MAX_COUNT = 1_000_000_000;

export function listAt(value: unknown, path: string): unknown[] {
  if (!Array.isArray(value)) throw unsupported(path, 'expected an array');
  return value;
}

/** Returns the schemas of `properties` or `patternProperties` by name. */
export function schemasAt(value: unknown, path: string): Record<string, unknown> {
  if (value === undefined) return {};
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw unsupported(path, 'expected an object of schemas');
  return value as Record<string, unknown>;
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
