import { counted } from 'capstan/internal';
import { ApiProblem, type FieldError } from './problem';
import { describeSchema, type Schema } from './schema';

/** An error as reported by `typebox/schema`. */
interface Violation {
  keyword: string;
  schemaPath: string;
  /** Pointer to the value. */
  instancePath: string;
  params: { requiredProperties?: string[] };
}

const MAX_SHOWN = 60;
const MAX_NAME_LENGTH = 40;
/** Keywords that report a container although its part is reported too. */
const CONTAINER_KEYWORDS = new Set(['additionalProperties', 'propertyNames', 'anyOf']);

/** Throws ApiProblem `invalid_request` that names each invalid value, what was expected and what it got. */
export async function checkValue(
  schema: Schema,
  value: unknown,
  pointerOf: (path: string) => string = (path) => path,
): Promise<void> {
  const { Check, Errors } = await import('typebox/schema');
  if (Check(schema as object, value)) return refuseNul(value, pointerOf);
  const [, violations] = Errors(schema as object, value) as unknown as [boolean, Violation[]];
  const found = toErrors(violations, schema, value);
  // The checker stops after a few violations. If all of them concern branches of a choice, report the whole body.
  const errors = (found.length > 0 ? found : [{ pointer: '', message: expected(schema, value, '') }]).map(
    ({ pointer, message }) => ({ pointer: pointerOf(pointer), message }),
  );
  throw new ApiProblem('invalid_request', `${errors[0].pointer || 'the body'}: ${errors[0].message}`, { errors });
}

/** PostgreSQL, command lines and paths cannot hold NUL. */
function refuseNul(value: unknown, pointerOf: (path: string) => string): void {
  const path = findNul(value, '');
  if (path === undefined) return;
  const [pointer, message] = [pointerOf(shortened(path)), 'expected text without NUL'];
  throw new ApiProblem('invalid_request', `${pointer}: ${message}`, { errors: [{ pointer, message }] });
}

/** Returns the pointer to the first string or name that contains NUL. */
function findNul(value: unknown, path: string): string | undefined {
  if (typeof value === 'string') return value.includes('\0') ? path : undefined;
  if (typeof value !== 'object' || value === null) return undefined;
  for (const [name, part] of Object.entries(value)) {
    const inner = `${path}/${escaped(name)}`;
    const found = name.includes('\0') ? inner : findNul(part, inner);
    if (found !== undefined) return found;
  }
  return undefined;
}

function toErrors(violations: readonly Violation[], schema: Schema, value: unknown): FieldError[] {
  const choices = new Set(
    violations.filter(({ keyword }) => keyword === 'anyOf').map(({ instancePath }) => instancePath),
  );
  const errors = new Map<string, string>();
  for (const { keyword, instancePath, schemaPath, params } of violations) {
    if (keyword === 'required')
      for (const name of params.requiredProperties ?? [])
        errors.set(
          `${instancePath}/${escaped(name)}`,
          `expected ${describeSchema(at(schema, [...segments(instancePath), name]) ?? {})}, but it is missing`,
        );
    else if (schemaPath.includes('/propertyNames'))
      errors.set(
        instancePath,
        `expected a name that matches ${at(schema, segments(instancePath).slice(0, -1))?.propertyNames?.pattern}`,
      );
    else if (keyword === 'boolean') errors.set(instancePath, 'unknown field');
    // A mismatch with one branch of a choice is not an error by itself.
    else if (!CONTAINER_KEYWORDS.has(keyword) && !(choices.has(instancePath) && schemaPath.includes('/anyOf/'))) {
      errors.set(instancePath, expected(schema, value, instancePath));
    }
  }
  for (const path of choices)
    if (![...errors.keys()].some((pointer) => pointer.startsWith(`${path}/`)))
      errors.set(path, expected(schema, value, path));
  return [...errors].map(([pointer, message]) => ({ pointer: shortened(pointer), message }));
}

function expected(schema: Schema, value: unknown, path: string): string {
  const wanted = at(schema, segments(path));
  const received = segments(path).reduce<unknown>(
    (within, name) => (within as Record<string, unknown> | undefined)?.[name],
    value,
  );
  return wanted === undefined ? 'unknown field' : `expected ${describeSchema(wanted)}, got ${show(received)}`;
}

/** Returns the schema of the part of the value at `path`. */
function at(schema: Schema, path: readonly string[]): Schema | undefined {
  const [name, ...rest] = path;
  if (name === undefined) return schema;
  for (const branch of schema.anyOf ?? []) {
    const found = at(branch, path);
    if (found !== undefined) return found;
  }
  const { properties = {}, prefixItems = [], items, additionalProperties } = schema;
  const inner: Schema | false | undefined = Object.hasOwn(properties, name)
    ? properties[name]
    : (prefixItems.at(Number(name)) ?? items ?? additionalProperties);
  return inner === undefined || inner === false ? undefined : at(inner, rest);
}

/** Truncates unknown names, which may be secrets. */
export function shortened(pointer: string): string {
  return pointer
    .split('/')
    .map((segment) => (segment.length > MAX_NAME_LENGTH ? `${segment.slice(0, MAX_NAME_LENGTH / 2)}…` : segment))
    .join('/');
}

function segments(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function escaped(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1');
}

/** NOTE: never shows text, not even its beginning: it may be a misplaced secret. */
function show(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return `a string of ${counted([...value].length, 'character')}`;
  return JSON.stringify(value).slice(0, MAX_SHOWN);
}
