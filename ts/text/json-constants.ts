import { type GrammarExpr, inOrder, literal, oneOf, sequence } from './grammar';
import { BLANK, blankAfterColon, type JsonDialect } from './json-rules';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { counts, keywordBeside, listAt } from './schema-keywords';
import { typeOfValue, typesOf } from './schema-merge';
import type { Schema, TypeName } from './schema-types';

const MAX_ENUM_BYTES = 1 << 20;
const MAX_ENUM_VALUES = 50_000;
/** Keywords whose effect on a constant is known without a grammar. A format is taken on trust. */
const DECIDABLE = ['type', 'enum', 'const', 'format', 'minLength', 'maxLength', 'minimum', 'maximum'];

/** Returns the values of `enum` or `const` that match the keywords beside it, or undefined without both. */
export function constantsOf(schema: Schema, path: string): unknown[] | undefined {
  if (!('enum' in schema) && !('const' in schema)) return undefined;
  const keyword = 'enum' in schema ? 'enum' : 'const';
  const other = keywordBeside(schema, DECIDABLE);
  if (other !== undefined) throw unsupported(`${path}/${other}`, `not supported with ${keyword}`);
  if (Array.isArray(schema.enum) && schema.enum.length > MAX_ENUM_VALUES)
    throw unsupported(`${path}/enum`, `more than ${MAX_ENUM_VALUES} values`);
  const types = typesOf(schema, path);
  const [minLength, maxLength] = counts(schema, 'minLength', 'maxLength', path);
  const { minimum = -Infinity, maximum = Infinity } = schema as { minimum?: number; maximum?: number };
  const values = keyword === 'enum' ? listAt(schema.enum, `${path}/enum`) : [schema.const];
  return values.filter((value) => {
    if (types !== undefined && !types.some((type) => isOfType(value, type))) return false;
    if (typeof value === 'number') return value >= minimum && value <= maximum;
    if (typeof value !== 'string' || (minLength === 0 && maxLength === null)) return true;
    const length = [...value].length;
    return length >= minLength && length <= (maxLength ?? Infinity);
  });
}

/** Returns the grammar of constants. */
export function constants(
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

function isOfType(value: unknown, type: TypeName): boolean {
  const actual = typeOfValue(value);
  return actual === type || (actual === 'integer' && type === 'number');
}

/** Returns the grammar of one value: as JSON.stringify writes it, except for whitespace. */
export function constant(value: unknown, dialect: JsonDialect): GrammarExpr {
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
  return sequence(open, BLANK, ...(list.length > 0 ? [inOrder(list), BLANK] : []), close);
}
