import { isDeepStrictEqual } from 'node:util';
import { unsupported } from './schema-error';

/** A schema that is an object; `true` and `false` are written as `{}` and as {@link NOTHING}. */
export type Schema = Record<string, unknown>;

/** No value matches it. */
export const NOTHING: Schema = { enum: [] };

export const TYPES = ['object', 'array', 'string', 'integer', 'number', 'boolean', 'null'] as const;
export type TypeName = (typeof TYPES)[number];

/** Keywords without effect on what is valid. */
export const ANNOTATIONS = new Set([
  'title',
  'description',
  'default',
  'examples',
  '$comment',
  'deprecated',
  'readOnly',
  'writeOnly',
  '$schema',
  '$id',
  '$defs',
  'definitions',
  'discriminator',
  'strict',
]);

export function asSchema(value: unknown, path: string): Schema {
  if (value === true) return {};
  if (value === false) return NOTHING;
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw unsupported(path, 'expected a schema: an object, true or false');
  return value as Schema;
}

/** What `type` allows; undefined without it. */
export function typesOf(schema: Schema, path: string): TypeName[] | undefined {
  if (schema.type === undefined) return undefined;
  const names: unknown[] = Array.isArray(schema.type) ? schema.type : [schema.type];
  return names.map((name) => {
    const known = TYPES.find((type) => type === name);
    if (known === undefined) throw unsupported(`${path}/type`, `expected one of ${TYPES.join(', ')}`);
    return known;
  });
}

/** The schema of the values that match both. @throws CapstanError where two keywords cannot be made one. */
export function mergeSchemas(a: Schema, b: Schema, path: string): Schema {
  const merged: Schema = { ...a };
  for (const [key, value] of Object.entries(b)) {
    if (key === 'properties') continue;
    merged[key] =
      !(key in a) || ANNOTATIONS.has(key) || isDeepStrictEqual(a[key], value) ? value : mergeKeyword(key, a, b, path);
  }
  if (a.properties !== undefined || b.properties !== undefined) merged.properties = mergeProperties(a, b, path);
  if ('const' in merged && 'enum' in merged) {
    merged.enum = (merged.enum as unknown[]).filter((value) => isDeepStrictEqual(value, merged.const));
    delete merged.const;
  }
  return merged;
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
    case 'items':
    case 'additionalProperties':
      return left === false || right === false
        ? false
        : mergeSchemas(asSchema(left, path), asSchema(right, path), `${path}/${key}`);
    case 'allOf':
      return [...asList(left), ...asList(right)];
    default:
      throw unsupported(`${path}/${key}`, `two different ${key} for one value are not supported`);
  }
}

/** The values of `a` that are in `b` too; by their text, as long lists would take too long pair by pair. */
export function commonValues(a: readonly unknown[], b: readonly unknown[]): unknown[] {
  const keys = new Set(b.map(valueKey));
  return a.filter((value) => keys.has(valueKey(value)));
}

/** Equal for equal JSON values. */
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

/** A property that only one side names is under the other side's additionalProperties as well. */
function mergeProperties(a: Schema, b: Schema, path: string): Schema {
  const left = asSchema(a.properties ?? {}, `${path}/properties`);
  const right = asSchema(b.properties ?? {}, `${path}/properties`);
  const merged: [string, unknown][] = [];
  for (const key of new Set([...Object.keys(left), ...Object.keys(right)])) {
    const isIn = (side: Schema) => Object.hasOwn(side, key);
    const ofLeft = isIn(left) ? left[key] : (a.additionalProperties ?? true);
    const ofRight = isIn(right) ? right[key] : (b.additionalProperties ?? true);
    if (ofLeft === false || ofRight === false) merged.push([key, false]);
    else
      merged.push([
        key,
        mergeSchemas(asSchema(ofLeft, path), asSchema(ofRight, path), `${path}/properties/${escapePointer(key)}`),
      ]);
  }
  return Object.fromEntries(merged);
}

export function escapePointer(key: string): string {
  return key.replace(/~/g, '~0').replace(/\//g, '~1');
}
