import { schemasAt } from './schema-keywords';
import { matchingValues } from './json-constants';
import { asSchema, commonValues, severalOf, typeOfValue, typesOf } from './schema-merge';
import type { Schema } from './schema-types';

const MAX_DEPTH = 8;

/** Returns false only if it is certain that no value that the grammar of one schema writes matches the other. */
export function alternativesOverlap(a: Schema, b: Schema, path: string, depth = 0): boolean {
  if (depth > MAX_DEPTH) return true;
  const [valuesA, valuesB] = [constantsOf(a), constantsOf(b)];
  if (valuesA !== undefined && valuesB !== undefined) return commonValues(valuesA, valuesB).length > 0;
  if (valuesA !== undefined) return matchingValues(valuesA, b, path).length > 0;
  if (valuesB !== undefined) return matchingValues(valuesB, a, path).length > 0;
  const [typesA, typesB] = [kindsOf(a, path), kindsOf(b, path)];
  if (typesA === undefined || typesB === undefined) return true;
  const common = typesA.filter((type) => typesB.includes(type));
  if (common.length === 0) return false;
  if (common.length > 1) return true;
  if (common[0] === 'number') return !(isBelow(a, b) || isBelow(b, a));
  if (common[0] === 'string') return !(areApart(a, b, 'minLength', 'maxLength') || differInFormat(a, b));
  if (common[0] === 'array') return !areApart(a, b, 'minItems', 'maxItems');
  return common[0] !== 'object' || !(differInProperty(a, b, path, depth) || differInNames(a, b, path));
}

/** Each text has at most one of these formats. */
const DISJOINT_FORMATS = ['date', 'time', 'date-time', 'duration', 'uuid', 'email', 'ipv4'];

function differInFormat(a: Schema, b: Schema): boolean {
  const [first, second] = [a, b].map(({ format }) =>
    severalOf(format).filter((name) => DISJOINT_FORMATS.includes(name as string)),
  );
  return first.some((name) => second.some((other) => name !== other));
}

/** Returns whether all numbers of one schema are below those of the other. */
function isBelow(low: Schema, high: Schema): boolean {
  const most = (key: string) => Number(low[key] ?? Infinity);
  const least = (key: string) => Number(high[key] ?? -Infinity);
  return (
    most('maximum') < least('minimum') ||
    most('maximum') <= least('exclusiveMinimum') ||
    most('exclusiveMaximum') <= Math.max(least('minimum'), least('exclusiveMinimum'))
  );
}

/** Returns whether the maximum of one schema is below the minimum of the other. */
function areApart(a: Schema, b: Schema, minKey: string, maxKey: string): boolean {
  const isBelow = (low: Schema, high: Schema) => Number(low[maxKey] ?? Infinity) < Number(high[minKey] ?? 0);
  return isBelow(a, b) || isBelow(b, a);
}

/**
 * Returns whether no object matches both because of a property: one schema requires it and the other forbids it, or
 * each requires one that the grammar of the other does not write.
 */
function differInNames(a: Schema, b: Schema, path: string): boolean {
  const [inA, inB] = [unwritten(a, b, path), unwritten(b, a, path)];
  return inA === 'forbidden' || inB === 'forbidden' || (inA === 'missing' && inB === 'missing');
}

/** Returns what a schema says about a property that only the other one requires. */
function unwritten(schema: Schema, other: Schema, path: string): 'forbidden' | 'missing' | undefined {
  const names = new Set([...Object.keys(schemasAt(schema.properties, path)), ...requiredOf(schema)]);
  const extra = schema.additionalProperties ?? schema.unevaluatedProperties;
  const isOpen = (extra !== undefined && extra !== false) || names.size === 0;
  // Their properties are not among the names.
  const hasAlternatives = 'anyOf' in schema || 'oneOf' in schema;
  if (hasAlternatives && schema.additionalProperties !== false) return undefined;
  if (isOpen || 'patternProperties' in schema || 'propertyNames' in schema) return undefined;
  if (requiredOf(other).every((name) => names.has(name as string))) return undefined;
  return extra === false ? 'forbidden' : 'missing';
}

function requiredOf(schema: Schema): readonly unknown[] {
  return Array.isArray(schema.required) ? schema.required : [];
}

function constantsOf(schema: Schema): unknown[] | undefined {
  if ('const' in schema) return [schema.const];
  return Array.isArray(schema.enum) ? schema.enum : undefined;
}

/** Returns the types of the schema's values. Integers count as numbers. */
function kindsOf(schema: Schema, path: string): string[] | undefined {
  const types = constantsOf(schema)?.map(typeOfValue) ?? typesOf(schema, path);
  return types && [...new Set(types.map((type) => (type === 'integer' ? 'number' : type)))];
}

/** Returns whether both schemas require a property for which no value matches both. */
function differInProperty(a: Schema, b: Schema, path: string, depth: number): boolean {
  const requiredOfB = new Set(requiredOf(b));
  const propertyOf = (schema: Schema, name: string) => {
    const properties = schemasAt(schema.properties, path);
    return Object.hasOwn(properties, name) ? asSchema(properties[name], path) : undefined;
  };
  return requiredOf(a).some((name) => {
    if (typeof name !== 'string' || !requiredOfB.has(name)) return false;
    const [first, second] = [propertyOf(a, name), propertyOf(b, name)];
    return first !== undefined && second !== undefined && !alternativesOverlap(first, second, path, depth + 1);
  });
}
