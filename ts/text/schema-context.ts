import type { GrammarExpr } from './grammar';
import type { JsonDialect } from './json-rules';
import type { Schema } from './schema-types';

/** One element of a list that may be missing. */
export interface ListMember {
  expr: GrammarExpr;
  isRequired: boolean;
}

/** The functions that the converters of arrays and objects need for nested schemas. */
export interface SchemaContext {
  /** Prefix of error messages about patterns. */
  readonly label: string;
  readonly dialect: JsonDialect;
  /** Returns the grammar of the values that match a part of the schema, `depth` levels below its rule. */
  value(schema: Schema, path: string, depth: number): GrammarExpr;
  /** Returns schemas without `$ref`, `allOf`, `anyOf` and `oneOf` such that a value matches one of them. */
  alternatives(schema: Schema, path: string, depth: number): { schema: Schema; path: string }[];
  /** @throws CapstanError `invalid_argument` if the grammar gets too many parts. */
  countParts(path: string, num: number): void;
  /** Returns a rule for an expression that is used more than once. */
  shared(expr: GrammarExpr): GrammarExpr;
}
