import { isDeepStrictEqual } from 'node:util';
import { modernized } from './schema-dialects';
import { unsupported } from './schema-error';
import { listAt, schemasAt, validates } from './schema-keywords';
import { type Schema, type TypeName, TYPES } from './schema-types';

/** Maximum number of alternatives of `anyOf`. */
export const MAX_ALTERNATIVES = 10_000;

/** A schema that no value matches. */
const NOTHING: Schema = { enum: [] };

/** Returns whether the schema is `false` in one of its spellings, or allows no type. */
export function isNothing(schema: Schema): boolean {
  return [schema.enum, schema.type].some((list) => Array.isArray(list) && list.length === 0);
}

/** The values of one keyword that all apply, such as two patterns. Schemas of requests do not contain it. */
class Several {
  constructor(readonly values: readonly unknown[]) {}
}

/** Returns the values of a keyword that {@link mergeSchemas} may have merged. */
export function severalOf(value: unknown): readonly unknown[] {
  if (value === undefined) return [];
  return value instanceof Several ? value.values : [value];
}

/** Returns a schema as an object in terms of 2020-12, with at most one of `const` and `enum`. */
export function asSchema(value: unknown, path: string): Schema {
  if (value === true) return {};
  if (value === false) return NOTHING;
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw unsupported(path, 'expected a schema: an object, true or false');
  return withOneList(modernized(value as Schema));
}

/** Returns the type of a JSON value. An integer is `integer`, not `number`. */
export function typeOfValue(value: unknown): TypeName {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value as TypeName;
}

/** Returns the types that `type` allows, or undefined without `type`. */
export function typesOf(schema: Schema, path: string): TypeName[] | undefined {
  if (schema.type === undefined) return undefined;
  const names = new Set<unknown>(Array.isArray(schema.type) ? schema.type : [schema.type]);
  return [...names].map((name) => {
    const known = TYPES.find((type) => type === name);
    if (known === undefined) throw unsupported(`${path}/type`, `expected one of ${TYPES.join(', ')}`);
    return known;
  });
}

/**
 * Returns a schema that can be merged as a part of another: what it does not evaluate are its own additional members,
 * whatever the other schema evaluates.
 */
export function asPart(schema: Schema, path: string): Schema {
  return asPartOf(asPartOf(schema, 'Properties', path), 'Items', path);
}

function asPartOf(schema: Schema, members: 'Properties' | 'Items', path: string): Schema {
  const key = `unevaluated${members}`;
  if (!(key in schema)) return schema;
  const { [key]: unevaluated, ...part } = schema;
  const additional = members === 'Items' ? 'items' : 'additionalProperties';
  if (additional in schema) return part;
  const applicator = ['$ref', 'allOf', 'anyOf', 'oneOf'].find((keyword) => keyword in schema);
  if (applicator !== undefined)
    throw unsupported(`${path}/${key}`, `not supported with ${applicator} in a part of another schema`);
  return { ...part, [additional]: unevaluated };
}

/**
 * Returns the schema of the values that match both. {@link asPart} was applied to all schemas but the one around the
 * others.
 * @throws CapstanError if two keywords cannot be merged.
 */
export function mergeSchemas(a: Schema, b: Schema, path: string): Schema {
  checkPatterns(a, b, path);
  checkPatterns(b, a, path);
  const merged: Schema = { ...a };
  for (const [key, value] of Object.entries(b)) {
    merged[key] =
      !(key in a) || !validates(key) || isDeepStrictEqual(a[key], value) ? value : mergeKeyword(key, a, b, path);
  }
  if (a.properties !== undefined || b.properties !== undefined) merged.properties = mergeProperties(a, b, path);
  if (a.prefixItems !== undefined || b.prefixItems !== undefined) Object.assign(merged, mergeItems(a, b, path));
  return withOneList(merged);
}

/** Additional properties of one part include those that match a pattern of the other. */
function checkPatterns(a: Schema, b: Schema, path: string): void {
  const allowsAll = isDeepStrictEqual(asSchema(b.additionalProperties ?? true, path), {});
  if (a.patternProperties === undefined || allowsAll || isDeepStrictEqual(a.patternProperties, b.patternProperties))
    return;
  throw unsupported(`${path}/patternProperties`, 'not supported with additionalProperties of another part');
}

