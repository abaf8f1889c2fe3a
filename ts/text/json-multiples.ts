import { choice, type GrammarExpr, literal, oneOf, sequence } from './grammar';
import { type Bound, MAX_DIGITS, naturals, numberRange } from './json-numbers';
import type { SchemaContext } from './schema-context';
import { unsupported } from './schema-error';

/** Maximum number of multiples that a grammar lists. */
const MAX_LISTED = 4096;
/** Maximum divisor of numbers that are not listed: the grammar has a rule for each remainder. */
const MAX_DIVISOR = 100;
/** Maximum number of digits after the point of a divisor. */
const MAX_SCALE = 20;
/** Digits before the point of a multiple, unless a bound has more. */
const MAX_WHOLE_DIGITS = 9;

const NOTHING: GrammarExpr = { kind: 'choice', items: [] };

/** A decimal number: `digits` / 10^`scale`. */
interface Decimal {
  digits: bigint;
  scale: number;
}

type Bounds = [lower: Bound | undefined, upper: Bound | undefined];
type Context = Pick<SchemaContext, 'shared' | 'countParts'>;

/** Returns the grammar of the multiples of `step` between two bounds. */
export function multiples(
  type: 'integer' | 'number',
  step: number,
  bounds: Bounds,
  path: string,
  context: Context,
): GrammarExpr {
  const keyword = `${path}/multipleOf`;
  if (step <= 0) throw unsupported(keyword, 'expected a number above 0');
  const exact = toDecimal(step);
  if (exact.scale > MAX_SCALE) throw unsupported(keyword, `more than ${MAX_SCALE} digits after the point`);
  const divisor =
    type === 'integer' ? { digits: exact.digits / gcd(exact.digits, 10n ** BigInt(exact.scale)), scale: 0 } : exact;
  const listed = listMultiples(divisor, bounds);
  if (listed?.length === 0) throw unsupported(keyword, 'no multiple lies between the bounds');
  if (listed !== undefined) context.countParts(path, listed.length);
  if (listed !== undefined) return oneOf(listed.map(literal));
  const expr =
    divisor.digits === 1n && divisor.scale > 0 ? decimals(divisor, bounds) : signed(divisor, bounds, path, context);
  if (expr !== null) return expr;
  throw unsupported(
    keyword,
    `supported for at most ${MAX_LISTED} multiples between the bounds, or for a step of ` +
      `up to ${MAX_DIVISOR} times a power of ten and numbers of up to ${MAX_DIGITS} digits`,
  );
}

