import { asSchema, commonValues, type Schema, typeOfValue, typesOf } from './schema-merge';

const MAX_DEPTH = 8;

/** Returns false only if it is certain that no value matches both schemas. */
export function alternativesOverlap(a: Schema, b: Schema, path: string, depth = 0): boolean {
  if (depth > MAX_DEPTH) return true;
  const [valuesA, valuesB] = [constantsOf(a), constantsOf(b)];
  if (valuesA !== undefined && valuesB !== undefined) return commonValues(valuesA, valuesB).length > 0;
  const [typesA, typesB] = [kindsOf(a, path), kindsOf(b, path)];
  if (typesA === undefined || typesB === undefined) return true;
  const common = typesA.filter((type) => typesB.includes(type));
  if (common.length === 0) return false;
  return common.length > 1 || common[0] !== 'object' || !differInProperty(a, b, path, depth);
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
  const required = (schema: Schema): unknown[] => (Array.isArray(schema.required) ? schema.required : []);
  const requiredOfB = new Set(required(b));
  const propertyOf = (schema: Schema, name: string) => {
    const properties = asSchema(schema.properties ?? {}, path);
    return Object.hasOwn(properties, name) ? asSchema(properties[name], path) : undefined;
  };
  return required(a).some((name) => {
    if (typeof name !== 'string' || !requiredOfB.has(name)) return false;
    const [first, second] = [propertyOf(a, name), propertyOf(b, name)];
    return first !== undefined && second !== undefined && !alternativesOverlap(first, second, path, depth + 1);
  });
}
