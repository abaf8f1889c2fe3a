import { CidrList } from './cidr';
import { AccessError } from './errors';
import type { IdPrefix } from './ids';
import type { BudgetPeriod, KeyType } from './schema';

export const KEY_TYPES = ['user-level', 'deployment-level'] as const satisfies readonly KeyType[];

/** Limits of one key; null is none. */
export interface KeyLimits {
  /** Requests per minute. */
  rpm: number | null;
  /** Prompt and completion tokens per minute. */
  tpm: number | null;
  /** Requests open at once. */
  parallel: number | null;
}

/** Prompt and completion tokens per period of UTC; `total` never begins anew. */
export interface KeyBudget {
  tokens: number;
  period: BudgetPeriod;
}

export const BUDGET_PERIODS = ['day', 'week', 'month', 'total'] as const satisfies readonly BudgetPeriod[];

export const NO_LIMITS: KeyLimits = { rpm: null, tpm: null, parallel: null };

/** Longest grace of a rotation. */
export const MAX_GRACE_MS = 30 * 24 * 3_600_000;
const MAX_NAME_LENGTH = 100;
const MAX_CIDRS = 100;
const MAX_LIMIT = 2 ** 31 - 1;
/** Control characters, line and paragraph separators, lone surrogates, bidirectional overrides: what could forge a line of a list. */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u202a-\u202e\u2066-\u2069]/u;

/** @throws AccessError unless it is 1 to `maxLength` printable characters, blanks around them not counted. */
export function checkText(param: string, value: unknown, maxLength: number): string {
  const text = typeof value === 'string' ? value.trim() : '';
  const length = [...text].length;
  if (length < 1 || length > maxLength || UNPRINTABLE.test(text))
    throw wrong(param, `1 to ${maxLength} printable characters`);
  return text;
}

/** The name of something that is also found by its id: nothing that reads as one. */
export function checkNameBesideId(prefix: IdPrefix, value: unknown): string {
  const name = checkText('name', value, MAX_NAME_LENGTH);
  if (name.startsWith(`${prefix}_`)) throw wrong('name', `another beginning than ${prefix}_, which ids have`);
  return name;
}

export function checkName(value: unknown): string {
  return checkText('name', value, MAX_NAME_LENGTH);
}

export function checkType(value: unknown): KeyType {
  const type = KEY_TYPES.find((candidate) => candidate === value);
  if (type === undefined) throw wrong('type', KEY_TYPES.join(' or '));
  return type;
}

export function checkLimits(value: Partial<KeyLimits>, current: KeyLimits = NO_LIMITS): KeyLimits {
  const limits = { ...current };
  for (const name of ['rpm', 'tpm', 'parallel'] as const) {
    const limit = value[name];
    if (limit === undefined) continue;
    if (limit !== null && !(Number.isInteger(limit) && limit >= 1 && limit <= MAX_LIMIT))
      throw wrong(name, `an integer from 1 to ${MAX_LIMIT}, or none`);
    limits[name] = limit;
  }
  return limits;
}

/** Null is none. */
export function checkBudget(value: KeyBudget | null): KeyBudget | null {
  if (value === null) return null;
  const { tokens, period } = value;
  if (!BUDGET_PERIODS.includes(period)) throw wrong('budget', `a period of ${BUDGET_PERIODS.join(', ')}`);
  if (!(Number.isSafeInteger(tokens) && tokens >= 1)) throw wrong('budget', 'a whole number of tokens, 1 or more');
  return { tokens, period };
}

/** Null is everywhere. */
export function checkCidrs(value: readonly string[] | null): string[] | null {
  if (value === null) return null;
  if (!Array.isArray(value) || value.length < 1 || value.length > MAX_CIDRS)
    throw wrong('allowed_cidrs', `1 to ${MAX_CIDRS} networks such as 10.0.0.0/8, or none at all for everywhere`);
  return CidrList.parse('allowed_cidrs', value).texts;
}

/** Null is never. */
export function checkExpiry(value: number | null, nowMs: number): number | null {
  if (value !== null && !(Number.isSafeInteger(value) && value > nowMs && value <= 8.64e15))
    throw wrong('expires', 'a time to come');
  return value;
}

export function checkGrace(value: number): number {
  if (!(Number.isSafeInteger(value) && value >= 0 && value <= MAX_GRACE_MS)) throw wrong('grace', '0 to 30 days');
  return value;
}

function wrong(param: string, expected: string): AccessError {
  return new AccessError('invalid_argument', `${param}: expected ${expected}`);
}
