import { ApiError, type ApiErrorCode } from '../errors';
import { type NullMap, withoutNulls } from './nulls';
import { MAX_PROMPTS, type Schema } from './schema';

/** As `typebox/schema` reports. */
interface Violation {
  keyword: string;
  /** Pointer to the sub-schema that is not met. */
  schemaPath: string;
  /** Pointer to the value that does not meet it. */
  instancePath: string;
  params: Record<string, unknown>;
}

/** Fields whose items have fields of their own; elsewhere the top field is the parameter. */
const NESTED = new Set(['messages', 'tools', 'functions', 'tool_choice', 'stream_options']);

/**
 * The value without its nulls.
 * @throws ApiError for a list that is too long, else for the first violation: types before ranges, then in the schema's order.
 */
export async function validate<T>(schema: Schema, value: unknown, nulls: NullMap = {}): Promise<T> {
  // NOTE: first, for the checker takes a microsecond or more for every item, whatever their number may be.
  checkLengths(schema, value, [], { numItems: 0 });
  const given = withoutNulls(value, nulls);
  const checked = withFewTokenIds(schema, given);
  const { Check, Errors } = await import('typebox/schema');
  if (Check(schema, checked)) return given as T;
  const [, violations] = Errors(schema, checked) as unknown as [boolean, Violation[]];
  const isAboutType = ({ keyword }: Violation) => keyword === 'type' || keyword === 'required';
  throw toError(violations.find(isAboutType) ?? violations[0], schema, checked);
}

/** Messages, their parts, tools and the like, all together. */
const MAX_TOTAL_ITEMS = 131_072;

function checkLengths(schema: Schema, value: unknown, path: readonly string[], total: { numItems: number }): void {
  if (typeof value !== 'object' || value === null) return;
  const { maxItems = Infinity, maxProperties = Infinity, items, properties = {} } = schema;
  const wrong = (expected: string, received: string) => {
    const param = paramName(path);
    return new ApiError('invalid_value', `${param}: expected ${expected}, got ${received}`, { param });
  };
  if (!Array.isArray(value)) {
    if (maxProperties !== Infinity && Object.keys(value).length > maxProperties)
      throw wrong(describe(schema), `${Object.keys(value).length} entries`);
    for (const [name, property] of Object.entries(properties))
      if (Object.hasOwn(value, name))
        checkLengths(property, (value as Record<string, unknown>)[name], [...path, name], total);
    return;
  }
  if (value.length > maxItems) throw wrong(describe(schema), show(value));
  if (items?.properties === undefined) return;
  total.numItems += value.length;
  if (total.numItems > MAX_TOTAL_ITEMS) throw wrong(`at most ${MAX_TOTAL_ITEMS} items in all lists together`, 'more');
  value.forEach((item, i) => checkLengths(items, item, [...path, String(i)], total));
}

/** Lists of token ids may hold millions: the checker sees one of them where all are right, else those from the first wrong one on. */
function withFewTokenIds(schema: Schema, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  const lists = Object.entries(schema.properties ?? {}).filter(
    ([name, { items }]) => [items?.type].flat().includes('integer') && Object.hasOwn(value, name),
  );
  return {
    ...value,
    ...Object.fromEntries(
      lists.map(([name, property]) => [name, fewTokenIds(property, (value as Record<string, unknown>)[name])]),
    ),
  };
}

function fewTokenIds({ items }: Schema, value: unknown): unknown {
  if (!Array.isArray(value)) return value;
  const wrongAt = value.findIndex((item) => !Number.isInteger(item) || item < 0);
  if (wrongAt < 0) return value.slice(0, 1);
  return value
    .slice(wrongAt, wrongAt + MAX_PROMPTS)
    .map((item: unknown) => (items?.items === undefined ? item : fewTokenIds(items, item)));
}

function toError({ keyword, schemaPath, instancePath, params }: Violation, schema: Schema, value: unknown): ApiError {
  const path = pointerSegments(instancePath);
  if (keyword === 'required') {
    const param = paramName([...path, (params.requiredProperties as string[])[0]]);
    return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  }
  const wanted = pointerSegments(schemaPath.replace(/^#/, '')).reduce<unknown>(
    (at, segment) => (at as Record<string, unknown>)[segment],
    schema,
  ) as Schema;
  const received = path.reduce<unknown>((at, segment) => (at as Record<string, unknown>)[segment], value);
  const code: ApiErrorCode = keyword === 'type' ? 'invalid_type' : 'invalid_value';
  const param = paramName(path);
  return new ApiError(code, `${param ?? 'body'}: expected ${describe(wanted)}, got ${show(received)}`, { param });
}

function pointerSegments(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** `messages[0].content`; null for the body itself. */
function paramName(path: readonly string[]): string | null {
  if (path.length === 0) return null;
  const kept = NESTED.has(path[0]) ? path : path.slice(0, 1);
  return kept.reduce((name, segment) => (/^\d+$/.test(segment) ? `${name}[${segment}]` : `${name}.${segment}`));
}

/** What a schema asks for, in words. */
function describe(schema: Schema): string {
  if (schema.description !== undefined) return schema.description;
  if (schema.enum !== undefined) return `one of ${schema.enum.join(', ')}`;
  const types = [schema.type ?? 'a value']
    .flat()
    .map((type) => (/^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`))
    .join(' or ');
  const { minimum, maximum, exclusiveMinimum } = schema;
  if (exclusiveMinimum !== undefined)
    return `${types} above ${exclusiveMinimum}${maximum === undefined ? '' : ` and up to ${maximum}`}`;
  if (minimum !== undefined)
    return maximum === undefined ? `${types} of ${minimum} or more` : `${types} from ${minimum} to ${maximum}`;
  if (schema.maxItems !== undefined) return `${types} of ${schema.minItems ?? 0} to ${schema.maxItems} items`;
  if (schema.minItems !== undefined) return `${types} of at least ${schema.minItems}`;
  if (schema.minLength === 1) return `${types} of at least one character`;
  return types;
}

const MAX_SHOWN = 100;

/** A value in an error message: bounded, and without its contents where it has parts. */
export function show(value: unknown): string {
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? 'nothing');
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}
