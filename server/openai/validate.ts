import { ApiError, type ApiErrorCode } from '../errors';
import type { Schema } from './schema';

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

/** @throws ApiError for the first violation: types before ranges, then in the schema's order. */
export async function validate<T>(schema: Schema, value: unknown): Promise<T> {
  const { Check, Errors } = await import('typebox/schema');
  if (Check(schema, value)) return value as T;
  const [, violations] = Errors(schema, value) as unknown as [boolean, Violation[]];
  const isAboutType = ({ keyword }: Violation) => keyword === 'type' || keyword === 'required';
  throw toError(violations.find(isAboutType) ?? violations[0], schema, value);
}

function toError({ keyword, schemaPath, instancePath, params }: Violation, schema: Schema, value: unknown): ApiError {
  const path = pointerSegments(instancePath);
  if (keyword === 'required') {
    const param = paramName([...path, (params.requiredProperties as string[])[0]]);
    return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  }
  const wanted = pointerSegments(schemaPath.replace(/^#/, '')).reduce<unknown>((at, segment) => (at as Record<string, unknown>)[segment], schema) as Schema;
  const received = path.reduce<unknown>((at, segment) => (at as Record<string, unknown>)[segment], value);
  const code: ApiErrorCode = keyword === 'type' ? 'invalid_type' : 'invalid_value';
  const param = paramName(path);
  return new ApiError(code, `${param ?? 'body'}: expected ${describe(wanted)}, got ${show(received)}`, { param });
}

function pointerSegments(pointer: string): string[] {
  return pointer.split('/').slice(1).map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
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
  const types = [schema.type ?? 'a value'].flat().map((type) => (/^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`)).join(' or ');
  const { minimum, maximum, exclusiveMinimum } = schema;
  if (exclusiveMinimum !== undefined) return `${types} above ${exclusiveMinimum}${maximum === undefined ? '' : ` and up to ${maximum}`}`;
  if (minimum !== undefined) return maximum === undefined ? `${types} of ${minimum} or more` : `${types} from ${minimum} to ${maximum}`;
  if (schema.maxItems !== undefined) return `${types} of ${schema.minItems ?? 0} to ${schema.maxItems} items`;
  if (schema.minItems !== undefined) return `${types} of at least ${schema.minItems}`;
  if (schema.minLength !== undefined) return `${types} of at least ${schema.minLength}`;
  return types;
}

const MAX_SHOWN = 100;

/** A value in an error message: bounded, and without its contents where it has parts. */
export function show(value: unknown): string {
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  const text = typeof value === 'number' ? String(value) : JSON.stringify(value) ?? 'nothing';
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}
