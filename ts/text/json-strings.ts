import { type GrammarExpr, type RegexExpr, type RegexPart, repeat, sequence } from './grammar';
import { formatImplies, formatPattern } from './json-formats';
import { jsonRule } from './json-rules';
import { unsupported } from './schema-error';
import { counts } from './schema-keywords';
import { severalOf } from './schema-merge';
import type { Schema } from './schema-types';

/** Returns the grammar of JSON strings that match `pattern`, `format` and the bounds of the length. */
export function strings(schema: Schema, path: string, label: string): GrammarExpr {
  const shaped = shapedText(schema, path, label);
  if (shaped !== null) return sequence('"', shaped, '"');
  const [min, max] = counts(schema, 'minLength', 'maxLength', path);
  return min === 0 && max === null ? jsonRule('string') : sequence('"', repeat(jsonRule('char'), min, max), '"');
}

/** Returns the content of JSON strings that match all of `pattern` and `format`, or null without them. */
export function shapedText(schema: Schema, path: string, label: string): RegexExpr | null {
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
export function keys(schema: Schema, names: readonly string[], path: string, label: string): GrammarExpr {
  const shaped = shapedText(schema, path, label);
  const text = shaped ?? regex([PLAIN_KEY], counts(schema, 'minLength', 'maxLength', path));
  return sequence('"', { ...text, except: names }, '"');
}

/** Returns the grammar of those of the texts that match the schema of a string. */
export function textsLike(texts: readonly string[], schema: Schema, path: string, label: string): GrammarExpr {
  const pattern = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')).join('|');
  const parts = [{ pattern, isSearch: false, label: `${label}: ${path}` }, ...shapes(schema, path, label)];
  return sequence('"', regex(parts, counts(schema, 'minLength', 'maxLength', path)), '"');
}

/** Returns whether a text can be encoded in UTF-8. */
export function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** Returns the grammar of keys that match a pattern. */
export function keysLike(pattern: string, label: string): GrammarExpr {
  return sequence('"', regex([{ pattern, isSearch: true, label }], [0, null]), '"');
}

/** Returns the content of JSON strings that match all parts. */
function regex([first, ...also]: RegexPart[], [minLength, maxLength]: [number, number | null]): RegexExpr {
  return { kind: 'regex', ...first, also, isJsonString: true, minLength, maxLength };
}
