import { choice, type GrammarExpr, literal, optional, repeat, sequence } from './grammar';
import { constant, constantsOf } from './json-constants';
import { COMMA, listOf } from './json-lists';
import { BLANK } from './json-rules';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { counts, listAt } from './schema-keywords';
import { asSchema, distinctValues } from './schema-merge';
import type { Schema } from './schema-types';

const MAX_PREFIX = 64;
/** Number of different values of a set that can come in any order: the grammar has a rule for each subset. */
const MAX_ANY_ORDER = 7;
/** Limit of rules for a set whose values come in the order of the schema. */
const MAX_SET_RULES = 10_000;

/** Returns the grammar of arrays that match `schema`, `depth` levels below its rule. */
export function arrays(schema: Schema, path: string, depth: number, context: SchemaContext): GrammarExpr {
  const [min, max] = counts(schema, 'minItems', 'maxItems', path);
  const prefix: unknown[] = schema.prefixItems === undefined ? [] : listAt(schema.prefixItems, `${path}/prefixItems`);
  const items = schema.items ?? schema.unevaluatedItems;
  if (schema.uniqueItems === true && (max ?? Infinity) > 1 && !(prefix.length <= 1 && items === false))
    return sets(schema, path, depth, context);
  const hasMore = items === undefined ? prefix.length === 0 || min > prefix.length : items !== false;
  const numMore = Math.max(0, (max ?? Infinity) - prefix.length);
  if (!hasMore && min > prefix.length) throw unsupported(`${path}/minItems`, 'more elements than items allows');
  if (prefix.length > MAX_PREFIX) throw unsupported(`${path}/prefixItems`, `more than ${MAX_PREFIX} schemas`);
  let tail: GrammarExpr | null = null;
  if (hasMore && numMore > 0) {
    const item = context.value(asSchema(items ?? true, `${path}/items`), `${path}/items`, depth + 1);
    if (prefix.length === 0) return listOf(item, '[]', [min, max], context);
    tail = repeat(sequence(COMMA, item), Math.max(0, min - prefix.length), max === null ? null : numMore);
  }
  // Builds from the last prefix element to the first. The rest is optional after `minItems` elements.
  for (let i = Math.min(prefix.length, max ?? Infinity) - 1; i >= 0; i--) {
    const itemPath = `${path}/prefixItems/${i}`;
    const element = context.value(asSchema(prefix[i], itemPath), itemPath, depth + 1);
    const parts = [...(i > 0 ? [COMMA] : []), element, ...(tail === null ? [] : [tail])];
    tail = i < min ? sequence(...parts) : optional(sequence(...parts));
  }
  return sequence('[', BLANK, ...(tail === null ? [] : [tail, BLANK]), ']');
}

/**
 * Returns the grammar of arrays without equal elements. The elements must be constants, because an automaton cannot
 * remember other values.
 */
function sets(schema: Schema, path: string, depth: number, context: SchemaContext): GrammarExpr {
  const itemsPath = `${path}/items`;
  const alternatives =
    schema.prefixItems === undefined
      ? context.alternatives(asSchema(schema.items ?? true, itemsPath), itemsPath, depth + 1)
      : [];
  const lists = alternatives.map(({ schema: item, path: itemPath }) => constantsOf(item, itemPath));
  if (lists.length === 0 || lists.some((list) => list === undefined))
    throw unsupported(`${path}/uniqueItems`, 'supported for items of enum or const, and for at most one element');
  const values = distinctValues(lists.flatMap((list) => list ?? []));
  const [min, max] = counts(schema, 'minItems', 'maxItems', path);
  if (min > values.length) throw unsupported(`${path}/minItems`, 'more elements than there are different values');
  const most = Math.min(max ?? Infinity, values.length);
  const exprs = values.map((value) => context.shared(constant(value, context.dialect)));
  const list = (exprs.length <= MAX_ANY_ORDER ? anyOrder : oneOrder)(exprs, min, most, path, context);
  return sequence('[', BLANK, list, BLANK, ']');
}

/** Returns `min` to `max` different values in any order. */
function anyOrder(
  values: readonly GrammarExpr[],
  min: number,
  max: number,
  path: string,
  context: SchemaContext,
): GrammarExpr {
  /** What may follow, by the bit set of used values. */
  const rests = new Map<number, GrammarExpr>();
  const restOf = (used: number): GrammarExpr => {
    const known = rests.get(used);
    if (known !== undefined) return known;
    const numUsed = values.filter((_, i) => (used & (1 << i)) !== 0).length;
    const comma = numUsed === 0 ? [] : [COMMA];
    const more = values.flatMap((value, i) =>
      (used & (1 << i)) !== 0 || numUsed === max ? [] : [sequence(...comma, value, restOf(used | (1 << i)))],
    );
    context.countParts(path, more.length);
    const rest = context.shared(choice(...(numUsed >= min ? [literal('')] : []), ...more));
    rests.set(used, rest);
    return rest;
  };
  return restOf(0);
}

/** Returns `min` to `max` different values in the order of `values`. */
function oneOrder(
  values: readonly GrammarExpr[],
  min: number,
  max: number,
  path: string,
  context: SchemaContext,
): GrammarExpr {
  // Above this number of used values, their number no longer matters.
  const numCounted = max < values.length ? max : Math.max(1, min);
  if (values.length * (numCounted + 1) > MAX_SET_RULES)
    throw unsupported(`${path}/uniqueItems`, 'too many different values for these bounds');
  /** What may follow, by the number of used values. */
  let rests = Array.from({ length: numCounted + 1 }, (_, numUsed) =>
    numUsed >= min ? literal('') : choice(...([] as GrammarExpr[])),
  );
  for (const value of [...values].reverse()) {
    rests = rests.map((skip, numUsed) => {
      if (numUsed === max) return skip;
      const comma = numUsed === 0 ? [] : [COMMA];
      return context.shared(choice(sequence(...comma, value, rests[Math.min(numUsed + 1, numCounted)]), skip));
    });
  }
  return rests[0];
}
