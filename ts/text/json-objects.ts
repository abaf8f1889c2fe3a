import { choice, type GrammarExpr, literal, oneOf, optional, sequence } from './grammar';
import { constantsOf } from './json-constants';
import { COMMA, listOf, membersOf } from './json-lists';
import { BLANK, blankAfterColon } from './json-rules';
import { isUnicode, keys, keysLike, keyText, textsLike } from './json-strings';
import type { ListMember, SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { counts, keywordBeside, listAt, schemasAt } from './schema-keywords';
import { asSchema, escapePointer, isNothing, typesOf } from './schema-merge';
import type { Schema } from './schema-types';

const MAX_NAMES = 10_000;

/** A member of an object. */
export interface SchemaMember {
  name: string;
  schema: Schema;
  /** JSON pointer to the schema. */
  path: string;
  isRequired: boolean;
}

/** Returns the grammar of objects that match `schema`, `depth` levels below its rule. */
export function objects(schema: Schema, path: string, depth: number, context: SchemaContext): GrammarExpr {
  const extraPath = `${path}/additionalProperties`;
  /** The names that a schema only lists share the schema of their values. */
  let extraValue: GrammarExpr | undefined;
  const valueOf = (value: Schema, valuePath: string): GrammarExpr => {
    if (valuePath !== extraPath) return context.value(value, valuePath, depth + 1);
    return (extraValue ??= context.shared(context.value(value, valuePath, depth + 1)));
  };
  const pair = (key: GrammarExpr | string, value: Schema, valuePath: string) =>
    sequence(key, ':', blankAfterColon, valueOf(value, valuePath));
  const names = allowedNames(schema, path, depth, context);
  const members = namedMembers(schema, path, names.listed).map((member) => ({
    expr: pair(memberKey(member.name, names, path, context), member.schema, member.path),
    isRequired: member.isRequired,
  }));
  const [extra, pathOfExtra] = schemaOfExtras(schema, path, names);
  const bounds = counts(schema, 'minProperties', 'maxProperties', path);
  if (extra === null || isNothing(asSchema(extra, pathOfExtra))) {
    checkPropertyCounts(members, members.length, bounds, path);
    return withBraces(members, null, bounds[0], context);
  }
  const known = knownNames(schema, path);
  const key = extraKey(schema, names.schemas, known, path, context);
  const expr = pair(key, asSchema(extra, pathOfExtra), pathOfExtra);
  if (known.length > 0) {
    checkPropertyCounts(members, Infinity, bounds, path);
    return withBraces(members, context.shared(expr), bounds[0], context);
  }
  if (bounds[0] > 1) throw unsupported(`${path}/minProperties`, 'more than 1 is not supported without properties');
  return listOf(expr, '{}', bounds, context);
}

/**
 * Returns the members that the schema names: in `properties` and `required`, or in `propertyNames` if it lists all
 * names.
 */
export function namedMembers(schema: Schema, path: string, listed?: readonly string[]): SchemaMember[] {
  const properties = schemasAt(schema.properties, `${path}/properties`);
  const required = requiredNames(schema, path);
  const extra = schema.additionalProperties ?? schema.unevaluatedProperties;
  const unknown = extra ?? (listed !== undefined || schema.patternProperties === undefined);
  const names = listed === undefined ? knownNames(schema, path) : [...new Set([...listed, ...required])];
  if (names.length > MAX_NAMES) throw unsupported(path, `more than ${MAX_NAMES} properties`);
  return names.flatMap((name) => {
    const isNamed = Object.hasOwn(properties, name);
    const isListed = listed === undefined || listed.includes(name);
    const isRequired = required.has(name);
    const namePath = isNamed ? `${path}/properties/${escapePointer(name)}` : `${path}/additionalProperties`;
    const value = asSchema(isListed && (isNamed ? properties[name] : unknown), namePath);
    if (!isNothing(value)) return [{ name, schema: value, path: namePath, isRequired }];
    if (!isRequired) return [];
    throw unsupported(`${path}/required`, `the property ${JSON.stringify(name).slice(0, 80)} is not allowed`);
  });
}

/** Returns the names of `properties` and `required`. */
function knownNames(schema: Schema, path: string): string[] {
  const properties = schemasAt(schema.properties, `${path}/properties`);
  return [...new Set([...Object.keys(properties), ...requiredNames(schema, path)])];
}

function requiredNames(schema: Schema, path: string): ReadonlySet<string> {
  const names = schema.required === undefined ? [] : listAt(schema.required, `${path}/required`);
  if (names.length > MAX_NAMES) throw unsupported(`${path}/required`, `more than ${MAX_NAMES} properties`);
  if (names.some((name) => typeof name !== 'string')) throw unsupported(`${path}/required`, 'expected names');
  return new Set(names as string[]);
}

/** One alternative of `propertyNames`. */
interface NameSchema {
  schema: Schema;
  path: string;
  /** The names that the alternative lists. */
  values?: ReadonlySet<unknown>;
}

/** The names that `propertyNames` allows: a list, or schemas of strings. */
interface AllowedNames {
  listed?: string[];
  schemas: NameSchema[];
}

function allowedNames(schema: Schema, path: string, depth: number, context: SchemaContext): AllowedNames {
  if (schema.propertyNames === undefined) return { schemas: [] };
  const namesPath = `${path}/propertyNames`;
  const schemas = context
    .alternatives(asSchema(schema.propertyNames, namesPath), namesPath, depth + 1)
    .filter((alternative) => typesOf(alternative.schema, alternative.path)?.includes('string') !== false)
    .map((alternative): NameSchema => {
      const values = constantsOf(alternative.schema, alternative.path);
      return values === undefined ? alternative : { ...alternative, values: new Set(values) };
    });
  if (schemas.some(({ values }) => values === undefined)) {
    const allowsAll = schemas.some(({ schema: name }) => keywordBeside(name, ['type']) === undefined);
    return { schemas: allowsAll ? [] : schemas };
  }
  const listed = schemas.flatMap(({ values }) => [...(values ?? [])]).filter((name) => typeof name === 'string');
  return { listed: [...new Set(listed)], schemas };
}

/** Returns the schema of additional properties, or null if there are none, and its path. */
function schemaOfExtras(schema: Schema, path: string, names: AllowedNames): [unknown, string] {
  const patterns = patternsOf(schema, path);
  const extra = schema.additionalProperties ?? schema.unevaluatedProperties;
  if (patterns.length === 0) {
    if (names.listed !== undefined) return [null, path];
    const isFree = knownNames(schema, path).length === 0;
    return [extra ?? (isFree ? true : null), `${path}/additionalProperties`];
  }
  if (
    patterns.length > 1 ||
    knownNames(schema, path).length > 0 ||
    schema.propertyNames !== undefined ||
    (extra !== undefined && extra !== false)
  ) {
    throw unsupported(
      `${path}/patternProperties`,
      'supported only for one pattern, without properties, required, propertyNames and additionalProperties',
    );
  }
  return [patterns[0][1], `${path}/patternProperties/${escapePointer(patterns[0][0])}`];
}

function patternsOf(schema: Schema, path: string): [pattern: string, schema: unknown][] {
  return Object.entries(schemasAt(schema.patternProperties, `${path}/patternProperties`));
}

/** Returns the grammar of a named property's key. It matches nothing if `propertyNames` forbids the name. */
function memberKey(
  name: string,
  { listed, schemas }: AllowedNames,
  path: string,
  context: SchemaContext,
): GrammarExpr | string {
  if (listed !== undefined || schemas.length === 0) return keyText(name, context.dialect);
  if (!isUnicode(name))
    throw unsupported(`${path}/propertyNames`, 'not supported with a property whose name is not valid Unicode');
  context.countParts(path, schemas.length);
  return oneOf(
    schemas.map(({ schema, path: namePath, values }) => {
      if (values === undefined) return textsLike([name], schema, namePath, context, true);
      return choice(...(values.has(name) ? [literal(keyText(name, context.dialect))] : []));
    }),
  );
}

function extraKey(
  schema: Schema,
  allowed: readonly NameSchema[],
  known: readonly string[],
  path: string,
  context: SchemaContext,
): GrammarExpr {
  const { label, dialect } = context;
  const pattern = patternsOf(schema, path).at(0);
  if (pattern !== undefined) return keysLike(pattern[0], `${label}: ${path}/patternProperties`, dialect);
  if (allowed.length === 0) return keys({}, known, path, context);
  const members = new Set<unknown>(known);
  return oneOf(
    allowed.map(({ schema: name, path: namePath, values }) => {
      if (values === undefined) return keys(name, known, namePath, context);
      const others = [...values].filter((value) => typeof value === 'string' && !members.has(value));
      return oneOf(others.map((value) => literal(keyText(value as string, dialect))));
    }),
  );
}

/** Returns an object with the members in order. Optional members may be missing. */
function withBraces(
  members: readonly ListMember[],
  extra: GrammarExpr | null,
  min: number,
  context: SchemaContext,
): GrammarExpr {
  if (members.length === 0 && extra === null) return sequence('{', BLANK, '}');
  const list = sequence(membersOf(members, COMMA, extra, context), BLANK);
  const isNeverEmpty = min > 0 || members.some(({ isRequired }) => isRequired);
  return sequence('{', BLANK, isNeverEmpty ? list : optional(list), '}');
}

function checkPropertyCounts(
  members: readonly ListMember[],
  most: number,
  [min, max]: [number, number | null],
  path: string,
): void {
  const numRequired = members.filter(({ isRequired }) => isRequired).length;
  if (min > Math.max(1, numRequired) || (min === 1 && most === 0))
    throw unsupported(`${path}/minProperties`, 'more than 1 is not supported with optional properties');
  if (max !== null && max < most) throw unsupported(`${path}/maxProperties`, 'not supported with properties');
}
