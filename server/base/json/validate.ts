import type { TSchema } from 'typebox' with { 'resolution-mode': 'import' };
import { ApiError, type ApiErrorCode } from '../errors';
import { type NullMap, withoutNulls } from './nulls';
import type { Schema, Static } from './schema-types';

/** One of the errors that `typebox/schema` reports. */
interface Violation {
  keyword: string;
  /** JSON pointer to the sub-schema that failed. */
  schemaPath: string;
  /** JSON pointer to the value that failed. */
  instancePath: string;
  params: Record<string, unknown>;
}

/** Fields whose errors name a path inside them. For all other fields `param` is the field itself. */
const NESTED = new Set([
  'messages',
  'tools',
  'functions',
  'tool_choice',
  'stream_options',
  'documents',
  'system',
  'thinking',
  'output_config',
  'output_format',
  'text',
  'reasoning',
]);

/** Upper bound of the items of all lists of objects in one request: messages, content parts, tools and so on. */
const MAX_TOTAL_ITEMS = 131_072;
/** Upper bound of the JSON values in all objects of one request that are not checked further, such as tool schemas. */
const MAX_OPEN_VALUES = 65_536;

/**
 * Returns the value without the nulls that mean "not given". Throws an ApiError for a list that is too long, otherwise
 * for the first violation: type errors first, then in the schema's order.
 */
export async function validate<Type extends TSchema>(
  type: Type,
  value: unknown,
  nulls: NullMap = {},
): Promise<Static<Type>> {
  const schema: Schema = type;
  // NOTE: lengths first. The checker needs a microsecond or more per item, even beyond a list's limit.
  checkLengths(schema, value, [], { numItems: 0, numOpenValues: 0 });
  const request = withoutNulls(value, nulls);
  const checked = withFewTokenIds(schema, request);
  const { Check, Errors } = await import('typebox/schema');
  if (Check(schema, checked)) return request as Static<Type>;

  const [, violations] = Errors(schema, checked) as unknown as [boolean, Violation[]];
  const isAboutType = ({ keyword }: Violation) => keyword === 'type' || keyword === 'required';
  throw toError(violations.find(isAboutType) ?? violations[0], schema, checked);
}

interface Totals {
  numItems: number;
  numOpenValues: number;
}

function checkLengths(schema: Schema, value: unknown, path: readonly string[], total: Totals): void {
  if (typeof value !== 'object' || value === null) return;
  const { maxItems = Infinity, maxProperties = Infinity, items, properties = {} } = schema;
  const tooLong = (expected: string, received: string) => {
    const param = paramName(path);
    return new ApiError('invalid_value', `${param}: expected ${expected}, got ${received}`, { param });
  };

  if (isOpen(schema)) {
    total.numOpenValues += countValues(value);
    if (total.numOpenValues > MAX_OPEN_VALUES)
      throw tooLong(`at most ${MAX_OPEN_VALUES} values in all schemas and other open objects together`, 'more');
    return;
  }

  if (!Array.isArray(value)) {
    const numEntries = Object.keys(value).length;
    if (numEntries > maxProperties) throw tooLong(describe(schema), `${numEntries} entries`);
    for (const [name, property] of Object.entries(properties)) {
      if (!Object.hasOwn(value, name)) continue;
      checkLengths(property, (value as Record<string, unknown>)[name], [...path, name], total);
    }
    return;
  }

  if (value.length > maxItems) throw tooLong(describe(schema), show(value));
  if (items?.properties === undefined) return;
  total.numItems += value.length;
  if (total.numItems > MAX_TOTAL_ITEMS) throw tooLong(`at most ${MAX_TOTAL_ITEMS} items in all lists together`, 'more');
  value.forEach((item, i) => checkLengths(items, item, [...path, String(i)], total));
}

/** Whether a schema says nothing about what an object or a list contains. */
function isOpen({ properties, items, maxItems, maxProperties }: Schema): boolean {
  return properties === undefined && items === undefined && maxItems === undefined && maxProperties === undefined;
}

function countValues(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 1;
  return Object.values(value).reduce<number>((sum, field) => sum + countValues(field), 1);
}

/** Longer lists of prompts are refused for their length before. */
const MAX_CHECKED_ITEMS = 2_048;