function mergeKeyword(key: string, a: Schema, b: Schema, path: string): unknown {
  const [left, right] = [a[key], b[key]];
  const asList = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
  switch (key) {
    case 'type':
      return mergeTypes(typesOf(a, path) ?? [], typesOf(b, path) ?? []);
    case 'required':
      return [...new Set([...asList(left), ...asList(right)])];
    case 'enum':
      return commonValues(asList(left), asList(right));
    case 'minimum':
    case 'exclusiveMinimum':
    case 'minLength':
    case 'minItems':
    case 'minProperties':
      return Math.max(left as number, right as number);
    case 'maximum':
    case 'exclusiveMaximum':
    case 'maxLength':
    case 'maxItems':
    case 'maxProperties':
      return Math.min(left as number, right as number);
    case 'uniqueItems':
      return left === true || right === true;
    case 'pattern':
    case 'format':
      return new Several([...severalOf(left), ...severalOf(right)]);
    case 'properties':
    case 'prefixItems':
      return left;
    case 'items':
    case 'propertyNames':
    case 'additionalProperties':
    case 'unevaluatedItems':
    case 'unevaluatedProperties':
      return mergeMembers(left, right, `${path}/${key}`);
    case 'allOf':
      return [...asList(left), ...asList(right)];
    case 'anyOf':
    case 'oneOf':
      return pairs(asList(left), asList(right), `${path}/${key}`);
    default:
      throw unsupported(`${path}/${key}`, `two different ${key} for one value are not supported`);
  }
}

/** Returns the alternatives of two lists that both apply: each of one with each of the other. */
function pairs(left: readonly unknown[], right: readonly unknown[], path: string): Schema[] {
  if (left.length * right.length > MAX_ALTERNATIVES)
    throw unsupported(path, `more than ${MAX_ALTERNATIVES} alternatives`);
  return left.flatMap((first) => right.map((second) => ({ allOf: [first, second] })));
}

/**
 * Returns the values of `a` that are also in `b`. Compares by text, because comparing every pair is too slow for long
 * lists.
 */
export function commonValues(a: readonly unknown[], b: readonly unknown[]): unknown[] {
  const keys = new Set(b.map(valueKey));
  return a.filter((value) => keys.has(valueKey(value)));
}

/** Returns the values without repetitions. */
export function distinctValues(values: readonly unknown[]): unknown[] {
  return [...new Map(values.map((value) => [valueKey(value), value])).values()];
}

/** Returns a text that is equal for equal JSON values. */
function valueKey(value: unknown): string {
  return JSON.stringify(value, (_, part: unknown) =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}

function mergeTypes(a: TypeName[], b: TypeName[]): TypeName[] {
  const allows = (types: TypeName[], type: TypeName) =>
    types.includes(type) || (type === 'integer' && types.includes('number'));
  return [...new Set([...a.filter((type) => allows(b, type)), ...b.filter((type) => allows(a, type))])];
}

/** Returns the schema of a member that two schemas apply to. */
function mergeMembers(left: unknown, right: unknown, path: string): unknown {
  if (left === false || right === false) return false;
  const merged = mergeSchemas(asPart(asSchema(left, path), path), asPart(asSchema(right, path), path), path);
  return !isNothing(merged) && merged;
}

/** A property that only one side names must also match `additionalProperties` of the other side. */
function mergeProperties(a: Schema, b: Schema, path: string): Schema {
  const left = schemasAt(a.properties, `${path}/properties`);
  const right = schemasAt(b.properties, `${path}/properties`);
  const merged: [string, unknown][] = [];
  for (const key of new Set([...Object.keys(left), ...Object.keys(right)])) {
    const ofLeft = Object.hasOwn(left, key) ? left[key] : (a.additionalProperties ?? true);
    const ofRight = Object.hasOwn(right, key) ? right[key] : (b.additionalProperties ?? true);
    merged.push([key, mergeMembers(ofLeft, ofRight, `${path}/properties/${escapePointer(key)}`)]);
  }
  return Object.fromEntries(merged);
}

/** An element that only one side lists must also match `items` of the other side. */
function mergeItems(a: Schema, b: Schema, path: string): Schema {
  const left = a.prefixItems === undefined ? [] : listAt(a.prefixItems, `${path}/prefixItems`);
  const right = b.prefixItems === undefined ? [] : listAt(b.prefixItems, `${path}/prefixItems`);
  const merged = Array.from({ length: Math.max(left.length, right.length) }, (_, i) => {
    const ofLeft = i < left.length ? left[i] : (a.items ?? true);
    const ofRight = i < right.length ? right[i] : (b.items ?? true);
    return mergeMembers(ofLeft, ofRight, `${path}/prefixItems/${i}`);
  });
  // The array ends before an element that no value matches.
  const end = merged.indexOf(false);
  return end < 0 ? { prefixItems: merged } : { prefixItems: merged.slice(0, end), items: false };
}

/** Merges `const` into `enum`. */
function withOneList(schema: Schema): Schema {
  if (!('const' in schema) || !Array.isArray(schema.enum)) return schema;
  const { const: value, ...rest } = schema;
  return { ...rest, enum: commonValues(schema.enum, [value]) };
}

/** Escapes a key for use in a JSON pointer (RFC 6901). */
export function escapePointer(key: string): string {
  return key.replace(/~/g, '~0').replace(/\//g, '~1');
}

/** Reverses {@link escapePointer}. */
export function unescapePointer(part: string): string {
  return part.replace(/~1/g, '/').replace(/~0/g, '~');
}
