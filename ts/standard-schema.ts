import { checkPlainSchema } from './checks';
import { CapstanError } from './errors';

/**
 * A schema of Zod 4, Valibot, ArkType or another library that implements Standard Schema (standardschema.dev). For the
 * grammar of a constrained output it must also convert itself to JSON Schema, as Zod since 4.2 and ArkType since 2.1.28
 * do. For Valibot, wrap the schema with `toStandardJsonSchema` of `@valibot/to-json-schema`.
 */
export interface StandardSchema<Input = unknown, Output = Input> {
  /** The interface that the Standard Schema defines. */
  readonly '~standard': {
    /** Version of the Standard Schema. */
    readonly version: 1;
    /** Name of the library. */
    readonly vendor: string;
    /** Checks a value, and converts it if the schema says so. */
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>;
    /** Converts the schema to JSON Schema. */
    readonly jsonSchema?: {
      /** Returns the JSON Schema of the values that `validate` takes. */
      readonly input: (options: { target: 'draft-2020-12' }) => Record<string, unknown>;
    };
    /** Exists only in the types. */
    readonly types?:
      | {
          /** Type of the values that `validate` takes. */
          readonly input: Input;
          /** Type of the values that `validate` returns. */
          readonly output: Output;
        }
      | undefined;
  };
}

/** The result of a validation: a value, or issues. */
export type StandardResult<Output> =
  | {
      /** The valid value. */
      readonly value: Output;
      /** Absent. */
      readonly issues?: undefined;
    }
  | {
      /** Why the value is invalid. */
      readonly issues: readonly StandardIssue[];
    };

/** A fault that a validation found. */
export interface StandardIssue {
  /** What is wrong, in words. */
  readonly message: string;
  /** Where: keys from the outermost value to the invalid one. */
  readonly path?:
    | readonly (
        | PropertyKey
        | {
            /** One key of the path. */
            readonly key: PropertyKey;
          }
      )[]
    | undefined;
}

/** A {@link StandardSchema}, or a JSON Schema as a plain object. */
export type AnySchema = StandardSchema | Readonly<Record<string, unknown>>;

/** Type of the values of a schema: of a {@link StandardSchema} its output, of a JSON Schema `unknown`. */
export type SchemaValue<S> = S extends {
  /** As in {@link StandardSchema}. */
  readonly '~standard': {
    /** As in {@link StandardSchema}. */
    readonly types?: infer T;
  };
}
  ? NonNullable<T> extends {
      /** Type of the valid values. */
      readonly output: infer Output;
    }
    ? Output
    : unknown
  : unknown;

function isStandard(schema: AnySchema): schema is StandardSchema {
  return '~standard' in schema;
}

/**
 * Returns the JSON Schema of the values that the model may write.
 * @throws CapstanError `invalid_argument` for a value that is not a schema, or a schema that has no JSON Schema.
 */
export function toJsonSchema(param: string, schema: AnySchema): Readonly<Record<string, unknown>> {
  // ArkType's schemas are functions.
  if ((typeof schema !== 'object' && typeof schema !== 'function') || schema === null)
    throw CapstanError.argument(param, 'a Standard Schema, such as one of Zod, or a JSON Schema', schema);
  if (!isStandard(schema)) return checkPlainSchema(param, schema);
  const { vendor, jsonSchema } = schema['~standard'];
  if (jsonSchema === undefined)
    throw CapstanError.unexpected(
      'invalid_argument',
      param,
      'a schema with a JSON Schema (Zod 4.2, ArkType 2.1.28, Valibot with toStandardJsonSchema), or a plain JSON Schema',
      `a schema of ${vendor} without one`,
    );
  try {
    return withoutDialect(jsonSchema.input({ target: 'draft-2020-12' }));
  } catch (error) {
    const message = `${param}: expected a schema with a JSON Schema, got one that ${vendor} cannot convert: ${(error as Error).message}. Use types that JSON has, such as a string with a format for a date`;
    throw new CapstanError('invalid_argument', message, { param, cause: error });
  }
}

/** Removes the name of the dialect, which only costs tokens in a prompt. */
export function withoutDialect(schema: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const { $schema: _, ...rest } = schema;
  return rest;
}

/** Characters of a refused value in an error. */
const MAX_SHOWN = 200;

/** Parses the JSON text of a value and validates it. @throws CapstanError `invalid_output` with the issues. */
export async function parseValue<S extends AnySchema>(schema: S, text: string): Promise<SchemaValue<S>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new CapstanError('invalid_output', `expected JSON, got ${(error as Error).message}`, { cause: error });
  }
  if (!isStandard(schema)) return value as SchemaValue<S>;
  const result = await schema['~standard'].validate(value);
  if (result.issues === undefined) return result.value as SchemaValue<S>;
  const { vendor } = schema['~standard'];
  const issues = result.issues.map(showIssue).join('; ');
  throw new CapstanError('invalid_output', `${issues} (${vendor} refuses ${shorten(text)})`);
}

function shorten(text: string): string {
  return text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN)}…`;
}

function showIssue({ message, path = [] }: StandardIssue): string {
  const keys = path.map((part) => String(typeof part === 'object' ? part.key : part));
  return keys.length === 0 ? message : `${keys.join('.')}: ${message}`;
}
