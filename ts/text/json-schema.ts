import { choice, type Grammar, type GrammarExpr, literal, optional, repeat, rule, sequence } from './grammar';
import {
  addJsonRules,
  BLANK,
  blankAfterColon,
  JSON_DIALECT,
  type JsonDialect,
  jsonRule,
  keyExcept,
  plainKey,
} from './json-rules';
import { constants, numbers, regex, strings } from './json-scalars';
import { unsupported } from './schema-error';
import { counts, listAt } from './schema-keywords';
import {
  ANNOTATIONS,
  asSchema,
  escapePointer,
  mergeSchemas,
  unescapePointer,
  type Schema,
  type TypeName,
  TYPES,
  typesOf,
} from './schema-merge';
import { alternativesOverlap } from './schema-overlap';
import { SchemaBudget } from './schema-budget';

const MAX_DEPTH = 64;
/** Limit of alternatives, because every pair is compared. */
const MAX_ONE_OF = 100;

/** Keywords that apply to one type only. Without `type` they imply it. */
const KEYWORDS: Record<TypeName, readonly string[]> = {
  object: ['properties', 'required', 'additionalProperties', 'patternProperties', 'minProperties', 'maxProperties'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems', 'uniqueItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  integer: [],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  boolean: [],
  null: [],
};
const APPLICATORS = ['type', 'enum', 'const', 'anyOf', 'oneOf', 'allOf', '$ref'];
/** Keywords of an object whose members a tool call format writes in its own syntax. */
const MEMBER_KEYWORDS = ['type', 'properties', 'required', 'additionalProperties'];
const KNOWN = new Set([...APPLICATORS, ...Object.values(KEYWORDS).flat()]);

/**
 * Returns the grammar of JSON texts that match a JSON Schema (2020-12). Every text of the grammar is valid. Some valid
 * texts are not in the grammar:
 *
 * - Properties have the order of the schema. Without `additionalProperties`, an object with `properties` has no others.
 *   Additional properties come last, and their keys have no escapes.
 * - Keywords of one type imply it if `type` is missing. After `prefixItems`, further elements need `items`.
 * - Whitespace: one space, or a line break and up to 32 spaces, after `{ [ ,` and before `} ]`; one space after `:`.
 * - Numbers have up to 15 digits before and after the point, and exponents of two digits. With bounds they have no
 *   exponent.
 * - Constants are written as JSON.stringify writes them, except for whitespace.
 *
 * `docs/reference/structured-output.md` lists the supported keywords and their limits.
 * @throws CapstanError `invalid_argument` that names the keyword and its JSON pointer.
 */
export function schemaToGrammar(schema: unknown): Grammar {
  const grammar: Grammar = { root: 'root', rules: [] };
  const rules = new SchemaRules(grammar, schema);
  grammar.rules.push({ name: 'root', expr: rules.root() });
  addJsonRules(grammar);
  return grammar;
}

/** Returns the grammar of any JSON object. */
export function jsonObjectGrammar(): Grammar {
  const grammar: Grammar = { root: 'root', rules: [{ name: 'root', expr: jsonRule('object') }] };
  addJsonRules(grammar);
  return grammar;
}

/** One property of an object that is not written as JSON. */
export interface SchemaMember {
  name: string;
  schema: Schema;
  /** JSON pointer to the schema. */
  path: string;
  isRequired: boolean;
}

interface SchemaRulesOptions {
  /** Prefix of rule names, so that several schemas can share a grammar. */
  namespace?: string;
  /** Prefix of error messages about patterns. */
  label?: string;
  dialect?: JsonDialect;
  /** Shared by all schemas of the grammar. */
  budget?: SchemaBudget;
}

/** The rules of one schema. {@link addJsonRules} adds the rules that all schemas share. */
export class SchemaRules {
  readonly #root: Schema;
  readonly #grammar: Grammar;
  readonly #namespace: string;
  /** Prefix of error messages about patterns. */
  readonly label: string;
  readonly #dialect: JsonDialect;
  /** Rule name by JSON pointer. */
  readonly #refs = new Map<string, string>();
  readonly #budget: SchemaBudget;
  #numRules = 0;

  constructor(
    grammar: Grammar,
    schema: unknown,
    {
      namespace = '',
      label = 'JSON schema',
      dialect = JSON_DIALECT,
      budget = new SchemaBudget(),
    }: SchemaRulesOptions = {},
  ) {
    this.#root = asSchema(schema, '#');
    this.#grammar = grammar;
    this.#namespace = namespace;
    this.label = label;
    this.#dialect = dialect;
    this.#budget = budget;
  }

  /** Returns the grammar of all values that match the schema. */
  root(): GrammarExpr {
    return this.#ref('#', '#');
  }

  /** Returns the grammar of all values that match a part of the schema. */
  value(schema: Schema, path: string): GrammarExpr {
    return this.#value(schema, path, 0);
  }

  /** Returns the properties of the schema, for a tool call format that writes them in its own syntax. */
  members(format: string): SchemaMember[] {
    const schema = this.#flatten(this.#root, '#', 0);
    checkKeywords(schema, '#');
    const other = Object.keys(schema).find((key) => !ANNOTATIONS.has(key) && !MEMBER_KEYWORDS.includes(key));
    if (other !== undefined) throw unsupported(`#/${other}`, `not supported by ${format} calls for the arguments`);
    const properties = asSchema(schema.properties ?? {}, '#/properties');
    const required = requiredNames(schema, '#');
    return [...new Set([...Object.keys(properties), ...required])].flatMap((name) => {
      const isNamed = Object.hasOwn(properties, name);
      const value = isNamed ? properties[name] : (schema.additionalProperties ?? true);
      const isRequired = required.has(name);
      if (value === false && isRequired) throw notAllowed(name, '#');
      const path = isNamed ? `#/properties/${escapePointer(name)}` : '#/additionalProperties';
      return value === false ? [] : [{ name, schema: asSchema(value, path), path, isRequired }];
    });
  }

  /** Returns a comma-separated list of the members in order. Optional members may be missing. */
  list(members: { expr: GrammarExpr; isRequired: boolean }[], comma: GrammarExpr): GrammarExpr {
    if (members.length === 0) return literal('');
    const list = this.#list(members, comma, null);
    return members.some(({ isRequired }) => isRequired) ? list : optional(list);
  }

  /** Returns schemas without `$ref`, `allOf`, `anyOf` and `oneOf` such that a value matches one of them. */
  alternatives(schema: Schema, path: string, depth = 0): { schema: Schema; path: string }[] {
    const flat = this.#flatten(schema, path, depth);
    checkKeywords(flat, path);
    const keyword = 'anyOf' in flat ? 'anyOf' : 'oneOf';
    if (!(keyword in flat)) return [{ schema: flat, path }];
    const { base, items } = this.#splitAlternatives(keyword, flat, path, depth);
    return items.flatMap(({ schema: item, path: itemPath }) =>
      this.alternatives(this.#merge(base, this.#flatten(item, itemPath, depth + 1), itemPath), itemPath, depth + 1),
    );
  }

  /** Returns a rule for the schema at a JSON pointer. Each pointer has one rule, so that schemas can be recursive. */
  #ref(pointer: string, path: string): GrammarExpr {
    const known = this.#refs.get(pointer);
    if (known !== undefined) return rule(known);
    const name = `${this.#namespace}schema ${pointer}`;
    this.#refs.set(pointer, name);
    const target = this.#resolve(pointer, path);
    // NOTE: add the rule before converting its schema, because the schema may refer to it.
    const entry = { name, expr: literal(''), isPlain: true };
    this.#grammar.rules.push(entry);
    entry.expr = this.#value(target, pointer, 0);
    return rule(name);
  }

  #resolve(pointer: unknown, path: string): Schema {
    if (typeof pointer !== 'string' || (pointer !== '#' && !pointer.startsWith('#/')))
      throw unsupported(path, 'only references within the schema are supported, such as #/$defs/name');
    let at: unknown = this.#root;
    for (const part of pointer.split('/').slice(1)) {
      const key = decodePointer(part, path);
      if (typeof at !== 'object' || at === null || !Object.hasOwn(at, key))
        throw unsupported(path, 'the target of the reference does not exist');
      at = (at as Schema)[key];
    }
    return asSchema(at, pointer);
  }

  #value(schema: Schema, path: string, depth: number): GrammarExpr {
    if (depth > MAX_DEPTH) throw unsupported(path, `nested deeper than ${MAX_DEPTH} schemas`);
    this.#budget.countSchema(path);
    checkKeywords(schema, path);
    const asserted = Object.keys(schema).filter((key) => !ANNOTATIONS.has(key));
    if ('$ref' in schema && asserted.length === 1) return this.#ref(schema.$ref as string, `${path}/$ref`);
    if ('$ref' in schema || 'allOf' in schema) return this.#value(this.#flatten(schema, path, 0), path, depth + 1);
    if ('anyOf' in schema) return this.#alternatives('anyOf', schema, path, depth);
    if ('oneOf' in schema) return this.#alternatives('oneOf', schema, path, depth);
    if ('enum' in schema || 'const' in schema) return constants(schema, path, this.#dialect);
    const types = typesOf(schema, path) ?? impliedTypes(schema);
    if (types === undefined) return jsonRule('value', this.#dialect);
    if (types.length === 0) throw unsupported(path, 'no value matches');
    const distinct = types.filter((type) => type !== 'integer' || !types.includes('number'));
    return choice(...distinct.map((type) => this.#typed(type, schema, path, depth)));
  }

  /** Returns the schema with `$ref` and `allOf` merged into it. */
  #flatten(schema: Schema, path: string, depth: number): Schema {
    if (depth > MAX_DEPTH) throw unsupported(path, 'a schema that refers to itself cannot be merged');
    this.#budget.countSchema(path);
    const { $ref, allOf, ...own } = schema;
    let merged: Schema = own;
    if ($ref !== undefined)
      merged = this.#merge(this.#flatten(this.#resolve($ref, `${path}/$ref`), $ref as string, depth + 1), merged, path);
    const parts: unknown[] = Array.isArray(allOf) ? allOf : [];
    parts.forEach((part, i) => {
      const partPath = `${path}/allOf/${i}`;
      const flat = this.#flatten(asSchema(part, partPath), partPath, depth + 1);
      checkKeywords(flat, partPath);
      merged = this.#merge(merged, flat, path);
    });
    return merged;
  }

  #merge(a: Schema, b: Schema, path: string): Schema {
    this.#budget.countValues(path, [a, b]);
    return mergeSchemas(a, b, path);
  }

  /** Returns `part` alone if the schemas cannot be merged. */
  #mergeSafely(base: Schema, part: Schema, path: string): Schema {
    this.#budget.countValues(path, [base, part]);
    try {
      return mergeSchemas(base, part, path);
    } catch {
      return part;
    }
  }

  #alternatives(keyword: 'anyOf' | 'oneOf', schema: Schema, path: string, depth: number): GrammarExpr {
    const { base, items } = this.#splitAlternatives(keyword, schema, path, depth);
    const hasBase = Object.keys(base).some((key) => !ANNOTATIONS.has(key));
    const exprs = items.map(({ schema: item, path: itemPath }) => {
      if (!hasBase) return this.#value(item, itemPath, depth + 1);
      return this.#value(this.#merge(base, this.#flatten(item, itemPath, depth + 1), itemPath), itemPath, depth + 1);
    });
    return choice(...exprs);
  }

  #splitAlternatives(
    keyword: 'anyOf' | 'oneOf',
    schema: Schema,
    path: string,
    depth: number,
  ): { base: Schema; items: { schema: Schema; path: string }[] } {
    const { [keyword]: list, ...base } = schema;
    if (!Array.isArray(list) || list.length === 0)
      throw unsupported(`${path}/${keyword}`, 'expected an array of schemas');
    // `false` matches nothing.
    const items = list.flatMap((item, i) =>
      item === false ? [] : [{ schema: asSchema(item, `${path}/${keyword}/${i}`), path: `${path}/${keyword}/${i}` }],
    );
    if (items.length === 0) throw unsupported(`${path}/${keyword}`, 'no value matches');
    if (keyword === 'oneOf') {
      if (list.length > MAX_ONE_OF)
        throw unsupported(`${path}/oneOf`, `more than ${MAX_ONE_OF} alternatives; use anyOf`);
      const flat = items.map((item) =>
        this.#mergeSafely(base, this.#flatten(item.schema, item.path, depth), item.path),
      );
      this.#budget.countValues(`${path}/oneOf`, flat, flat.length);
      for (const [i, first] of flat.entries()) {
        const j = flat.findIndex((other, at) => at > i && alternativesOverlap(first, other, path));
        if (j > 0)
          throw unsupported(
            `${path}/oneOf`,
            `a value might match both alternatives ${i} and ${j}, which oneOf forbids; use anyOf`,
          );
      }
    }
    return { base, items };
  }

  #typed(type: TypeName, schema: Schema, path: string, depth: number): GrammarExpr {
    switch (type) {
      case 'null':
        return literal(this.#dialect.null);
      case 'boolean':
        return choice(this.#dialect.true, this.#dialect.false);
      case 'integer':
      case 'number':
        return numbers(type, schema, path);
      case 'string':
        return strings(schema, path, this.label);
      case 'array':
        return this.#array(schema, path, depth);
      case 'object':
        return this.#object(schema, path, depth);
    }
  }

  // ---- arrays ----

  #array(schema: Schema, path: string, depth: number): GrammarExpr {
    if (schema.uniqueItems === true) throw unsupported(`${path}/uniqueItems`, 'not supported');
    if (Array.isArray(schema.items))
      throw unsupported(`${path}/items`, 'expected a schema; for a list of schemas use prefixItems');
    const [min, max] = counts(schema, 'minItems', 'maxItems', path);
    const prefix: unknown[] = schema.prefixItems === undefined ? [] : listAt(schema.prefixItems, `${path}/prefixItems`);
    const hasMore = schema.items === undefined ? prefix.length === 0 || min > prefix.length : schema.items !== false;
    const numMore = Math.max(0, (max ?? Infinity) - prefix.length);
    if (!hasMore && min > prefix.length) throw unsupported(`${path}/minItems`, 'more elements than items allows');
    if (prefix.length > MAX_DEPTH) throw unsupported(`${path}/prefixItems`, `more than ${MAX_DEPTH} schemas`);
    const comma = sequence(',', BLANK);
    let tail: GrammarExpr | null = null;
    if (hasMore && numMore > 0) {
      const item = this.#value(asSchema(schema.items ?? true, `${path}/items`), `${path}/items`, depth + 1);
      const minMore = Math.max(0, min - prefix.length);
      if (prefix.length === 0) return arrayOf(item, this.#shared(item), comma, min, max);
      tail = repeat(sequence(comma, item), minMore, max === null ? null : numMore);
    }
    // Builds from the last prefix element to the first. The rest is optional after `minItems` elements.
    for (let i = Math.min(prefix.length, max ?? Infinity) - 1; i >= 0; i--) {
      const element = this.#value(
        asSchema(prefix[i], `${path}/prefixItems/${i}`),
        `${path}/prefixItems/${i}`,
        depth + 1,
      );
      const parts = [...(i > 0 ? [comma] : []), element, ...(tail === null ? [] : [tail])];
      tail = i < min ? sequence(...parts) : optional(sequence(...parts));
    }
    return sequence('[', BLANK, ...(tail === null ? [] : [tail, BLANK]), ']');
  }

  // ---- objects ----

  #object(schema: Schema, path: string, depth: number): GrammarExpr {
    const properties = asSchema(schema.properties ?? {}, `${path}/properties`);
    const required = requiredNames(schema, path);
    const [extraValue, extraPath] = this.#extraValue(schema, properties, path);
    const names = [...new Set([...Object.keys(properties), ...required])];
    const members: { expr: GrammarExpr; isRequired: boolean }[] = [];
    for (const name of names) {
      const isRequired = required.has(name);
      const namePath = Object.hasOwn(properties, name) ? `${path}/properties/${escapePointer(name)}` : extraPath;
      const value = Object.hasOwn(properties, name)
        ? properties[name]
        : (extraValue ?? (schema.additionalProperties === undefined && schema.patternProperties === undefined));
      if (value === false && isRequired) throw notAllowed(name, path);
      if (value === false) continue;
      members.push({
        expr: sequence(
          `${JSON.stringify(name)}:`,
          blankAfterColon,
          this.#value(asSchema(value, namePath), namePath, depth + 1),
        ),
        isRequired,
      });
    }
    const [min, max] = counts(schema, 'minProperties', 'maxProperties', path);
    if (extraValue === null || extraValue === false) {
      checkPropertyCounts(members.filter(({ isRequired }) => isRequired).length, members.length, min, max, path);
      return this.#members(members, null);
    }
    const key = this.#extraKey(schema, names, path);
    const extra = sequence(
      key,
      ':',
      blankAfterColon,
      this.#value(asSchema(extraValue, extraPath), extraPath, depth + 1),
    );
    if (names.length > 0) {
      checkPropertyCounts(members.filter(({ isRequired }) => isRequired).length, Infinity, min, max, path);
      return this.#members(members, this.#shared(extra));
    }
    if (min > 1) throw unsupported(`${path}/minProperties`, 'more than 1 is not supported without properties');
    const comma = sequence(',', BLANK);
    return arrayOf(extra, this.#shared(extra), comma, min, max, '{', '}');
  }

  /** Returns the schema of additional properties, or null if there are none, and its path. */
  #extraValue(schema: Schema, properties: Schema, path: string): [unknown, string] {
    const patterns =
      schema.patternProperties === undefined
        ? []
        : Object.entries(asSchema(schema.patternProperties, `${path}/patternProperties`));
    if (patterns.length === 0) {
      const isFree =
        Object.keys(properties).length === 0 &&
        (schema.required === undefined || (schema.required as unknown[]).length === 0);
      return [schema.additionalProperties ?? (isFree ? true : null), `${path}/additionalProperties`];
    }
    const extra = schema.additionalProperties;
    if (
      patterns.length > 1 ||
      Object.keys(properties).length > 0 ||
      schema.required !== undefined ||
      (extra !== undefined && extra !== false)
    ) {
      throw unsupported(
        `${path}/patternProperties`,
        'supported only for one pattern, without properties, required and additionalProperties',
      );
    }
    return [patterns[0][1], `${path}/patternProperties/${escapePointer(patterns[0][0])}`];
  }

  #extraKey(schema: Schema, names: string[], path: string): GrammarExpr {
    if (schema.patternProperties === undefined) return names.length === 0 ? plainKey : keyExcept(names);
    const pattern = Object.keys(schema.patternProperties as Schema)[0];
    return sequence('"', regex(pattern, `${path}/patternProperties`, this.label, true), '"');
  }

  /** Returns an object with the members in order. Optional members may be missing. */
  #members(members: { expr: GrammarExpr; isRequired: boolean }[], extra: GrammarExpr | null): GrammarExpr {
    if (members.length === 0 && extra === null) return sequence('{', BLANK, '}');
    const list = sequence(this.#list(members, sequence(',', BLANK), extra), BLANK);
    return sequence('{', BLANK, members.some(({ isRequired }) => isRequired) ? list : optional(list), '}');
  }

  /** Returns the list of members without braces. If no member is required, the caller must allow the empty list. */
  #list(
    members: { expr: GrammarExpr; isRequired: boolean }[],
    comma: GrammarExpr,
    extra: GrammarExpr | null,
  ): GrammarExpr {
    const extras = extra === null ? [] : [repeat(sequence(comma, extra), 0, null)];
    const firstRequired = members.findIndex(({ isRequired }) => isRequired);
    if (firstRequired >= 0) {
      const parts = members.map(({ expr, isRequired }, i) => {
        if (i < firstRequired) return optional(sequence(expr, comma));
        if (i === firstRequired) return expr;
        return isRequired ? sequence(comma, expr) : optional(sequence(comma, expr));
      });
      return sequence(...parts, ...extras);
    }
    // Any member may be the first. The tails are rules that alternatives share, so the size stays linear.
    const firsts: GrammarExpr[] = [];
    let rest: GrammarExpr = extra === null ? literal('') : this.#shared(extras[0]);
    if (extra !== null) firsts.push(sequence(extra, rest));
    for (const { expr } of [...members].reverse()) {
      const member = this.#shared(expr);
      firsts.unshift(sequence(member, rest));
      rest = this.#shared(sequence(optional(sequence(comma, member)), rest));
    }
    return choice(...firsts);
  }

  /** Returns a rule for an expression that is used more than once. */
  #shared(expr: GrammarExpr): GrammarExpr {
    if (expr.kind === 'rule' || expr.kind === 'literal') return expr;
    const name = `${this.#namespace}part ${++this.#numRules}`;
    this.#grammar.rules.push({ name, expr, isPlain: true });
    return rule(name);
  }
}

