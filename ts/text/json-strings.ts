import { classWithout, type GrammarExpr, type RegexExpr, type RegexPart, repeat, sequence, without } from './grammar';
import { formatImplies, formatPattern } from './json-formats';
import { BARE_KEY, MAX_BARE_KEY, type JsonDialect, jsonRule } from './json-rules';
import { unsupported } from './schema-error';
import { counts } from './schema-keywords';
import { severalOf } from './schema-merge';
import type { SchemaContext } from './schema-context';
import type { Schema } from './schema-types';

type StringContext = Pick<SchemaContext, 'label' | 'dialect'>;

/** Returns the grammar of strings that match `pattern`, `format` and the bounds of the length. */
export function strings(schema: Schema, path: string, label: string, { quote }: JsonDialect): GrammarExpr {
  if (quote !== undefined) return sequence(quote, plainText(schema, path, label, quote), quote);
  const shaped = shapedText(schema, path, label);
  if (shaped !== null) return sequence('"', shaped, '"');
  const [min, max] = counts(schema, 'minLength', 'maxLength', path);
  return min === 0 && max === null ? jsonRule('string') : sequence('"', repeat(jsonRule('char'), min, max), '"');
}

/**
 * Returns the grammar of texts without escapes that do not contain `end`. Under restrictions, they do not contain its
 * first character.
 */
export function plainText(schema: Schema, path: string, label: string, end: string): GrammarExpr {
  const shaped = shapedText(schema, path, label);
  if (shaped !== null) return { ...shaped, isJsonString: false, also: [...(shaped.also ?? []), noneOf(end[0], label)] };
  const [min, max] = counts(schema, 'minLength', 'maxLength', path);
  if (min === 0 && max === null) return without(end);
  return repeat(classWithout([[0, 0x10ffff]], [end.charCodeAt(0)]), min, max);
}

function noneOf(char: string, label: string): RegexPart {
  return { pattern: `^[^${char}]*$`, isSearch: true, label };
}

/** Returns the text of a name as a key. @throws CapstanError for a name that the dialect cannot write. */
export function keyText(name: string, { quote, name: dialect }: JsonDialect): string {
  if (quote === undefined) return JSON.stringify(name);
  if (new RegExp(`^${BARE_KEY}$`).test(name)) return name;
  throw unsupported('#', `${dialect} cannot write the name ${JSON.stringify(name).slice(0, 80)}`);
}

/** Returns the text of a string value. @throws CapstanError for a text that the dialect cannot write. */
export function valueText(text: string, { quote, name: dialect }: JsonDialect): string {
  if (quote === undefined) return JSON.stringify(text);
  if (!text.includes(quote)) return quote + text + quote;
  throw unsupported('#', `${dialect} cannot write the text ${JSON.stringify(text).slice(0, 80)}`);
}

/** Returns the content of JSON strings that match all of `pattern` and `format`, or null without them. */
function shapedText(schema: Schema, path: string, label: string): RegexExpr | null {
  const parts = shapes(schema, path, label);
  return parts.length === 0 ? null : regex(parts, counts(schema, 'minLength', 'maxLength', path));
}

/** Returns the patterns of `pattern` and `format`. A format that is not in `FORMATS` is an annotation. */
function shapes(schema: Schema, path: string, label: string): RegexPart[] {
  const [, maxLength] = counts(schema, 'minLength', 'maxLength', path);
  const formats = severalOf(schema.format).flatMap((format): RegexPart[] => {
    if (typeof format !== 'string') throw unsupported(`${path}/format`, 'expected a string');
    const pattern = formatPattern(format, maxLength);
    return pattern === undefined ? [] : [{ pattern, isSearch: false, label: `${label}: ${path}/format` }];
  });
  const patterns = severalOf(schema.pattern).flatMap((pattern): RegexPart[] => {
    if (typeof pattern !== 'string') throw unsupported(`${path}/pattern`, 'expected a string');
    if (severalOf(schema.format).some((format) => formatImplies(format, pattern))) return [];
    return [{ pattern, isSearch: true, label: `${label}: ${path}/pattern` }];
  });
  return [...formats, ...patterns];
}

/** A key without escapes. */
const PLAIN_KEY: RegexPart = { pattern: '[^\\x00-\\x1f"\\\\]*', isSearch: false, label: 'names of properties' };

/** Returns the grammar of keys that match the schema of a string and are not one of `names`. */
export function keys(
  schema: Schema,
  names: readonly string[],
  path: string,
  { label, dialect }: StringContext,
): GrammarExpr {
  const shaped = shapedText(schema, path, label);
  const text = shaped ?? regex([PLAIN_KEY], counts(schema, 'minLength', 'maxLength', path));
  return asKey({ ...text, except: names }, dialect);
}

/** Returns the grammar of those of the texts that match the schema of a string, as keys or as values. */
export function textsLike(
  texts: readonly string[],
  schema: Schema,
  path: string,
  { label, dialect }: StringContext,
  isKey: boolean,
): GrammarExpr {
  const pattern = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')).join('|');
  const parts = [{ pattern, isSearch: false, label: `${label}: ${path}` }, ...shapes(schema, path, label)];
  const text = regex(parts, counts(schema, 'minLength', 'maxLength', path));
  return isKey ? asKey(text, dialect) : asValue(text, dialect);
}

function asKey(text: RegexExpr, { quote }: JsonDialect): GrammarExpr {
  if (quote === undefined) return sequence('"', text, '"');
  const bare: RegexPart = { pattern: BARE_KEY, isSearch: false, label: 'names of properties' };
  const maxLength = Math.min(text.maxLength ?? MAX_BARE_KEY, MAX_BARE_KEY);
  return { ...text, maxLength, isJsonString: false, also: [...(text.also ?? []), bare] };
}

function asValue(text: RegexExpr, { quote }: JsonDialect): GrammarExpr {
  if (quote === undefined) return sequence('"', text, '"');
  const plain = { ...text, isJsonString: false, also: [...(text.also ?? []), noneOf(quote[0], text.label)] };
  return sequence(quote, plain, quote);
}

/** Returns whether a text can be encoded in UTF-8. */
export function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** Returns the grammar of keys that match a pattern. */
export function keysLike(pattern: string, label: string, dialect: JsonDialect): GrammarExpr {
  return asKey(regex([{ pattern, isSearch: true, label }], [0, null]), dialect);
}

/** Returns the content of JSON strings that match all parts. */
function regex([first, ...also]: RegexPart[], [minLength, maxLength]: [number, number | null]): RegexExpr {
  return { kind: 'regex', ...first, also, isJsonString: true, minLength, maxLength };
}