/** Returns whether a number is a multiple of a step, both as decimals. */
export function isMultiple(value: number, step: number | undefined): boolean {
  if (step === undefined) return true;
  const [a, b] = [toDecimal(value), toDecimal(step)];
  return (a.digits * 10n ** BigInt(b.scale)) % (b.digits * 10n ** BigInt(a.scale)) === 0n;
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
  const exact = toDecimal(value);
  const [dividend, divisor] = [exact.digits * 10n ** BigInt(scale), digits * 10n ** BigInt(exact.scale)];
  return dividend / divisor - (dividend < 0n && dividend % divisor !== 0n ? 1n : 0n);
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

/** Returns the greatest multiple of a unit that is within an upper bound, in units. */
function greatest({ value, isOpen }: Bound, unit: Decimal): bigint {
  const factor = factorBelow(value, unit);
  const isBound = isOpen && isMultiple(value, Number(toText(unit.digits, unit.scale)));
  return isBound ? factor - 1n : factor;
}

function negated(bound: Bound): Bound {
  return { value: -bound.value, isOpen: bound.isOpen };
}

/** Returns the decimals with at most `scale` digits after the point. */
function decimals(unit: Decimal, [lower, upper]: Bounds): GrammarExpr | null {
  const closed = (units: bigint): Bound => ({ value: Number(toText(units, unit.scale)), isOpen: false });
  const isExact = (bound: Bound) => toDecimal(bound.value).scale <= unit.scale;
  const least = lower && (isExact(lower) ? lower : closed(-greatest(negated(lower), unit)));
  const most = upper && (isExact(upper) ? upper : closed(greatest(upper, unit)));
  return numberRange(least, most, unit.scale);
}

/** Returns the multiples of any sign, or null if the divisor or the bounds are too large. */
function signed(divisor: Decimal, [lower, upper]: Bounds, path: string, context: Context): GrammarExpr | null {
  const zeros = divisor.scale === 0 ? /0*$/.exec(divisor.digits.toString())![0] : '';
  const digits = divisor.digits / 10n ** BigInt(zeros.length);
  if (digits > BigInt(MAX_DIVISOR) || divisor.scale + zeros.length >= MAX_DIGITS) return null;
  const unit = { digits: 10n ** BigInt(zeros.length), scale: divisor.scale };
  const rules = new Multiples(Number(digits), divisor.scale, zeros.length, path, context);
  const [low, high] = [lower && -greatest(negated(lower), unit), upper && greatest(upper, unit)];
  const atLeastOne = (units: bigint | undefined) => (units === undefined || units < 1n ? 1n : units);
  const positive = rules.between(atLeastOne(low), high);
  const negative = rules.between(atLeastOne(high && -high), low === undefined ? undefined : -low);
  const hasZero = (low ?? 0n) <= 0n && (high ?? 0n) >= 0n;
  const parts = [
    ...(hasZero ? [literal('0')] : []),
    ...(positive === NOTHING ? [] : [sequence(positive, zeros)]),
    ...(negative === NOTHING ? [] : [sequence('-', negative, zeros)]),
  ];
  return parts.length === 0 ? null : choice(...parts);
}

/** The digits of positive multiples: a rule for each remainder and number of digits left. */
class Multiples {
  readonly #known = new Map<string, GrammarExpr>();

  constructor(
    readonly divisor: number,
    /** Digits after the point. */
    readonly scale: number,
    /** Zeros that follow. */
    readonly numZeros: number,
    readonly path: string,
    readonly context: Context,
  ) {}

  /** Returns the multiples from `low` to `high`, both in units of the last digit. */
  between(low: bigint, high: bigint | undefined): GrammarExpr {
    const limit = MAX_DIGITS - this.numZeros;
    const numDigits = Math.max(low.toString().length, Math.min(limit, MAX_WHOLE_DIGITS + this.scale));
    const largest = 10n ** BigInt(numDigits) - 1n;
    const last = high !== undefined && high < largest ? high : largest;
    if (low > last || numDigits > limit) return NOTHING;
    if (this.divisor === 1) return naturals(low, last);
    const parts: GrammarExpr[] = [];
    for (let length = this.scale + 1; length <= numDigits; length++) {
      const shortest = length === this.scale + 1 ? 1n : 10n ** BigInt(length - 1);
      const [from, to] = [low > shortest ? low : shortest, 10n ** BigInt(length) - 1n];
      const end = last < to ? last : to;
      if (from > end) continue;
      const part = this.#rest(0, length, from.toString().padStart(length, '0'), end.toString().padStart(length, '0'));
      if (part !== NOTHING) parts.push(part);
    }
    return parts.length === 0 ? NOTHING : choice(...parts);
  }

  /**
   * Returns the grammar of the digits that may follow digits with this remainder.
   * @param left Number of digits left.
   * @param low The least digits; undefined if all are allowed.
   * @param high The greatest digits; undefined if all are allowed.
   */
  #rest(remainder: number, left: number, low: string | undefined, high: string | undefined): GrammarExpr {
    const key = [remainder, left, low, high].join();
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const parts: GrammarExpr[] = [];
    for (let digit = Number(low?.[0] ?? 0); digit <= Number(high?.[0] ?? 9); digit++)
      parts.push(...this.#after(digit, remainder, left, low, high));
    this.context.countParts(this.path, parts.length);
    const rest = parts.length === 0 ? NOTHING : this.context.shared(choice(...parts));
    this.#known.set(key, rest);
    return rest;
  }

  #after(digit: number, remainder: number, left: number, low?: string, high?: string): GrammarExpr[] {
    const next = (remainder * 10 + digit) % this.divisor;
    const lowRest = low !== undefined && Number(low[0]) === digit ? low.slice(1) : undefined;
    const highRest = high !== undefined && Number(high[0]) === digit ? high.slice(1) : undefined;
    const parts: GrammarExpr[] = [];
    // The zeros at the end of a fraction may be missing.
    const isMultipleWithZeros = (BigInt(next) * 10n ** BigInt(left - 1)) % BigInt(this.divisor) === 0n;
    if (left - 1 <= this.scale && isMultipleWithZeros && /^0*$/.test(lowRest ?? '')) parts.push(literal(`${digit}`));
    const rest = left === 1 ? NOTHING : this.#rest(next, left - 1, lowRest, highRest);
    const point = this.scale > 0 && left === this.scale + 1 ? '.' : '';
    if (rest !== NOTHING) parts.push(sequence(`${digit}${point}`, rest));
    return parts;
  }
}
