import type { Template } from '@huggingface/jinja' with { 'resolution-mode': 'import' };

/**
 * A Jinja template with Python's `strip`, `lstrip` and `rstrip`. `@huggingface/jinja` ignores their argument, but real
 * templates use it (Qwen3 strips only line breaks around reasoning). Such calls are rewritten to our functions.
 */
export class JinjaTemplate {
  readonly #template: Template;

  private constructor(template: Template) {
    this.#template = template;
  }

  /** Rejects with an Error for an invalid template. */
  static async compile(source: string): Promise<JinjaTemplate> {
    const { Template } = await import('@huggingface/jinja');
    const template = new Template(source);
    rewriteStrips(template.parsed);
    return new JinjaTemplate(template);
  }

  /** @throws Error from `raise_exception` in the template, or for an operation that Jinja refuses. */
  render(variables: Record<string, unknown>): string {
    return this.#template.render({ ...variables, ...STRIPS });
  }
}

type Strip = (text: unknown, characters?: unknown) => string;

const STRIPS: Readonly<Record<string, Strip>> = {
  __strip: (text, characters) => stripStart(stripEnd(checkText(text), characters), characters),
  __lstrip: (text, characters) => stripStart(checkText(text), characters),
  __rstrip: (text, characters) => stripEnd(checkText(text), characters),
};

function checkText(text: unknown): string {
  if (typeof text !== 'string') throw new Error('strip() expects a string');
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

interface CallNode {
  type: 'CallExpression';
  callee: {
    type: string;
    object?: unknown;
    property?: { type: string; value: unknown };
    computed?: boolean;
    value?: unknown;
  };
  args: unknown[];
}

/** Rewrites `x.strip(c)` to `__strip(x, c)` in the whole syntax tree. */
function rewriteStrips(node: unknown): void {
  if (typeof node !== 'object' || node === null) return;
  if (isStripCall(node)) {
    const { object, property } = node.callee;
    node.args = [object, ...node.args];
    node.callee = { type: 'Identifier', value: `__${String(property?.value)}` };
  }
  const children =
    node instanceof Map ? ([...node.keys(), ...node.values()] as unknown[]) : (Object.values(node) as unknown[]);
  children.forEach(rewriteStrips);
}

function isStripCall(node: object): node is CallNode {
  const { type, callee } = node as Partial<CallNode>;
  return (
    type === 'CallExpression' &&
    callee?.type === 'MemberExpression' &&
    callee.computed === false &&
    callee.property?.type === 'Identifier' &&
    Object.hasOwn(STRIPS, `__${String(callee.property.value)}`)
  );
}