/**
 * Lists of token ids may hold millions. The checker gets one id if all are valid, otherwise the ids from the first
 * invalid one on.
 */
function withFewTokenIds(schema: Schema, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  const lists = Object.entries(schema.properties ?? {}).filter(
    ([name, { items }]) => [items?.type].flat().includes('integer') && Object.hasOwn(value, name),
  );
  const shortened = lists.map(([name, property]) => [
    name,
    fewTokenIds(property, (value as Record<string, unknown>)[name]),
  ]);
  return { ...value, ...Object.fromEntries(shortened) };
}

function fewTokenIds({ items }: Schema, value: unknown): unknown {
  if (!Array.isArray(value)) return value;
  const firstInvalid = value.findIndex((item) => !Number.isInteger(item) || item < 0);
  if (firstInvalid < 0) return value.slice(0, 1);
  return value
    .slice(firstInvalid, firstInvalid + MAX_CHECKED_ITEMS)
    .map((item: unknown) => (items?.items === undefined ? item : fewTokenIds(items, item)));
}

function toError({ keyword, schemaPath, instancePath, params }: Violation, schema: Schema, value: unknown): ApiError {
  const path = pointerSegments(instancePath);
  if (keyword === 'required') {
    const param = paramName([...path, (params.requiredProperties as string[])[0]]);
    return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  }
  const failed = valueAt(schema, pointerSegments(schemaPath.replace(/^#/, ''))) as Schema;
  const received = valueAt(value, path);
  const code: ApiErrorCode = keyword === 'type' ? 'invalid_type' : 'invalid_value';
  const param = paramName(path);
  return new ApiError(code, `${param ?? 'body'}: expected ${describe(failed)}, got ${show(received)}`, { param });
}

function valueAt(root: unknown, path: readonly string[]): unknown {
  return path.reduce((value, segment) => (value as Record<string, unknown>)[segment], root);
}

function pointerSegments(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** Returns the `param` of an error, as in `messages[0].content`. Null stands for the body itself. */
function paramName(path: readonly string[]): string | null {
  if (path.length === 0) return null;
  // The items of a conversation have fields. The inputs of an embedding model have none.
  const isNested = NESTED.has(path[0]) || (path[0] === 'input' && path.length > 2 && !/^\d+$/.test(path[2]));
  const named = isNested ? path : path.slice(0, 1);
  return named.reduce((name, segment) => (/^\d+$/.test(segment) ? `${name}[${segment}]` : `${name}.${segment}`));
}

/** Returns what a schema accepts, in words. */
function describe(schema: Schema): string {
  if (schema.description !== undefined) return schema.description;
  if (schema.enum !== undefined) return `one of ${schema.enum.join(', ')}`;
  const types = [schema.type ?? 'a value']
    .flat()
    .map((type) => (/^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`))
    .join(' or ');
  const { minimum, maximum, exclusiveMinimum } = schema;
  if (exclusiveMinimum !== undefined && maximum !== undefined)
    return `${types} above ${exclusiveMinimum} and up to ${maximum}`;
  if (exclusiveMinimum !== undefined) return `${types} above ${exclusiveMinimum}`;
  if (minimum !== undefined && maximum !== undefined) return `${types} from ${minimum} to ${maximum}`;
  if (minimum !== undefined) return `${types} of ${minimum} or more`;
  if (schema.maxItems !== undefined) return `${types} of ${schema.minItems ?? 0} to ${schema.maxItems} items`;
  if (schema.minItems !== undefined) return `${types} of at least ${schema.minItems}`;
  if (schema.minLength === 1) return `${types} of at least one character`;
  return types;
}

const MAX_SHOWN = 100;

/** Returns a value as error messages show it: shortened, and without the contents of arrays and objects. */
export function show(value: unknown): string {
  if (Array.isArray(value)) {
    const isShort =
      value.length > 0 && value.every((item) => typeof item === 'string') && JSON.stringify(value).length <= MAX_SHOWN;
    return isShort ? JSON.stringify(value) : `an array of ${value.length}`;
  }
  if (typeof value === 'object' && value !== null) return 'an object';
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? 'nothing');
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}
