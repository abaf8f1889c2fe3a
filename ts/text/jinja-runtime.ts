import { ITERABLE, KEY, OWN_PREFIX, PRINT } from './jinja-syntax';
import { pythonText } from './python-text';

/** A value of the library's interpreter. Its classes are not exported. */
export interface Value {
  type: string;
  value: unknown;
  builtins: ReadonlyMap<string, Value>;
}

/** The variables of a block. */
export interface Scope {
  variables: Map<string, Value>;
  set(name: string, value: unknown): Value;
}

interface Node {
  type: string;
  [field: string]: unknown;
}

/** The methods of the interpreter that are extended. */
interface Internals {
  /** `node` is undefined for what a slice leaves out. */
  evaluate(node: Node | undefined, scope: Scope): Value;
  applyFilter(operand: Value, filter: Node, scope: Scope): Value;
  evaluateMemberExpression(node: Node, scope: Scope): Value;
}

/** Values of the library for plain values. */
export type ToValue = (value: unknown) => Value;

/** Bounds the time of a template. Real ones take some thousands of steps per message. */
const MAX_STEPS = 20_000_000;
/** A loop makes a scope per item before its first step. */
const STEPS_PER_ITEM = 50;
/** Bounds the length of a text that operators make. */
const MAX_LENGTH = 1 << 26;

/** Filters that take the text of any value. */
const TEXT_FILTERS = new Set(['trim', 'upper', 'lower', 'title', 'capitalize', 'replace', 'string']);
/** Filters for which an undefined value is an empty list. */
const LIST_FILTERS = new Set(
  'list length count join map select reject selectattr rejectattr sort unique first last reverse min max items'.split(
    ' ',
  ),
);
/** Those of them for which None is an empty list, too. */
const NONE_FILTERS = new Set(['map', 'select', 'reject', 'selectattr', 'rejectattr']);
/** Methods of a dict that hide its keys in `x.name`. */
const DICT_METHODS = new Set(['get', 'items', 'keys', 'values']);

/** A key that nothing has. */
const NO_KEY = '\0';

/** Extends an interpreter, so that values behave as in Python. */
export function behaveAsPython(interpreter: unknown, newScope: (parent: Scope) => Scope, toValue: ToValue): void {
  const own = interpreter as Internals;
  const evaluate = own.evaluate.bind(own);
  const applyFilter = own.applyFilter.bind(own);
  const evaluateMember = own.evaluateMemberExpression.bind(own);
  let numSteps = 0;
  own.evaluate = (node, scope) => {
    if (++numSteps > MAX_STEPS) throw new Error('the template takes too long');
    if (node?.type === 'ObjectLiteral') return objectOf(node, (part) => own.evaluate(part, scope), toValue);
    if (node?.type === 'BinaryExpression' && ARITHMETIC.has(operatorOf(node))) {
      const [left, right] = [own.evaluate(node.left as Node, scope), own.evaluate(node.right as Node, scope)];
      const text = textOf(left, operatorOf(node), right);
      return text === undefined ? evaluateWith(evaluate, node, { left, right }, scope) : toValue(text);
    }
    if (node?.type === 'BinaryExpression' && MEMBERSHIP.has(operatorOf(node))) {
      const [left, right] = [own.evaluate(node.left as Node, scope), own.evaluate(node.right as Node, scope)];
      const isUnknown = isUndefined(right) || (isUndefined(left) && right.type !== 'StringValue');
      return isUnknown ? toValue(operatorOf(node) === 'not in') : evaluateWith(evaluate, node, { left, right }, scope);
    }
    return evaluate(node, scope);
  };
  own.applyFilter = (operand, filter, scope) => {
    const name = nameOf(filter);
    const result = filterAsPython(operand, name, toValue, (value) => applyFilter(value, filter, scope));
    if (name === ITERABLE && Array.isArray(result.value)) numSteps += result.value.length * STEPS_PER_ITEM;
    return result;
  };
  /** Evaluates a node with operands that are already evaluated. */
  const evaluateWith = (
    run: Internals['evaluateMemberExpression'],
    node: Node,
    operands: Record<string, Value>,
    scope: Scope,
  ) => {
    const inner = newScope(scope);
    const names = Object.keys(operands).map((field) => [field, { type: 'Identifier', value: OWN_PREFIX + field }]);
    for (const [field, value] of Object.entries(operands)) inner.variables.set(OWN_PREFIX + field, value);
    return run({ ...node, ...Object.fromEntries(names) } as Node, inner);
  };
  own.evaluateMemberExpression = (node, scope) => {
    const name = node.computed === true ? undefined : (node.property as Node).value;
    if (typeof name !== 'string' || !DICT_METHODS.has(name)) return evaluateMember(node, scope);
    const object = own.evaluate(node.object as Node, scope);
    const method = object.type === 'ObjectValue' ? object.builtins.get(name) : undefined;
    return method ?? evaluateWith(evaluateMember, node, { object }, scope);
  };
}

