/** A grammar as data, as the addon takes it. Matches UTF-8 text; `native/grammar` compiles it. */
export type GrammarExpr =
  | { kind: 'literal'; text: string }
  /** One code point of these ranges, both ends included. */
  | { kind: 'class'; ranges: [first: number, last: number][] }
  | { kind: 'sequence'; items: GrammarExpr[] }
  /** No items: nothing matches. */
  | { kind: 'choice'; items: GrammarExpr[] }
  /** `max` null: without end. Counted, so large bounds cost nothing. */
  | { kind: 'repeat'; item: GrammarExpr; min: number; max: number | null }
  | { kind: 'rule'; name: string }
  /** Everything up to the first place where `text` ends, and that. */
  | { kind: 'until'; text: string }
  /** Everything in which `text` does not occur. */
  | { kind: 'without'; text: string }
  | RegexExpr;

export interface RegexExpr {
  kind: 'regex';
  pattern: string;
  /** May match anywhere in the text unless anchored, as JSON Schema's `pattern`. */
  isSearch: boolean;
  /** Matches the inside of a JSON string literal whose value the pattern matches. */
  isJsonString: boolean;
  /** In code points; refused where the pattern does not keep to them by itself. */
  minLength: number;
  maxLength: number | null;
  /** What error messages call it. */
  label: string;
}

export interface Grammar {
  /** Name of the rule that the whole text matches. */
  root: string;
  rules: GrammarRule[];
}

export interface GrammarRule {
  name: string;
  expr: GrammarExpr;
  /** Special tokens and markers never stand for what the rule spells: it is all text, as inside JSON. Otherwise they may, in literals, `until` and `without`. */
  isPlain?: boolean;
}

export function literal(text: string): GrammarExpr {
  return { kind: 'literal', text };
}

export function charClass(...ranges: (string | [string, string])[]): GrammarExpr {
  const code = (text: string) => text.codePointAt(0) ?? 0;
  return {
    kind: 'class',
    ranges: ranges.map((range) => [code(range[0]), code(typeof range === 'string' ? range : range[1])]),
  };
}

export function sequence(...items: (GrammarExpr | string)[]): GrammarExpr {
  return { kind: 'sequence', items: items.map((item) => (typeof item === 'string' ? literal(item) : item)) };
}

export function choice(...items: (GrammarExpr | string)[]): GrammarExpr {
  return items.length === 1 && typeof items[0] !== 'string'
    ? items[0]
    : { kind: 'choice', items: items.map((item) => (typeof item === 'string' ? literal(item) : item)) };
}

export function repeat(item: GrammarExpr, min: number, max: number | null): GrammarExpr {
  return { kind: 'repeat', item, min, max };
}

export function optional(item: GrammarExpr): GrammarExpr {
  return repeat(item, 0, 1);
}

export function rule(name: string): GrammarExpr {
  return { kind: 'rule', name };
}

export function until(text: string): GrammarExpr {
  return { kind: 'until', text };
}

export function without(text: string): GrammarExpr {
  return { kind: 'without', text };
}
