import {
  charClass,
  choice,
  type Grammar,
  type GrammarExpr,
  literal,
  optional,
  repeat,
  rule,
  sequence,
} from './grammar';
import { anyNumber } from './json-numbers';

/** Indentation that a model may use; more would let it emit blanks without end. */
const MAX_INDENT = 32;

/** After `{ [ ,` and before `} ]`. */
export const BLANK: GrammarExpr = rule('json blank');
export const blankAfterColon: GrammarExpr = optional(literal(' '));

/** How values are spelt: JSON, or a language that differs from it in its constants only. */
export interface JsonDialect {
  name: string;
  true: string;
  false: string;
  null: string;
}

export const JSON_DIALECT: JsonDialect = { name: 'json', true: 'true', false: 'false', null: 'null' };
export const PYTHON_DIALECT: JsonDialect = { name: 'python', true: 'True', false: 'False', null: 'None' };

/** What contains constants is of a dialect. */
export function jsonRule(name: 'value' | 'object' | 'array', dialect?: JsonDialect): GrammarExpr;
export function jsonRule(name: 'string' | 'char' | 'number'): GrammarExpr;
export function jsonRule(name: string, dialect = JSON_DIALECT): GrammarExpr {
  return rule(`${dialect.name} ${name}`);
}

const KEY_CHARS: [number, number][] = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x10ffff],
];

/** A key without escapes, so that it is spelt in one way only. */
export const plainKey: GrammarExpr = sequence('"', repeat({ kind: 'class', ranges: KEY_CHARS }, 0, null), '"');

interface NameTrie {
  isName: boolean;
  next: Map<number, NameTrie>;
}

/** A plain key that is none of `names`. */
export function keyExcept(names: readonly string[]): GrammarExpr {
  const root: NameTrie = { isName: false, next: new Map() };
  for (const name of names) {
    let at = root;
    for (const char of name) {
      const code = char.codePointAt(0) ?? 0;
      let next = at.next.get(code);
      if (next === undefined) at.next.set(code, (next = { isName: false, next: new Map() }));
      at = next;
    }
    at.isName = true;
  }
  return sequence('"', restExcept(root));
}

/** From a place in the trie to the closing quote. */
function restExcept({ isName, next }: NameTrie): GrammarExpr {
  const known = [...next.keys()].sort((a, b) => a - b);
  const others: [number, number][] = KEY_CHARS.flatMap(([first, last]) => {
    const ranges: [number, number][] = [];
    for (const code of known.filter((code) => code >= first && code <= last)) {
      if (code > first) ranges.push([first, code - 1]);
      first = code + 1;
    }
    if (first <= last) ranges.push([first, last]);
    return ranges;
  });
  const isPlain = (code: number) => KEY_CHARS.some(([first, last]) => code >= first && code <= last);
  return choice(
    ...(isName ? [] : [literal('"')]),
    sequence({ kind: 'class', ranges: others }, repeat({ kind: 'class', ranges: KEY_CHARS }, 0, null), '"'),
    ...known
      .filter(isPlain)
      .map((code) => sequence(String.fromCodePoint(code), restExcept(next.get(code) as NameTrie))),
  );
}

/** Adds the rules that {@link jsonRule} and {@link BLANK} name. */
export function addJsonRules(grammar: Grammar, dialect = JSON_DIALECT): void {
  const hex = charClass(['0', '9'], ['a', 'f'], ['A', 'F']);
  // Halves of surrogate pairs are left out: characters that need them are written as themselves.
  const unicode = choice(
    sequence(charClass(['0', '9'], ['a', 'c'], ['A', 'C'], 'e', 'E', 'f', 'F'), repeat(hex, 3, 3)),
    sequence(charClass('d', 'D'), charClass(['0', '7']), repeat(hex, 2, 2)),
  );
  const value = jsonRule('value', dialect);
  const list = (item: GrammarExpr) => optional(sequence(item, repeat(sequence(',', BLANK, item), 0, null), BLANK));
  const rules: [string, GrammarExpr][] = [
    [
      `${dialect.name} value`,
      choice(
        jsonRule('object', dialect),
        jsonRule('array', dialect),
        jsonRule('string'),
        jsonRule('number'),
        dialect.true,
        dialect.false,
        dialect.null,
      ),
    ],
    [
      `${dialect.name} object`,
      sequence('{', BLANK, list(sequence(jsonRule('string'), ':', blankAfterColon, value)), '}'),
    ],
    [`${dialect.name} array`, sequence('[', BLANK, list(value), ']')],
    ['json string', sequence('"', repeat(jsonRule('char'), 0, null), '"')],
    [
      'json char',
      choice(
        { kind: 'class', ranges: KEY_CHARS },
        sequence('\\', choice(charClass('"', '\\', '/', 'b', 'f', 'n', 'r', 't'), sequence('u', unicode))),
      ),
    ],
    ['json number', anyNumber()],
    ['json blank', optional(choice(' ', sequence('\n', repeat(literal(' '), 0, MAX_INDENT))))],
  ];
  for (const [name, expr] of rules) grammar.rules.push({ name, expr, isPlain: true });
}
