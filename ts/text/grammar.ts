/** A range of code points, both ends included. */
export type CodeRange = [first: number, last: number];

/** An expression of a grammar over UTF-8 text, in the form that the addon takes. `native/grammar` compiles it. */
export type GrammarExpr =
  | { kind: 'literal'; text: string }
  /** One code point of these ranges. */
  | { kind: 'class'; ranges: CodeRange[] }
  | { kind: 'sequence'; items: GrammarExpr[] }
  /** Without items it matches nothing. */
  | { kind: 'choice'; items: GrammarExpr[] }
  /** `max` null: no limit. Repetitions are counted, so large bounds cost no memory. */
  | { kind: 'repeat'; item: GrammarExpr; min: number; max: number | null }
  | { kind: 'rule'; name: string }
  /** Any text that ends with the first occurrence of `text`. */
  | { kind: 'until'; text: string }
  /** Any text that does not contain `text`. */
  | { kind: 'without'; text: string }
  | RegexExpr;

/** One pattern in ECMAScript syntax. */
export interface RegexPart {
  pattern: string;
  /** The pattern may match anywhere in the text unless it is anchored, as `pattern` of JSON Schema does. */
  isSearch: boolean;
  /** Name of the pattern in error messages. */
  label: string;
}

/** The texts that a regular expression matches. */
export interface RegexExpr extends RegexPart {
  kind: 'regex';
  /** Matches the content of a JSON string literal whose value matches the pattern. */
  isJsonString: boolean;
  /** In code points. A large maximum may become smaller beside a complicated pattern. */
  minLength: number;
  maxLength: number | null;
  /** Further patterns that the text must match. */
  also?: readonly RegexPart[];
  /** Texts that do not match. */
  except?: readonly string[];
}

/** A grammar: named rules. */
export interface Grammar {
  /** Name of the rule that the whole text matches. */
  root: string;
  rules: GrammarRule[];
  /** Code points of the Unicode properties that the regular expressions name, such as `L` or `Script=Greek`. */
  properties?: Readonly<Record<string, readonly CodeRange[]>>;
}

/** A named expression of a grammar. */
export interface GrammarRule {
  name: string;
  expr: GrammarExpr;
  /**
   * Spells everything with ordinary tokens. Otherwise literals, `until` and `without` may match special tokens and
   * markers.
   */
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

/** Returns a class of the code points of `ranges` that are not in `excluded`. */
export function classWithout(ranges: readonly CodeRange[], excluded: Iterable<number>): GrammarExpr {
  const codes = [...new Set(excluded)].sort((a, b) => a - b);
  const rest = ranges.flatMap(([first, last]) => {
    const parts: CodeRange[] = [];
    let start = first;
    for (const code of codes.filter((code) => code >= first && code <= last)) {
      if (code > start) parts.push([start, code - 1]);
      start = code + 1;
    }
    if (start <= last) parts.push([start, last]);
    return parts;
  });
  return { kind: 'class', ranges: rest };
}

export function sequence(...items: (GrammarExpr | string)[]): GrammarExpr {
  return { kind: 'sequence', items: items.map((item) => (typeof item === 'string' ? literal(item) : item)) };
}

export function choice(...items: (GrammarExpr | string)[]): GrammarExpr {
  return items.length === 1 && typeof items[0] !== 'string'
    ? items[0]
    : { kind: 'choice', items: items.map((item) => (typeof item === 'string' ? literal(item) : item)) };
}

/** Returns the choice of a list of any length: `choice(...items)` would put each item on the stack. */
export function oneOf(items: GrammarExpr[]): GrammarExpr {
  return items.length === 1 ? items[0] : { kind: 'choice', items };
}

/** Returns the sequence of a list of any length. */
export function inOrder(items: GrammarExpr[]): GrammarExpr {
  return items.length === 1 ? items[0] : { kind: 'sequence', items };
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

/** Returns a grammar of the texts of either grammar. Rules of `second` are renamed. */
export function eitherGrammar(first: Grammar, second: Grammar): Grammar {
  const renamed = second.rules.map((entry) => ({
    ...entry,
    name: secondName(entry.name),
    expr: withSecondNames(entry.expr),
  }));
  const root = 'either';
  const expr = choice(rule(first.root), rule(secondName(second.root)));
  return { root, rules: [...first.rules, ...renamed, { name: root, expr }] };
}

function secondName(name: string): string {
  return `second ${name}`;
}

function withSecondNames(expr: GrammarExpr): GrammarExpr {
  switch (expr.kind) {
    case 'sequence':
    case 'choice':
      return { ...expr, items: expr.items.map(withSecondNames) };
    case 'repeat':
      return { ...expr, item: withSecondNames(expr.item) };
    case 'rule':
      return rule(secondName(expr.name));
    default:
      return expr;
  }
}
