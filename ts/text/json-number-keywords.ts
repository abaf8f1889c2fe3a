import type { GrammarExpr } from './grammar';
import { multiples } from './json-multiples';
import { type Bound, integerRange, numberRange } from './json-numbers';
import { jsonRule } from './json-rules';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';
import { severalOf } from './schema-merge';
import type { Schema } from './schema-types';

/** Bounds of the integer formats of OpenAPI. A double cannot hold those of 64 bits. */
export const INTEGER_FORMATS: ReadonlyMap<unknown, [number, number]> = new Map([
  ['int8', [-128, 127]],
  ['uint8', [0, 255]],
  ['int16', [-32_768, 32_767]],
  ['uint16', [0, 65_535]],
  ['int32', [-2_147_483_648, 2_147_483_647]],
  ['uint32', [0, 4_294_967_295]],
  ['int64', [-Infinity, Infinity]],
  ['uint64', [0, Infinity]],
]);

/** Bounds with many digits make many nodes. */
const NODES_PER_PART = 4;

/** Returns the value of a keyword. @throws CapstanError `invalid_argument` if it is not a number. */
export function numberAt(schema: Schema, key: string, path: string): number | undefined {
  const value = schema[key];
  if (value !== undefined && (typeof value !== 'number' || !Number.isFinite(value)))
    throw unsupported(`${path}/${key}`, 'expected a number');
  return value;
}

/** Returns the grammar of the numbers that match the bounds, `multipleOf` and the integer formats. */
export function numbers(
  named: 'integer' | 'number',
  schema: Schema,
  path: string,
  context: Pick<SchemaContext, 'shared' | 'countParts'>,
): GrammarExpr {
  const read = (key: string) => numberAt(schema, key, path);
  const type = severalOf(schema.format).some((format) => INTEGER_FORMATS.has(format)) ? 'integer' : named;
  const [least, greatest] = severalOf(schema.format).reduce<[number, number]>(
    ([low, high], format) => {
      const [min, max] = INTEGER_FORMATS.get(format) ?? [-Infinity, Infinity];
      return [Math.max(low, min), Math.min(high, max)];
    },
    [-Infinity, Infinity],
  );
  const step = read('multipleOf');
  const tighter = (isLower: boolean, closed?: number, open?: number): Bound | undefined => {
    if (open !== undefined && (closed === undefined || (isLower ? open >= closed : open <= closed))) {
      if (open === (isLower ? Number.MAX_VALUE : -Number.MAX_VALUE))
        throw unsupported(`${path}/exclusive${isLower ? 'Minimum' : 'Maximum'}`, 'no value matches');
      return { value: open, isOpen: true };
    }
    return closed === undefined ? undefined : { value: closed, isOpen: false };
  };
  const finite = (bound: number) => (Number.isFinite(bound) ? bound : undefined);
  const lower = tighter(true, finite(Math.max(least, read('minimum') ?? least)), read('exclusiveMinimum'));
  const upper = tighter(false, finite(Math.min(greatest, read('maximum') ?? greatest)), read('exclusiveMaximum'));
  if (step !== undefined && !(type === 'integer' && step === 1))
    return multiples(type, step, [lower, upper], path, context);
  if (type === 'number' && lower === undefined && upper === undefined) return jsonRule('number');
  const expr = type === 'integer' ? integerRange(lower, upper) : numberRange(lower, upper);
  if (expr === null)
    throw unsupported(
      `${path}/${lower?.isOpen ? 'exclusiveMinimum' : 'minimum'}`,
      'above the maximum: no value matches',
    );
  context.countParts(path, Math.ceil(countNodes(expr) / NODES_PER_PART));
  return expr;
}

function countNodes(expr: GrammarExpr): number {
  let num = 0;
  const open = [expr];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    num++;
    if (next.kind === 'sequence' || next.kind === 'choice') open.push(...next.items);
    else if (next.kind === 'repeat') open.push(next.item);
  }
  return num;
}
