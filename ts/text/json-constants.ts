import { choice, type GrammarExpr, inOrder, literal, oneOf, sequence } from './grammar';
import { isMultiple } from './json-multiples';
import { numberAt } from './json-number-keywords';
import { BLANK, blankAfterColon, type JsonDialect } from './json-rules';
import { isUnicode, keyText, textsLike, valueText } from './json-strings';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { counts, keywordBeside, listAt } from './schema-keywords';
import { distinctValues, typeOfValue, typesOf } from './schema-merge';
import type { Schema, TypeName } from './schema-types';

const MAX_ENUM_BYTES = 1 << 20;
const MAX_ENUM_VALUES = 50_000;
/** Keywords whose effect on a constant is known without a grammar. A format is not checked. */
const DECIDABLE = [
  ...['type', 'enum', 'const', 'format', 'minLength', 'maxLength'],
  ...['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  ...['minItems', 'maxItems', 'uniqueItems', 'required', 'minProperties', 'maxProperties'],
];

/** Returns the values of `enum` or `const` that match the keywords beside it, or undefined without both. */
export function constantsOf(schema: Schema, path: string): unknown[] | undefined {
  if (!('enum' in schema) && !('const' in schema)) return undefined;
  const keyword = 'enum' in schema ? 'enum' : 'const';
  const other = keywordBeside(schema, DECIDABLE);
  if (other !== undefined) throw unsupported(`${path}/${other}`, `not supported with ${keyword}`);
  if (Array.isArray(schema.enum) && schema.enum.length > MAX_ENUM_VALUES)
    throw unsupported(`${path}/enum`, `more than ${MAX_ENUM_VALUES} values`);
  const types = typesOf(schema, path);
  const tests = testsOf(schema, path);
  const values = keyword === 'enum' ? listAt(schema.enum, `${path}/enum`) : [schema.const];
  return values.filter((value) => {
    const type = typeOfValue(value);
    if (types !== undefined && !types.some((name) => isOfType(type, name))) return false;
    return tests[type === 'integer' ? 'number' : type]?.(value as never) !== false;
  });
}

/** Returns the values that match a schema, or that only a grammar could rule out. */
export function matchingValues(values: unknown[], schema: Schema, path: string): unknown[] {
  const known = Object.entries(schema).filter(([key]) => DECIDABLE.includes(key));
  return constantsOf({ ...Object.fromEntries(known), enum: values }, path) ?? values;
}

/** Returns the grammar of the constants, or undefined without `enum` and `const`. A `pattern` beside them applies. */
export function constantsLike(schema: Schema, path: string, context: SchemaContext): GrammarExpr | undefined {
  const { pattern, ...rest } = schema;
  const values = constantsOf(rest, path);
  if (values === undefined || pattern === undefined) return values && constants(values, path, context);
  const texts = values.filter((value) => typeof value === 'string');
  const others = values.filter((value) => typeof value !== 'string');
  if (texts.length === 0) return constants(others, path, context);
  if (texts.some((text) => !isUnicode(text)))
    throw unsupported(`${path}/pattern`, 'not supported with a constant that is not valid Unicode');
  context.countParts(path, texts.length);
  const expr = textsLike(texts, { pattern }, path, context, false);
  return others.length === 0 ? expr : choice(expr, constants(others, path, context));
}

/** What the values of a type must match. */
interface Tests {
  string: (value: string) => boolean;
  number: (value: number) => boolean;
  array: (value: readonly unknown[]) => boolean;
  object: (value: object) => boolean;
}

function testsOf(schema: Schema, path: string): Partial<Record<TypeName, Tests[keyof Tests]>> {
  const within = (minKey: string, maxKey: string) => {
    const [min, max] = counts(schema, minKey, maxKey, path);
    return (num: number) => num >= min && num <= (max ?? Infinity);
  };
  const [hasLength, hasItems] = [within('minLength', 'maxLength'), within('minItems', 'maxItems')];
  const hasProperties = within('minProperties', 'maxProperties');
  const [step, least = -Infinity, most = Infinity, above = -Infinity, below = Infinity] = [
    ...['multipleOf', 'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
  ].map((key) => numberAt(schema, key, path));
  if (step !== undefined && step <= 0) throw unsupported(`${path}/multipleOf`, 'expected a number above 0');
  const required = schema.required === undefined ? [] : listAt(schema.required, `${path}/required`);
  const tests: Tests = {
    string: (value) => hasLength([...value].length),
    number: (value) => value >= least && value <= most && value > above && value < below && isMultiple(value, step),
    array: (value) =>
      hasItems(value.length) && (schema.uniqueItems !== true || distinctValues(value).length === value.length),
    object: (value) =>
      hasProperties(Object.keys(value).length) && required.every((name) => Object.hasOwn(value, name as string)),
  };
  return tests;
}

/** Returns the grammar of constants. */
function constants(
  values: readonly unknown[],
  path: string,
  context: Pick<SchemaContext, 'dialect' | 'countParts'>,
): GrammarExpr {
  if (values.length === 0) throw unsupported(path, 'no value matches');
  context.countParts(path, values.length);
  if (JSON.stringify(values).length > MAX_ENUM_BYTES)
    throw unsupported(`${path}/enum`, `more than ${MAX_ENUM_BYTES} bytes of values`);
  return oneOf(values.map((value) => constant(value, context.dialect)));
}

function isOfType(type: TypeName, name: TypeName): boolean {
  return type === name || (type === 'integer' && name === 'number');
}

/** Returns the grammar of one value: as JSON.stringify writes it, except for whitespace. */
export function constant(value: unknown, dialect: JsonDialect): GrammarExpr {
  if (typeof value === 'boolean') return literal(value ? dialect.true : dialect.false);
  if (value === null) return literal(dialect.null);
  if (typeof value === 'string') return literal(valueText(value, dialect));
  if (typeof value !== 'object') return literal(JSON.stringify(value));
  const members = Array.isArray(value)
    ? value.map((item) => constant(item, dialect))
    : Object.entries(value).map(([key, item]) =>
        sequence(`${keyText(key, dialect)}:`, blankAfterColon, constant(item, dialect)),
      );
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  const list = members.flatMap((member, i) => (i === 0 ? [member] : [sequence(',', BLANK), member]));
  return sequence(open, BLANK, ...(list.length > 0 ? [inOrder(list), BLANK] : []), close);
}
