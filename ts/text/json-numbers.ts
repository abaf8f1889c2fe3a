import { charClass, choice, type GrammarExpr, literal, optional, repeat, sequence } from './grammar';

/** One end of a range of numbers. */
export interface Bound {
  value: number;
  /** Excludes the value itself. */
  isOpen: boolean;
}

/** A double distinguishes all numbers of 15 significant digits, so parsing the text loses nothing. */
export const MAX_DIGITS = 15;

/** Bounds the zeros after the point of a decimal. */
const SMALLEST = 1e-30;

const DIGIT = charClass(['0', '9']);

/**
 * Returns the grammar of the integers in a range, or null if the range is empty. They have no plus sign, leading zeros
 * or exponent, and at most {@link MAX_DIGITS} digits unless a bound has more.
 */
export function integerRange(lower: Bound | undefined, upper: Bound | undefined): GrammarExpr | null {
  const low = lower === undefined ? undefined : lowestInteger(lower);
  const high = upper === undefined ? undefined : -lowestInteger({ value: -upper.value, isOpen: upper.isOpen });
  if (low !== undefined && high !== undefined && low > high) return null;
  const parts: GrammarExpr[] = [];
  if (high === undefined || high >= 0n) parts.push(naturals(low !== undefined && low > 0n ? low : 0n, high));
  if (low === undefined || low < 0n)
    parts.push(
      sequence('-', naturals(high !== undefined && high < 0n ? -high : 1n, low === undefined ? undefined : -low)),
    );
  return choice(...parts);
}

function lowestInteger({ value, isOpen }: Bound): bigint {
  const ceiling = BigInt(Math.ceil(value));
  if (!isOpen || !Number.isInteger(value)) return ceiling;
  return Number.isSafeInteger(value) ? ceiling + 1n : BigInt(nextAbove(value));
}

/** Returns the least double above a value that is not zero. */
function nextAbove(value: number): number {
  const bytes = new DataView(new ArrayBuffer(8));
  bytes.setFloat64(0, value);
  bytes.setBigInt64(0, bytes.getBigInt64(0) + (value > 0 ? 1n : -1n));
  return bytes.getFloat64(0);
}

/** The integers from `low`, which is 0 or more, to `high`. Without `high`, up to the maximum number of digits. */
export function naturals(low: bigint, high?: bigint): GrammarExpr {
  const last = (high ?? greatest(Math.max(MAX_DIGITS, low.toString().length))).toString();
  const parts: GrammarExpr[] = [];
  for (let first = low.toString(); ; first = `1${'0'.repeat(first.length)}`) {
    const isLast = first.length === last.length;
    parts.push(digitRange(first, isLast ? last : '9'.repeat(first.length)));
    if (isLast) return choice(...parts);
  }
}

/** Returns the greatest integer of a number of digits that a double can hold. */
function greatest(numDigits: number): bigint {
  const [integer, double] = [10n ** BigInt(numDigits) - 1n, BigInt(Number.MAX_VALUE)];
  return integer < double ? integer : double;
}

/** Digit strings from `low` to `high`, which have the same length. */
function digitRange(low: string, high: string): GrammarExpr {
  if (low === high) return literal(low);
  if (/^0*$/.test(low) && /^9*$/.test(high)) return repeat(DIGIT, low.length, low.length);
  if (low[0] === high[0]) return sequence(low[0], digitRange(low.slice(1), high.slice(1)));
  if (low.length === 1) return charClass([low, high]);
  const length = low.length - 1;
  // Leading digits strictly between the ends allow any rest.
  const allowsAnyAfterLow = /^0*$/.test(low.slice(1));
  const allowsAnyAfterHigh = /^9*$/.test(high.slice(1));
  const first = Number(low[0]) + (allowsAnyAfterLow ? 0 : 1);
  const last = Number(high[0]) - (allowsAnyAfterHigh ? 0 : 1);
  const parts: GrammarExpr[] = [];
  if (!allowsAnyAfterLow) parts.push(sequence(low[0], digitRange(low.slice(1), '9'.repeat(length))));
  if (first <= last) parts.push(sequence(charClass([String(first), String(last)]), repeat(DIGIT, length, length)));
  if (!allowsAnyAfterHigh) parts.push(sequence(high[0], digitRange('0'.repeat(length), high.slice(1))));
  return choice(...parts);
}

