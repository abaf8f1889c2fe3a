import { choice, type GrammarExpr, literal, oneOf, optional, sequence } from './grammar';
import { type Bound, MAX_DIGITS, numberRange } from './json-numbers';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';

/** Maximum number of multiples that a grammar lists. */
const MAX_LISTED = 4096;
/** Maximum divisor of numbers that have no close bounds: the grammar has a rule for each remainder. */
const MAX_DIVISOR = 100;
/** Maximum number of digits after the point of a divisor. */
const MAX_SCALE = 20;
/** Digits of a multiple, without those after the point. */
const MAX_WHOLE_DIGITS = 9;

/** A positive decimal number: `digits` / 10^`scale`. */
interface Decimal {
  digits: bigint;
  scale: number;
}

type Bounds = [lower: Bound | undefined, upper: Bound | undefined];

/** Returns the grammar of the multiples of `step` between two bounds. */
export function multiples(
  type: 'integer' | 'number',
  step: number,
  bounds: Bounds,
  path: string,
  context: Pick<SchemaContext, 'shared' | 'countParts'>,
): GrammarExpr {
  if (step <= 0) throw unsupported(`${path}/multipleOf`, 'expected a number above 0');
  const exact = toDecimal(step);
  if (exact.scale > MAX_SCALE) throw unsupported(`${path}/multipleOf`, `more than ${MAX_SCALE} digits after the point`);
  const divisor =
    type === 'integer' ? { digits: exact.digits / gcd(exact.digits, 10n ** BigInt(exact.scale)), scale: 0 } : exact;
  const listed = listMultiples(divisor, bounds);
  if (listed?.length === 0) throw unsupported(`${path}/multipleOf`, 'no multiple lies between the bounds');
  if (listed !== undefined) context.countParts(path, listed.length);
  if (listed !== undefined) return oneOf(listed.map(literal));
  const range = divisor.digits === 1n ? powerOfTen(divisor.scale, bounds) : null;
  if (range !== null) return range;
  const signs = signsOf(bounds);
  if (signs === undefined || divisor.digits > MAX_DIVISOR)
    throw unsupported(
      `${path}/multipleOf`,
      `supported for at most ${MAX_LISTED} multiples between the bounds, ` +
        `for a power of ten, or without bounds up to ${MAX_DIVISOR}`,
    );
  context.countParts(path, 10 * Number(divisor.digits) * (MAX_WHOLE_DIGITS + divisor.scale));
  return sequence(...signs, unboundedMultiples(divisor, context));
}

/** Returns the shortest decimal that is parsed as the number. */
function toDecimal(value: number): Decimal {
  const [mantissa, exponent = '0'] = value.toString().split('e');
  const [whole, fraction = ''] = mantissa.split('.');
  const scale = fraction.length - Number(exponent);
  const digits = BigInt(whole + fraction);
  return scale < 0 ? { digits: digits * 10n ** BigInt(-scale), scale: 0 } : { digits, scale };
}

function gcd(a: bigint, b: bigint): bigint {
  return b === 0n ? a : gcd(b, a % b);
}

function toText(digits: bigint, scale: number): string {
  const text = (digits < 0n ? -digits : digits).toString().padStart(scale + 1, '0');
  const fraction = text.slice(text.length - scale).replace(/0+$/, '');
  const whole = text.slice(0, text.length - scale);
  return `${digits < 0n ? '-' : ''}${whole}${scale > 0 && fraction !== '' ? `.${fraction}` : ''}`;
}

/** Returns the greatest factor whose multiple is not above a value. */
function factorBelow(value: number, { digits, scale }: Decimal): bigint {
  const exact = toDecimal(Math.abs(value));
  const [dividend, divisor] = [exact.digits * 10n ** BigInt(scale), digits * 10n ** BigInt(exact.scale)];
  return value < 0 ? -((dividend + divisor - 1n) / divisor) : dividend / divisor;
}

/** Returns the texts of all multiples, or undefined if there are too many. */
function listMultiples(step: Decimal, [lower, upper]: Bounds): string[] | undefined {
  if (lower === undefined || upper === undefined) return undefined;
  const [first, last] = [factorBelow(lower.value, step), factorBelow(upper.value, step)];
  if (last - first > BigInt(MAX_LISTED)) return undefined;
  const texts: string[] = [];
  for (let factor = first; factor <= last; factor++) {
    const text = toText(factor * step.digits, step.scale);
    const value = Number(text);
    const isAbove = lower.isOpen ? value > lower.value : value >= lower.value;
    const isBelow = upper.isOpen ? value < upper.value : value <= upper.value;
    if (isAbove && isBelow) texts.push(text);
  }
  return texts;
}

/** Returns decimals with at most `scale` digits after the point, or null if a bound has more. */
function powerOfTen(scale: number, [lower, upper]: Bounds): GrammarExpr | null {
  const isExact = (bound: Bound | undefined) => bound === undefined || toDecimal(Math.abs(bound.value)).scale <= scale;
  return scale > 0 && isExact(lower) && isExact(upper) ? numberRange(lower, upper, scale) : null;
}

/** Returns the signs of numbers that bounds leave free, or undefined for bounds that do more. */
function signsOf([lower, upper]: Bounds): GrammarExpr[] | undefined {
  const isFree = (bound: Bound | undefined) => bound === undefined || Math.abs(bound.value) >= 10 ** MAX_DIGITS - 1;
  if (!isFree(upper)) return undefined;
  if (isFree(lower)) return [optional(literal('-'))];
  return lower?.value === 0 && !lower.isOpen ? [] : undefined;
}

/** Returns the multiples of 0 or more, digit by digit: a rule for each remainder and number of digits left. */
function unboundedMultiples({ digits, scale }: Decimal, context: Pick<SchemaContext, 'shared'>): GrammarExpr {
  const divisor = Number(digits);
  const nothing: GrammarExpr = { kind: 'choice', items: [] };
  /** Returns the remainder of a power of ten. */
  const power = (exponent: number) => Number(10n ** BigInt(exponent) % digits);
  /** What may follow a remainder. */
  let rests = Array.from({ length: divisor }, (_, remainder) => (remainder === 0 ? literal('') : nothing));
  const after = (first: number, last: number, remainder: number, left: number) => {
    const parts: GrammarExpr[] = [];
    const point = scale > 0 && left === scale + 1 ? '.' : '';
    for (let digit = first; digit <= last; digit++) {
      const next = (remainder * 10 + digit) % divisor;
      const rest = rests[next];
      // The zeros at the end of a fraction may be missing.
      if (left > 1 && left <= scale + 1 && (next * power(left - 1)) % divisor === 0) parts.push(literal(`${digit}`));
      if (rest !== nothing) parts.push(sequence(`${digit}${point}`, rest));
    }
    return parts;
  };
  const wholes: GrammarExpr[] = [];
  for (let left = 1; left <= MAX_WHOLE_DIGITS + scale; left++) {
    // The first digit is zero only if no digit follows before the point.
    if (left > scale) wholes.push(...after(left === scale + 1 ? 0 : 1, 9, 0, left));
    rests = rests.map((_, remainder) => {
      const parts = after(0, 9, remainder, left);
      return parts.length === 0 ? nothing : context.shared(choice(...parts));
    });
  }
  return choice(...wholes);
}
