/**
 * Money as integers, so that sums are exact. An amount counts billionths of the currency (nanos). A price counts
 * millionths of the currency per million tokens, which are trillionths (picos) per token.
 */

const AMOUNT_DIGITS = 9;
const PRICE_DIGITS = 6;
const PICOS_PER_NANO = 1_000n;
const TOKENS_PER_UNIT_DIGITS = 9;
/** A billion of the currency. Amounts fit 64 bits. */
export const MAX_AMOUNT = 10n ** BigInt(AMOUNT_DIGITS + TOKENS_PER_UNIT_DIGITS);
/** A billion of the currency per million tokens. */
const MAX_PRICE = 10n ** BigInt(PRICE_DIGITS + TOKENS_PER_UNIT_DIGITS);
/** Sums in the database stop here: they would overflow 64 bits. */
export const MAX_SUM = 9n * 10n ** 18n;

/** Prices per million tokens. */
export interface TokenPrice {
  readonly input: bigint;
  readonly cachedInput: bigint;
  readonly output: bigint;
}

export interface TokenCounts {
  readonly promptTokens: number;
  /** Those of the prompt that the prefix cache had. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

/** Returns undefined for text that is not an amount, or an amount above the limit. */
export function parseAmount(text: string): bigint | undefined {
  return parse(text, AMOUNT_DIGITS, MAX_AMOUNT);
}

/** Returns undefined for text that is not a price, or a price above the limit. */
export function parsePrice(text: string): bigint | undefined {
  return parse(text, PRICE_DIGITS, MAX_PRICE);
}

/** Returns text such as `12.5`. */
export function formatAmount(nanos: bigint): string {
  return format(nanos, AMOUNT_DIGITS);
}

export function formatPrice(micros: bigint): string {
  return format(micros, PRICE_DIGITS);
}

/** Returns the cost of a request in nanos, rounded up once. */
export function costOf(price: TokenPrice, { promptTokens, cachedTokens, completionTokens }: TokenCounts): bigint {
  const cached = BigInt(Math.min(cachedTokens, promptTokens));
  const picos =
    (BigInt(promptTokens) - cached) * price.input +
    cached * price.cachedInput +
    BigInt(completionTokens) * price.output;
  return toNanos(picos);
}

/** The price of a prompt token that may or may not be in the prefix cache. */
export function highestInput({ input, cachedInput }: TokenPrice): bigint {
  return cachedInput > input ? cachedInput : input;
}

export function toNanos(picos: bigint): bigint {
  return (picos + PICOS_PER_NANO - 1n) / PICOS_PER_NANO;
}

export function toPicos(nanos: bigint): bigint {
  return nanos * PICOS_PER_NANO;
}

export function smaller(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

function parse(text: string, digits: number, max: bigint): bigint | undefined {
  const [, whole, fraction = ''] = /^(\d{1,10})(?:\.(\d{1,9}))?$/.exec(text) ?? [];
  if (whole === undefined || fraction.length > digits) return undefined;
  const value = BigInt(whole + fraction.padEnd(digits, '0'));
  return value <= max ? value : undefined;
}

function format(value: bigint, digits: number): string {
  const sign = value < 0n ? '-' : '';
  const text = (value < 0n ? -value : value).toString().padStart(digits + 1, '0');
  const fraction = text.slice(-digits).replace(/0+$/, '');
  return `${sign}${text.slice(0, -digits)}${fraction === '' ? '' : `.${fraction}`}`;
}
