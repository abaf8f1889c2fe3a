/**
 * Builders for request schemas. At run time a schema is plain JSON Schema. At compile time it is a TypeBox type, from
 * which `Static` infers the type of the request. TypeBox's own builders would make every start load the library, which
 * exists as ES modules only.
 */
import type {
  Static,
  TArray,
  TBoolean,
  TInteger,
  TNumber,
  TObject,
  TOptional,
  TProperties,
  TSchema,
  TString,
  TUnsafe,
} from 'typebox' with { 'resolution-mode': 'import' };

export type { Static } from 'typebox' with { 'resolution-mode': 'import' };

/** The keywords of JSON Schema that request schemas use. */
export interface Schema {
  type?: string | string[];
  enum?: readonly unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  /** The expected value in words, for error messages. Default: derived from the other keywords. */
  description?: string;
  /** Where TypeBox keeps the type of `unsafe`. It exists at compile time only. */
  '~unsafe'?: unknown;
}

type TextOptions = Pick<Schema, 'minLength' | 'maxLength' | 'pattern' | 'description'>;
type IntegerOptions = Pick<Schema, 'minimum' | 'maximum' | 'description'>;
type ArrayOptions = Pick<Schema, 'minItems' | 'maxItems' | 'description'>;

export const boolean = define<TBoolean>({ type: 'boolean' });
export const string = text();
/** An object whose fields are not checked. */
export const openObject = unsafe<Record<string, unknown>>({ type: 'object' });

export function text(options: TextOptions = {}): TString {
  return define({ type: 'string', ...options });
}

/** One of some strings. */
export function oneOf<const Values extends string[]>(...values: Values): TUnsafe<Values[number]> {
  return define({ type: 'string', enum: values });
}

/** A number from `minimum` to `maximum`, both included. */
export function number(minimum: number, maximum: number): TNumber {
  return define({ type: 'number', minimum, maximum });
}

/** A number above a bound, up to a maximum if there is one. */
export function above(exclusiveMinimum: number, maximum?: number): TNumber {
  return define({ type: 'number', exclusiveMinimum, ...(maximum === undefined ? {} : { maximum }) });
}

export function integer(options: IntegerOptions = {}): TInteger {
  return define({ type: 'integer', ...options });
}

export function array<Items extends TSchema>(items: Items, options: ArrayOptions = {}): TArray<Items> {
  return define({ type: 'array', items, ...options });
}

type WithOptional<Properties extends TProperties, Required extends keyof Properties> = {
  [Name in keyof Properties]: Name extends Required ? Properties[Name] : TOptional<Properties[Name]>;
};

/** An object. Fields that `required` does not name are optional. Unknown fields are allowed. */
export function object<Properties extends TProperties, Required extends keyof Properties & string = never>(
  properties: Properties,
  required: Required[] = [],
): TObject<WithOptional<Properties, Required>> {
  return define({ type: 'object', ...(required.length === 0 ? {} : { required }), properties });
}

/** A string or what `other` describes. One schema without `anyOf`, so that errors name the value and not a branch. */
export function stringOr<Other extends TSchema>(
  other: Other,
  options: TextOptions = {},
): TUnsafe<string | Static<Other>> {
  const { type = [] }: Schema = other;
  return define({ ...other, type: ['string', type].flat(), ...options });
}

/** A schema whose TypeScript type is written by hand. */
export function unsafe<Value>(schema: Schema): TUnsafe<Value> {
  return define(schema);
}

/** NOTE: the TypeBox type must say the same as the schema. No other function may assert it. */
function define<Type extends TSchema>(schema: Schema): Type {
  return schema as Type;
}