/** Any finite number. */
export function anyNumber(): GrammarExpr {
  const whole = choice('0', sequence(charClass(['1', '9']), repeat(DIGIT, 0, MAX_DIGITS - 1)));
  const fraction = sequence('.', repeat(DIGIT, 1, MAX_DIGITS));
  const exponent = sequence(charClass('e', 'E'), optional(charClass('+', '-')), repeat(DIGIT, 1, 2));
  return sequence(optional(literal('-')), whole, optional(fraction), optional(exponent));
}

/**
 * Returns the grammar of the decimals in a range, without exponent, or null if the range is empty. Numbers closer to
 * zero than {@link SMALLEST} are not written.
 * @param maxFraction Maximum number of digits after the point. The bounds must not have more.
 */
export function numberRange(
  lower: Bound | undefined,
  upper: Bound | undefined,
  maxFraction = Infinity,
): GrammarExpr | null {
  return rangeBetween(lower && withoutTiny(lower, 1), upper && withoutTiny(upper, -1), maxFraction);
}

/** Returns the next bound that is not too close to zero. `inside` is the sign of the direction of the range. */
function withoutTiny(bound: Bound, inside: 1 | -1): Bound {
  const { value } = bound;
  if (value === 0 || Math.abs(value) >= SMALLEST) return bound;
  return { value: Math.sign(value) === inside ? inside * SMALLEST : 0, isOpen: false };
}

function rangeBetween(lower: Bound | undefined, upper: Bound | undefined, maxFraction: number): GrammarExpr | null {
  const negate = (bound: Bound | undefined) => bound && { value: -bound.value, isOpen: bound.isOpen };
  const zero: Bound = { value: 0, isOpen: false };
  const parts: (GrammarExpr | null)[] = [];
  if (upper === undefined || upper.value >= 0)
    parts.push(decimals(lower !== undefined && lower.value >= 0 ? lower : zero, upper, maxFraction));
  // Exclude -0: numbers with a sign are below zero.
  if (lower === undefined || lower.value < 0) {
    const negative = decimals(
      upper !== undefined && upper.value < 0 ? (negate(upper) ?? zero) : { value: 0, isOpen: true },
      negate(lower),
      maxFraction,
    );
    if (negative !== null) parts.push(sequence('-', negative));
  }
  const possible = parts.filter((part) => part !== null);
  return possible.length === 0 ? null : choice(...possible);
}

/** Decimals of 0 or more. */
function decimals(lower: Bound, upper: Bound | undefined, maxFraction: number): GrammarExpr | null {
  if (
    upper !== undefined &&
    (lower.value > upper.value || (lower.value === upper.value && (lower.isOpen || upper.isOpen)))
  )
    return null;
  const [lowWhole, lowFraction] = split(lower.value);
  const [highWhole, highFraction] = upper === undefined ? [undefined, ''] : split(upper.value);
  const most = (highWhole ?? lowWhole).toString().length;
  const numDigits = Math.min(maxFraction, Math.max(1, MAX_DIGITS - most, lowFraction.length, highFraction.length));
  if (isReachable(lower, numDigits))
    return decimals({ value: nextAbove(lower.value), isOpen: false }, upper, maxFraction);
  if (upper !== undefined && isReachable(upper, numDigits))
    return decimals(lower, { value: -nextAbove(-upper.value), isOpen: false }, maxFraction);
  const parts: (GrammarExpr | null)[] = [];
  const wholes = integerRange(lower, upper);
  parts.push(wholes);
  const withFraction = (whole: bigint, fraction: GrammarExpr | null) => fraction && sequence(`${whole}.`, fraction);
  const from = { digits: lowFraction, isOpen: lower.isOpen };
  const to = { digits: highFraction, isOpen: upper?.isOpen ?? false };
  if (highWhole === lowWhole) {
    parts.push(withFraction(lowWhole, fractionBetween(from, to, numDigits)));
  } else {
    parts.push(withFraction(lowWhole, fractionFrom(from, numDigits)));
    if (highWhole === undefined || lowWhole + 1n < highWhole) {
      parts.push(
        sequence(
          naturals(lowWhole + 1n, highWhole === undefined ? undefined : highWhole - 1n),
          '.',
          repeat(DIGIT, 1, numDigits),
        ),
      );
    }
    if (highWhole !== undefined) parts.push(withFraction(highWhole, fractionTo(to, numDigits)));
  }
  const possible = parts.filter((part) => part !== null);
  return possible.length === 0 ? null : choice(...possible);
}

/** Returns whether a different text with this number of digits after the point may be parsed as an open bound. */
function isReachable({ value, isOpen }: Bound, numDigits: number): boolean {
  return isOpen && value !== 0 && 10 ** -numDigits < value * Number.EPSILON;
}

