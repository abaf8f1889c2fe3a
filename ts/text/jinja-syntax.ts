import { STRING_METHODS } from './jinja-strings';

/** Prefix of our own names, which templates cannot use by accident. */
export const OWN_PREFIX = '__';
/** Filter that returns the text of a value as Python prints it. */
export const PRINT = `${OWN_PREFIX}print`;
/** Filter that returns what a loop can iterate over. */
export const ITERABLE = `${OWN_PREFIX}iterable`;

/** Filter that returns a key for a lookup. */
export const KEY = `${OWN_PREFIX}key`;

/** A node of the library's syntax tree. */
interface Node {
  type: string;
  [field: string]: unknown;
}

const PRINTED = new Set([
  'Identifier',
  'MemberExpression',
  'CallExpression',
  'BinaryExpression',
  'FilterExpression',
  'SelectExpression',
  'Ternary',
  'UnaryExpression',
  'TestExpression',
  'ArrayLiteral',
  'TupleLiteral',
  'ObjectLiteral',
]);
const BLOCKS = ['body', 'alternate', 'defaultBlock'];

/**
 * Rewrites a syntax tree in place:
 *
 * - `x.strip(c)` becomes a call of our function.
 * - Printed expressions and the operands of `~` become text as in Python.
 * - Loops and lookups accept undefined values, as in Python.
 */
export function rewriteForPython(node: unknown): void {
  if (typeof node !== 'object' || node === null) return;
  const children =
    node instanceof Map ? ([...node.keys(), ...node.values()] as unknown[]) : (Object.values(node) as unknown[]);
  children.forEach(rewriteForPython);
  if (isNode(node)) rewriteNode(node);
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && typeof (value as Partial<Node>).type === 'string';
}

function rewriteNode(node: Node): void {
  for (const field of BLOCKS) {
    const block = node[field];
    if (Array.isArray(block))
      node[field] = block.map((item: Node) => (PRINTED.has(item.type) ? filtered(item, PRINT) : item));
  }
  if (node.type === 'For') rewriteLoop(node);
  else if (node.type === 'CallExpression') rewriteMethod(node);
  else if (node.type === 'MemberExpression') rewriteLookup(node);
  else if (node.type === 'TestExpression' && (node.test as { value?: unknown }).value === 'iterable')
    node.operand = filtered(node.operand, ITERABLE);
  else if (node.type === 'BinaryExpression' && (node.operator as { value?: unknown }).value === '~') {
    node.left = filtered(node.left, PRINT);
    node.right = filtered(node.right, PRINT);
  }
}

function rewriteLoop(node: Node): void {
  const iterable = node.iterable as Node;
  if (iterable.type === 'SelectExpression') iterable.lhs = filtered(iterable.lhs, ITERABLE);
  else node.iterable = filtered(iterable, ITERABLE);
}

function rewriteLookup(node: Node): void {
  const property = node.property as Node;
  const isKey = property.type !== 'SliceExpression' && !property.type.endsWith('Literal');
  if (node.computed === true && isKey) node.property = filtered(property, KEY);
}

function rewriteMethod(node: Node): void {
  const callee = node.callee as Node;
  const property = callee.property as Node | undefined;
  if (callee.type !== 'MemberExpression' || callee.computed !== false || property?.type !== 'Identifier') return;
  const name = String(property.value);
  if (!Object.hasOwn(STRING_METHODS, name)) return;
  node.args = [callee.object, ...(node.args as unknown[])];
  node.callee = { type: 'Identifier', value: OWN_PREFIX + name };
}

function filtered(operand: unknown, name: string): Node {
  return { type: 'FilterExpression', operand, filter: { type: 'Identifier', value: name } };
}