const ARITHMETIC = new Set(['+', '~', '*']);

/** Operators by which no list contains an undefined value, and an undefined value is an empty list. */
const MEMBERSHIP = new Set(['in', 'not in']);

function isUndefined({ type }: Value): boolean {
  return type === 'UndefinedValue';
}

function operatorOf({ operator }: Node): string {
  return (operator as { value: string }).value;
}

/** Returns the result for text, undefined for other operands. The library adds anything to text. */
function textOf(left: Value, operator: string, right: Value): string | undefined {
  const [isText, isRightText] = [left.type === 'StringValue', right.type === 'StringValue'];
  const text = left.value as string;
  if (operator === '*') {
    if (!isText || right.type !== 'IntegerValue') return undefined;
    const count = Math.max(0, right.value as number);
    checkLength(text.length * count);
    return text.repeat(count);
  }
  if (isText !== isRightText) throw new Error(`cannot add ${right.type} to ${left.type}`);
  if (!isText) return undefined;
  checkLength(text.length + (right.value as string).length);
  return text + (right.value as string);
}

function checkLength(length: number): void {
  if (length > MAX_LENGTH) throw new Error(`a text may have up to ${MAX_LENGTH} characters`);
}

function nameOf(filter: Node): string {
  return String(filter.type === 'CallExpression' ? (filter.callee as Node).value : filter.value);
}

function filterAsPython(operand: Value, name: string, toValue: ToValue, apply: (operand: Value) => Value): Value {
  const { type } = operand;
  if (name === PRINT) return type === 'StringValue' ? operand : toValue(pythonText(operand));
  if (name === ITERABLE) return toIterable(operand, toValue);
  if (name === KEY) return type === 'UndefinedValue' || type === 'NullValue' ? toValue(NO_KEY) : operand;
  if (TEXT_FILTERS.has(name)) {
    const text = type === 'StringValue' ? operand : toValue(pythonText(operand));
    return name === 'string' ? text : apply(text);
  }
  if ((type === 'UndefinedValue' && LIST_FILTERS.has(name)) || (type === 'NullValue' && NONE_FILTERS.has(name)))
    return apply(toValue([])) ?? toValue(undefined);
  if (type === 'ArrayValue' && (name === 'min' || name === 'max')) return extreme(operand, name, toValue);
  if (name === 'dictsort' && sortedByNumber.has(operand)) return sortedByNumber.get(operand)!;
  // The library returns nothing for the first item of an empty list.
  return apply(operand) ?? toValue(undefined);
}

/**
 * Returns a list of the items. An undefined value has none. Items that are tuples become lists, because the library
 * unpacks only those.
 */
function toIterable(operand: Value, toValue: ToValue): Value {
  if (operand.type === 'UndefinedValue') return toValue([]);
  if (operand.type === 'StringValue') return toValue([...(operand.value as string)]);
  if (operand.type === 'ObjectValue') return toValue([...(operand.value as Map<string, Value>).keys()]);
  if (operand.type === 'TupleValue' || operand.type === 'ArrayValue') {
    const items = operand.value as readonly Value[];
    return listOf(
      items.map((item) => (item.type === 'TupleValue' ? listOf(item.value as Value[], toValue) : item)),
      toValue,
    );
  }
  return operand;
}

function listOf(items: readonly Value[], toValue: ToValue): Value {
  const list = toValue([]);
  list.value = items;
  return list;
}

function extreme({ value }: Value, name: string, toValue: ToValue): Value {
  const sign = name === 'min' ? 1 : -1;
  const isLess = (a: Value, b: Value) => ((a.value as number) < (b.value as number) ? -1 : 1) * sign < 0;
  const items = value as readonly Value[];
  return items.length === 0 ? toValue(undefined) : items.reduce((best, item) => (isLess(item, best) ? item : best));
}

/** The sorted pairs of objects whose keys are numbers. The library keeps keys as text. */
const sortedByNumber = new WeakMap<Value, Value>();

function objectOf(node: Node, evaluate: (node: Node) => Value, toValue: ToValue): Value {
  const pairs = [...(node.value as Map<Node, Node>)].map(([key, value]) => [evaluate(key), evaluate(value)] as const);
  const object = toValue({});
  object.value = new Map(pairs.map(([key, value]) => [keyText(key), value]));
  if (pairs.length > 0 && pairs.every(([key]) => key.type === 'IntegerValue')) {
    const sorted = [...pairs].sort(([a], [b]) => (a.value as number) - (b.value as number));
    sortedByNumber.set(
      object,
      listOf(
        sorted.map((pair) => listOf(pair, toValue)),
        toValue,
      ),
    );
  }
  return object;
}

function keyText(key: Value): string {
  if (key.type !== 'StringValue' && key.type !== 'IntegerValue')
    throw new Error(`Object keys must be strings or integers: got ${key.type}`);
  return String(key.value);
}