/** Returns the integer part, and the digits of the fraction without trailing zeros. */
function split(value: number): [bigint, string] {
  const [mantissa, exponent] = value.toString().split('e');
  const [whole, fraction = ''] = mantissa.split('.');
  if (exponent === undefined) return [BigInt(whole), fraction];
  return Number(exponent) > 0 ? [BigInt(value), ''] : [0n, '0'.repeat(-Number(exponent) - 1) + whole + fraction];
}

/** A bound of the digits after the decimal point. */
interface FractionBound {
  digits: string;
  /** Excludes the digits themselves. */
  isOpen: boolean;
}

/** Fractions of one to `num` digits that are at least the bound. */
function fractionFrom({ digits, isOpen }: FractionBound, num: number): GrammarExpr | null {
  if (num <= 0) return null;
  if (digits === '') return isOpen ? nonZero(num) : repeat(DIGIT, 1, num);
  const parts: GrammarExpr[] = [];
  if (digits[0] < '9') parts.push(sequence(charClass([String(Number(digits[0]) + 1), '9']), repeat(DIGIT, 0, num - 1)));
  let rest = isOpen ? nonZero(num - 1) : repeat(DIGIT, 0, num - 1);
  if (digits.length > 1) rest = fractionFrom({ digits: digits.slice(1), isOpen }, num - 1);
  if (rest !== null) parts.push(sequence(digits[0], rest));
  return parts.length === 0 ? null : choice(...parts);
}

/** Fractions of one to `num` digits that are at most the bound. */
function fractionTo({ digits, isOpen }: FractionBound, num: number): GrammarExpr | null {
  if (digits === '') return isOpen ? null : repeat(literal('0'), 1, num);
  const parts: GrammarExpr[] = [];
  if (digits[0] > '0') parts.push(sequence(charClass(['0', String(Number(digits[0]) - 1)]), repeat(DIGIT, 0, num - 1)));
  const rest = num > 1 ? fractionTo({ digits: digits.slice(1), isOpen }, num - 1) : null;
  // A prefix of the bound's digits is below the bound.
  if (digits.length > 1 || !isOpen) parts.push(literal(digits[0]));
  if (rest !== null) parts.push(sequence(digits[0], rest));
  return parts.length === 0 ? null : choice(...parts);
}

/** Fractions of one to `num` digits between two bounds. */
function fractionBetween(from: FractionBound, to: FractionBound, num: number): GrammarExpr | null {
  if (num === 0) return null;
  if (from.digits === '' && !from.isOpen) return fractionTo(to, num);
  if (to.digits === '') return null;
  const low = from.digits[0] ?? '0';
  const high = to.digits[0];
  if (low > high) return null;
  const fromRest = { digits: from.digits.slice(1), isOpen: from.isOpen };
  const toRest = { digits: to.digits.slice(1), isOpen: to.isOpen };
  const ends = (isIn: boolean, rest: GrammarExpr | null, digit: string) => [
    isIn ? literal(digit) : null,
    rest && sequence(digit, rest),
  ];
  // A text that ends at this digit has zeros from here on.
  const isLowEnd = fromRest.digits === '' && !from.isOpen;
  const isHighEnd = toRest.digits !== '' || !to.isOpen;
  const parts: (GrammarExpr | null)[] = [];
  if (low === high) {
    parts.push(...ends(isLowEnd && isHighEnd, fractionBetween(fromRest, toRest, num - 1), low));
  } else {
    parts.push(...ends(isLowEnd, num > 1 ? fractionFrom(fromRest, num - 1) : null, low));
    if (Number(low) + 1 < Number(high))
      parts.push(sequence(charClass([String(Number(low) + 1), String(Number(high) - 1)]), repeat(DIGIT, 0, num - 1)));
    parts.push(...ends(isHighEnd, num > 1 ? fractionTo(toRest, num - 1) : null, high));
  }
  const possible = parts.filter((part) => part !== null);
  return possible.length === 0 ? null : choice(...possible);
}

/** One to `num` digits, not all of them zero. */
function nonZero(num: number): GrammarExpr | null {
  if (num <= 0) return null;
  const first = charClass(['1', '9']);
  const parts = Array.from({ length: num }, (_, numZeros) =>
    sequence('0'.repeat(numZeros), first, repeat(DIGIT, 0, num - numZeros - 1)),
  );
  return choice(...parts);
}
