import { choice, type Grammar, type GrammarExpr, literal, oneOf, optional, rule } from './grammar';
import { arrays } from './json-arrays';
import { constantsLike } from './json-constants';
import { FORMATS } from './json-formats';
import { membersOf } from './json-lists';
import { INTEGER_FORMATS, numbers } from './json-number-keywords';
import { namedMembers, objects, type SchemaMember } from './json-objects';
import { addJsonRules, JSON_DIALECT, type JsonDialect, jsonRule } from './json-rules';
import { strings } from './json-strings';
import type { ListMember, SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { checkKeywords, keywordBeside, KEYWORDS, validates } from './schema-keywords';
import { asPart, asSchema, isNothing, MAX_ALTERNATIVES, mergeSchemas, severalOf, typesOf } from './schema-merge';
import { type Schema, type TypeName, TYPES } from './schema-types';
import { alternativesOverlap } from './schema-overlap';
import { SchemaReferences } from './schema-references';
import { SchemaBudget } from './schema-budget';

const MAX_DEPTH = 64;
/** Limit of alternatives, because every pair is compared. */
const MAX_ONE_OF = 100;

/** Keywords of an object whose members a tool call format writes in its own syntax. */
const MEMBER_KEYWORDS = ['type', 'properties', 'required', 'additionalProperties'];

/**
 * Returns the grammar of JSON texts that match a JSON Schema (2020-12). Every text of the grammar is valid. Some valid
 * texts are not in the grammar:
 *
 * - Properties have the order of the schema. Without `additionalProperties`, an object with `properties` has no others.
 *   Additional properties come last, and their keys have no escapes.
 * - Keywords and formats of one type imply it if `type` is missing. After `prefixItems`, further elements need `items`.
 * - Whitespace: one space, or a line break and up to 32 spaces, after `{ [ ,` and before `} ]`; one space after `:`.
 * - Numbers have up to 15 digits before and after the point, and exponents of two digits. With bounds they have no
 *   exponent, and none lies between 0 and 1e-30.
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

interface Alternative {
  schema: Schema;
  /** JSON pointer to the schema. */
  path: string;
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
export class SchemaRules implements SchemaContext {
  readonly #references: SchemaReferences;
  readonly #grammar: Grammar;
  readonly #namespace: string;
  /** Prefix of error messages about patterns. */
  readonly label: string;
  readonly dialect: JsonDialect;
  /** Rule name by JSON pointer, or by the text of a reference and the keywords beside it. */
  readonly #refs = new Map<string, string>();
  readonly #budget: SchemaBudget;
  /** By pattern, format and bounds of the length. */
  readonly #texts = new Map<string, GrammarExpr>();
  /** Conversions of the targets of references. */
  readonly #pending: (() => void)[] = [];
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
    this.#references = new SchemaReferences(schema);
    this.#grammar = grammar;
    this.#namespace = namespace;
    this.label = label;
    this.dialect = dialect;
    this.#budget = budget;
  }

  /** Returns the grammar of all values that match the schema. */
  root(): GrammarExpr {
    return this.#ref('#', '#');
  }

  /** Returns the properties of the schema, for a tool call format that writes them in its own syntax. */
  members(format: string): SchemaMember[] {
    const schema = this.#flatten(this.#references.root, '#', 0);
    checkKeywords(schema, '#');
    const other = keywordBeside(schema, MEMBER_KEYWORDS);
    if (other !== undefined) throw unsupported(`#/${other}`, `not supported by ${format} calls for the arguments`);
    return namedMembers(schema, '#');
  }

  /** Returns a comma-separated list of the members in order. Optional members may be missing. */
  list(members: ListMember[], comma: GrammarExpr): GrammarExpr {
    if (members.length === 0) return literal('');
    const list = membersOf(members, comma, null, this);
    return members.some(({ isRequired }) => isRequired) ? list : optional(list);
  }

  /** Returns schemas without `$ref`, `allOf`, `anyOf` and `oneOf` such that a value matches one of them. */
  alternatives(schema: Schema, path: string, depth = 0): Alternative[] {
    const flat = this.#flatten(schema, path, depth);
    checkKeywords(flat, path);
    const keyword = 'anyOf' in flat ? 'anyOf' : 'oneOf';
    if (!(keyword in flat)) return [{ schema: flat, path }];
    const { base, items } = this.#splitAlternatives(keyword, flat, path, depth);
    return items.flatMap(({ schema: item, path: itemPath }) =>
      this.alternatives(this.#merge(base, this.#part(item, itemPath, depth + 1), itemPath), itemPath, depth + 1),
    );
  }

  /** Returns a rule for the schema at a JSON pointer. Each pointer has one rule, so that schemas can be recursive. */
  #ref(pointer: string, path: string): GrammarExpr {
    return this.#ruleFor(pointer, pointer, () => {
      const target = this.#references.resolve(pointer, path);
      return () => this.value(target, pointer, 0);
    });
  }

  /** Returns a rule for a reference with other keywords beside it, one for each text of both. */
  #refWith(schema: Schema, path: string): GrammarExpr {
    const asserted = Object.entries(schema).filter(([key]) => validates(key));
    const key = JSON.stringify(asserted);
    this.#budget.countValues(path, [schema]);
    return this.#ruleFor(
      key,
      `${path} ${this.#refs.size}`,
      () => () => this.value(this.#flatten(schema, path, 0), path, 0),
    );
  }

  #ruleFor(key: string, shown: string, prepare: () => () => GrammarExpr): GrammarExpr {
    const known = this.#refs.get(key);
    if (known !== undefined) return rule(known);
    const name = `${this.#namespace}schema ${shown}`;
    this.#refs.set(key, name);
    const convert = prepare();
    const entry = { name, expr: literal(''), isPlain: this.dialect.quote === undefined };
    this.#grammar.rules.push(entry);
    this.#pending.push(() => {
      entry.expr = convert();
    });
    // Only the outermost reference converts, so that a long chain of references takes no stack.
    if (this.#pending.length === 1) this.#convertPending();
    return rule(name);
  }

  #convertPending(): void {
    for (const convert of this.#pending) convert();
    this.#pending.length = 0;
  }

  /** Returns the grammar of all values that match a part of the schema. */
  value(schema: Schema, path: string, depth = 0): GrammarExpr {
    if (depth > MAX_DEPTH) throw unsupported(path, `nested deeper than ${MAX_DEPTH} schemas`);
    this.#budget.countSchema(path);
    checkKeywords(schema, path);
    const asserted = Object.keys(schema).filter(validates);
    if ('$ref' in schema && asserted.length === 1) return this.#ref(schema.$ref as string, `${path}/$ref`);
    // A lone part needs no merging, so that it can refer to the schema around it.
    if (asserted.length === 1 && Array.isArray(schema.allOf) && schema.allOf.length === 1)
      return this.value(asSchema(schema.allOf[0], `${path}/allOf/0`), `${path}/allOf/0`, depth + 1);
    if ('$ref' in schema) return this.#refWith(schema, path);
    if ('allOf' in schema) return this.value(this.#flatten(schema, path, 0), path, depth + 1);
    if ('anyOf' in schema) return this.#alternatives('anyOf', schema, path, depth);
    if ('oneOf' in schema) return this.#alternatives('oneOf', schema, path, depth);
    const listed = constantsLike(schema, path, this);
    if (listed !== undefined) return listed;
    const types = typesOf(schema, path) ?? impliedTypes(schema);
    if (types === undefined) return jsonRule('value', this.dialect);
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
      merged = this.#merge(
        this.#part(this.#references.resolve($ref, `${path}/$ref`), $ref as string, depth + 1),
        merged,
        path,
      );
    const parts: unknown[] = Array.isArray(allOf) ? allOf : [];
    parts.forEach((part, i) => {
      const partPath = `${path}/allOf/${i}`;
      const flat = this.#part(asSchema(part, partPath), partPath, depth + 1);
      checkKeywords(flat, partPath);
      merged = this.#merge(merged, flat, path);
    });
    return merged;
  }

  /** Returns the schema so that it can be merged with the one around it. */
  #part(schema: Schema, path: string, depth: number): Schema {
    return asPart(this.#flatten(schema, path, depth), path);
  }

  #merge(a: Schema, b: Schema, path: string): Schema {
    this.#budget.countValues(path, [a, b]);
    return mergeSchemas(a, b, path);
  }

  /** Returns `part` alone if the schemas cannot be merged. */
  #mergeSafely(base: Schema, part: Schema, path: string): Schema {
    this.#budget.countValues(path, [base, part]);
    try {
      return mergeSchemas(base, asPart(part, path), path);
    } catch {
      return part;
    }
  }

  #alternatives(keyword: 'anyOf' | 'oneOf', schema: Schema, path: string, depth: number): GrammarExpr {
    const { base, items } = this.#splitAlternatives(keyword, schema, path, depth);
    const hasBase = Object.keys(base).some(validates);
    const exprs = items.flatMap(({ schema: item, path: itemPath }) => {
      const isPair = Array.isArray(item.allOf) && item.allOf.length > 1;
      if (!hasBase && !isPair) return [this.value(item, itemPath, depth + 1)];
      const merged = this.#merge(base, this.#part(item, itemPath, depth + 1), itemPath);
      return isNothing(merged) ? [] : [this.value(merged, itemPath, depth + 1)];
    });
    if (exprs.length === 0) throw unsupported(`${path}/${keyword}`, 'no value matches');
    return oneOf(exprs);
  }

  #splitAlternatives(
    keyword: 'anyOf' | 'oneOf',
    schema: Schema,
    path: string,
    depth: number,
  ): { base: Schema; items: Alternative[] } {
    const { [keyword]: list, ...base } = schema;
    if (!Array.isArray(list) || list.length === 0)
      throw unsupported(`${path}/${keyword}`, 'expected an array of schemas');
    if (list.length > MAX_ALTERNATIVES)
      throw unsupported(`${path}/${keyword}`, `more than ${MAX_ALTERNATIVES} alternatives`);
    const items = list.flatMap((item, i) =>
      isNothing(asSchema(item, path))
        ? []
        : [{ schema: asSchema(item, `${path}/${keyword}/${i}`), path: `${path}/${keyword}/${i}` }],
    );
    if (items.length === 0) throw unsupported(`${path}/${keyword}`, 'no value matches');
    if (keyword === 'anyOf') return { base, items };
    if (list.length > MAX_ONE_OF) throw unsupported(`${path}/oneOf`, `more than ${MAX_ONE_OF} alternatives; use anyOf`);
    const pair = this.#overlap(base, items, path, depth);
    if (pair === undefined) return { base, items };
    const tagged = withTag(items, schema.discriminator);
    if (tagged !== undefined && this.#overlap(base, tagged, path, depth) === undefined) return { base, items: tagged };
    throw unsupported(
      `${path}/oneOf`,
      `a value might match both alternatives ${pair[0]} and ${pair[1]}, which oneOf forbids; use anyOf`,
    );
  }

  /** Returns the indexes of two alternatives that a value might match both. */
  #overlap(base: Schema, items: readonly Alternative[], path: string, depth: number): [number, number] | undefined {
    const flat = items.map((item) => this.#mergeSafely(base, this.#flatten(item.schema, item.path, depth), item.path));
    this.#budget.countValues(`${path}/oneOf`, flat, flat.length);
    for (const [i, first] of flat.entries()) {
      const j = flat.findIndex((other, at) => at > i && alternativesOverlap(first, other, path));
      if (j > 0) return [i, j];
    }
    return undefined;
  }

  #typed(type: TypeName, schema: Schema, path: string, depth: number): GrammarExpr {
    switch (type) {
      case 'null':
        return literal(this.dialect.null);
      case 'boolean':
        return choice(this.dialect.true, this.dialect.false);
      case 'integer':
      case 'number':
        return numbers(type, schema, path, this);
      case 'string':
        return this.#text(schema, path);
      case 'array':
        return arrays(schema, path, depth, this);
      case 'object':
        return objects(schema, path, depth, this);
    }
  }

  /** Returns one rule for all strings with the same pattern, format and bounds, because they can be large. */
  #text(schema: Schema, path: string): GrammarExpr {
    const { pattern, format, minLength, maxLength } = schema;
    const key = JSON.stringify([severalOf(pattern), severalOf(format), minLength, maxLength]);
    const known = this.#texts.get(key);
    if (known !== undefined) return known;
    const text = strings(schema, path, this.label, this.dialect);
    const expr = pattern === undefined && format === undefined ? text : this.shared(text);
    this.#texts.set(key, expr);
    return expr;
  }

  /** Returns a rule for an expression that is used more than once. */
  shared(expr: GrammarExpr): GrammarExpr {
    if (expr.kind === 'rule' || expr.kind === 'literal') return expr;
    const name = `${this.#namespace}part ${++this.#numRules}`;
    this.countParts('#', 1);
    this.#grammar.rules.push({ name, expr, isPlain: this.dialect.quote === undefined });
    return rule(name);
  }

  countParts(path: string, num: number): void {
    this.#budget.countParts(path, num);
  }
}

/** Returns the alternatives with the property of a `discriminator` required, because its default may be left out. */
function withTag(items: readonly Alternative[], discriminator: unknown): Alternative[] | undefined {
  const name = (discriminator as { propertyName?: unknown } | null | undefined)?.propertyName;
  if (typeof name !== 'string') return undefined;
  return items.map(({ schema, path }) => {
    const required: unknown[] = Array.isArray(schema.required) ? schema.required : [];
    return { schema: { ...schema, required: [...required, name] }, path };
  });
}

/** Returns the types of the keywords and formats that apply to one type only. */
function impliedTypes(schema: Schema): TypeName[] | undefined {
  const formats = severalOf(schema.format);
  const ofFormats: Partial<Record<TypeName, boolean>> = {
    string: formats.some((format) => FORMATS.has(format as string)),
    number: formats.some((format) => INTEGER_FORMATS.has(format)),
  };
  const implied = TYPES.filter((type) => ofFormats[type] === true || KEYWORDS[type].some((key) => key in schema));
  return implied.length === 0 ? undefined : implied;
}