function arrayOf(
  first: GrammarExpr,
  next: GrammarExpr,
  comma: GrammarExpr,
  min: number,
  max: number | null,
  open = '[',
  close = ']',
): GrammarExpr {
  if (max === 0) return sequence(open, BLANK, close);
  const more = repeat(sequence(comma, next), Math.max(0, min - 1), max === null ? null : max - 1);
  const all = sequence(next.kind === 'rule' ? next : first, more, BLANK);
  return sequence(open, BLANK, min === 0 ? optional(all) : all, close);
}

function checkKeywords(schema: Schema, path: string): void {
  for (const key of Object.keys(schema)) {
    if (!KNOWN.has(key) && !ANNOTATIONS.has(key))
      throw unsupported(`${path}/${escapePointer(key)}`, 'this keyword is not supported');
  }
}

function impliedTypes(schema: Schema): TypeName[] | undefined {
  const implied = TYPES.filter((type) => KEYWORDS[type].some((key) => key in schema));
  return implied.length === 0 ? undefined : implied;
}

function requiredNames(schema: Schema, path: string): ReadonlySet<string> {
  const names = schema.required === undefined ? [] : listAt(schema.required, `${path}/required`);
  if (names.some((name) => typeof name !== 'string')) throw unsupported(`${path}/required`, 'expected names');
  return new Set(names as string[]);
}

function notAllowed(name: string, path: string): Error {
  return unsupported(`${path}/required`, `the property ${JSON.stringify(name).slice(0, 80)} is not allowed`);
}

function decodePointer(part: string, path: string): string {
  try {
    return unescapePointer(decodeURIComponent(part));
  } catch {
    throw unsupported(path, 'the reference is not a JSON pointer');
  }
}

function checkPropertyCounts(fewest: number, most: number, min: number, max: number | null, path: string): void {
  if (min > fewest) throw unsupported(`${path}/minProperties`, 'not supported with optional properties');
  if (max !== null && max < most) throw unsupported(`${path}/maxProperties`, 'not supported with properties');
}
