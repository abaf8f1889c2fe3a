import { choice, type GrammarExpr, literal, type RegexExpr, repeat, sequence } from './grammar';
import { FORMATS } from './json-formats';
import { type Bound, integerRange, numberRange } from './json-numbers';
import { BLANK, blankAfterColon, type JsonDialect, jsonRule } from './json-rules';
import { unsupported } from './schema-error';
import { counts, listAt } from './schema-keywords';
import { ANNOTATIONS, type Schema, type TypeName, typeOfValue, typesOf } from './schema-merge';

const MAX_ENUM_BYTES = 1 << 20;

/** Returns the grammar of the values of `enum` or `const`. */
export function constants(schema: Schema, path: string, dialect: JsonDialect): GrammarExpr {
  const keyword = 'enum' in schema ? 'enum' : 'const';
  const other = Object.keys(schema).find((key) => key !== keyword && key !== 'type' && !ANNOTATIONS.has(key));
  if (other !== undefined) throw unsupported(`${path}/${other}`, `not supported with ${keyword}`);
  const types = typesOf(schema, path);
  const values = (keyword === 'enum' ? listAt(schema.enum, `${path}/enum`) : [schema.const]).filter(
    (value) => types === undefined || types.some((type) => isOfType(value, type)),
  );
  if (values.length === 0) throw unsupported(path, 'no value matches');
  if (JSON.stringify(values).length > MAX_ENUM_BYTES)
    throw unsupported(`${path}/${keyword}`, `more than ${MAX_ENUM_BYTES} bytes of values`);
  return choice(...values.map((value) => constant(value, dialect)));
}

function isOfType(value: unknown, type: TypeName): boolean {
  const actual = typeOfValue(value);
  return actual === type || (actual === 'integer' && type === 'number');
}

function constant(value: unknown, dialect: JsonDialect): GrammarExpr {
  if (typeof value === 'boolean') return literal(value ? dialect.true : dialect.false);
  if (value === null) return literal(dialect.null);
  if (typeof value !== 'object') return literal(JSON.stringify(value));
  const members = Array.isArray(value)
    ? value.map((item) => constant(item, dialect))
    : Object.entries(value).map(([key, item]) =>
        sequence(`${JSON.stringify(key)}:`, blankAfterColon, constant(item, dialect)),
      );
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  const list = members.flatMap((member, i) => (i === 0 ? [member] : [sequence(',', BLANK), member]));
  return sequence(open, BLANK, ...list, ...(list.length > 0 ? [BLANK] : []), close);
}

export function numbers(type: 'integer' | 'number', schema: Schema, path: string): GrammarExpr {
  const read = (key: string): number | undefined => {
    const value = schema[key];
    if (value !== undefined && (typeof value !== 'number' || !Number.isFinite(value)))
      throw unsupported(`${path}/${key}`, 'expected a number');
    return value;
  };
  if (schema.multipleOf !== undefined && !(type === 'integer' && schema.multipleOf === 1))
    throw unsupported(`${path}/multipleOf`, 'not supported, except 1 for integers');
  const tighter = (isLower: boolean, closed?: number, open?: number): Bound | undefined => {
    if (open !== undefined && (closed === undefined || (isLower ? open >= closed : open <= closed))) {
      if (type === 'number' && Number(open.toPrecision(15)) !== open)
        throw unsupported(
          `${path}/exclusive${isLower ? 'Minimum' : 'Maximum'}`,
          'more than 15 digits are not supported',
        );
      return { value: open, isOpen: true };
    }
    return closed === undefined ? undefined : { value: closed, isOpen: false };
  };
  const lower = tighter(true, read('minimum'), read('exclusiveMinimum'));
  const upper = tighter(false, read('maximum'), read('exclusiveMaximum'));
  if (type === 'number' && lower === undefined && upper === undefined) return jsonRule('number');
  const expr = type === 'integer' ? integerRange(lower, upper) : numberRange(lower, upper);
  if (expr === null)
    throw unsupported(
      `${path}/${lower?.isOpen ? 'exclusiveMinimum' : 'minimum'}`,
      'above the maximum: no value matches',
    );
  return expr;
}

export function strings(schema: Schema, path: string, label: string): GrammarExpr {
  if (schema.pattern !== undefined || schema.format !== undefined)
    return sequence('"', shapedText(schema, path, label), '"');
  const [min, max] = counts(schema, 'minLength', 'maxLength', path);
  return min === 0 && max === null ? jsonRule('string') : sequence('"', repeat(jsonRule('char'), min, max), '"');
}

/** Returns the pattern of `pattern` or `format` for the content of a JSON string. */
export function shapedText(schema: Schema, path: string, label: string): RegexExpr {
  const { pattern, format } = schema;
  const [minLength, maxLength] = counts(schema, 'minLength', 'maxLength', path);
  if (pattern !== undefined && format !== undefined) throw unsupported(`${path}/format`, 'not supported with pattern');
  const keyword = pattern === undefined ? 'format' : 'pattern';
  const text = pattern ?? FORMATS.get(format as string);
  if (text === undefined)
    throw unsupported(`${path}/format`, `not supported; supported are ${[...FORMATS.keys()].join(', ')}`);
  if (typeof text !== 'string') throw unsupported(`${path}/${keyword}`, 'expected a string');
  return { ...regex(text, `${path}/${keyword}`, label, pattern !== undefined), minLength, maxLength };
}

export function regex(pattern: string, path: string, label: string, isSearch: boolean): RegexExpr {
  return {
    kind: 'regex',
    pattern,
    isSearch,
    isJsonString: true,
    minLength: 0,
    maxLength: null,
    label: `${label}: ${path}`,
  };
}
