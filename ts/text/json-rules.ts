import {
  charClass,
  choice,
  type CodeRange,
  type Grammar,
  type GrammarExpr,
  literal,
  optional,
  repeat,
  rule,
  sequence,
  without,
} from './grammar';
import { anyNumber } from './json-numbers';

/** Maximum indentation. Without a limit a model could emit spaces forever. */
const MAX_INDENT = 32;

/** Optional space or line break, after `{ [ ,` and before `} ]`. */
export const BLANK: GrammarExpr = rule('json blank');
export const blankAfterColon: GrammarExpr = optional(literal(' '));

/** The spelling of values: JSON, or a language that differs from it only in these. */
export interface JsonDialect {
  name: string;
  true: string;
  false: string;
  null: string;
  /** What stands before and after strings, which have no escapes then, while keys stand alone. Default: JSON. */
  quote?: string;
}

export const JSON_DIALECT: JsonDialect = { name: 'json', true: 'true', false: 'false', null: 'null' };
export const PYTHON_DIALECT: JsonDialect = { name: 'python', true: 'True', false: 'False', null: 'None' };
export const GEMMA_DIALECT: JsonDialect = { ...JSON_DIALECT, name: 'gemma', quote: '<|"|>' };

/** Maximum length of a name without quotes that a schema does not give. */
export const MAX_BARE_KEY = 64;
/** Names that can stand without quotes, as a pattern. */
export const BARE_KEY = '[^\\s:,<>{}\\[\\]"]+';

/** Returns a reference to a rule of {@link addJsonRules}. Rules that contain constants depend on the dialect. */
export function jsonRule(name: 'value' | 'object' | 'array' | 'key', dialect?: JsonDialect): GrammarExpr;
export function jsonRule(name: 'string' | 'char' | 'number'): GrammarExpr;
export function jsonRule(name: string, dialect = JSON_DIALECT): GrammarExpr {
  return rule(`${dialect.name} ${name}`);
}

const KEY_CHARS: CodeRange[] = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x10ffff],
];

/** Adds the rules that {@link jsonRule} and {@link BLANK} name. */
export function addJsonRules(grammar: Grammar, dialect = JSON_DIALECT): void {
  const hex = charClass(['0', '9'], ['a', 'f'], ['A', 'F']);
  // Excludes surrogates: the characters that need them are written without an escape.
  const unicode = choice(
    sequence(charClass(['0', '9'], ['a', 'c'], ['A', 'C'], 'e', 'E', 'f', 'F'), repeat(hex, 3, 3)),
    sequence(charClass('d', 'D'), charClass(['0', '7']), repeat(hex, 2, 2)),
  );
  const value = jsonRule('value', dialect);
  const { quote } = dialect;
  const jsonString = jsonRule('string');
  const string = quote === undefined ? jsonString : sequence(quote, without(quote), quote);
  const list = (item: GrammarExpr) => optional(sequence(item, repeat(sequence(',', BLANK, item), 0, null), BLANK));
  const rules: [string, GrammarExpr][] = [
    [
      `${dialect.name} value`,
      choice(
        jsonRule('object', dialect),
        jsonRule('array', dialect),
        string,
        jsonRule('number'),
        dialect.true,
        dialect.false,
        dialect.null,
      ),
    ],
    [
      `${dialect.name} object`,
      sequence('{', BLANK, list(sequence(jsonRule('key', dialect), ':', blankAfterColon, value)), '}'),
    ],
    [`${dialect.name} key`, quote === undefined ? jsonString : bareKey()],
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
  // The quote of a dialect can be a special token.
  for (const [name, expr] of rules) grammar.rules.push({ name, expr, isPlain: quote === undefined });
}

function bareKey(): GrammarExpr {
  return {
    kind: 'regex',
    pattern: BARE_KEY,
    isSearch: false,
    isJsonString: false,
    minLength: 1,
    maxLength: MAX_BARE_KEY,
    label: 'keys',
  };
}
