/**
 * Methods of Python's strings that `@huggingface/jinja` lacks, or whose arguments it ignores: real templates use them
 * (Qwen3 strips only line breaks around reasoning).
 */
export const STRING_METHODS: Readonly<Record<string, (text: unknown, ...args: unknown[]) => string>> = {
  strip: (text, characters) => stripStart(stripEnd(checkText(text), characters), characters),
  lstrip: (text, characters) => stripStart(checkText(text), characters),
  rstrip: (text, characters) => stripEnd(checkText(text), characters),
  format: (text, ...values) => format(checkText(text), values as (string | number | undefined)[]),
};

/** Replaces `{}` and `{0}`. */
function format(text: string, values: readonly (string | number | undefined)[]): string {
  let next = 0;
  return text.replace(/\{\{|\}\}|\{([^{}]*)\}/g, (found, field?: string) => {
    if (field === undefined) return found[0];
    if (!/^\d*$/.test(field)) throw new Error(`format() supports no field {${field}}`);
    const i = field === '' ? next++ : Number(field);
    if (i >= values.length) throw new Error(`format() has no value for {${field}}`);
    return String(values[i] ?? '');
  });
}

function checkText(text: unknown): string {
  if (typeof text !== 'string') throw new Error('this method expects a string');
  return text;
}

function stripStart(text: string, characters: unknown): string {
  const set = characterSet(characters);
  let start = 0;
  while (start < text.length && set.has(text[start])) start++;
  return text.slice(start);
}

function stripEnd(text: string, characters: unknown): string {
  const set = characterSet(characters);
  let end = text.length;
  while (end > 0 && set.has(text[end - 1])) end--;
  return text.slice(0, end);
}

/** The characters for which Python's str.isspace() is true. */
const PYTHON_BLANKS = new Set(
  '\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000',
);

function characterSet(characters: unknown): Set<string> {
  return typeof characters === 'string' ? new Set(characters) : PYTHON_BLANKS;
}
