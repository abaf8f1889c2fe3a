import { CidrList } from '../check/cidr';
import { AccessError } from '../errors';
import type { IdPrefix } from '../../base/ids';
import type { BudgetPeriod, KeyType } from '../store/schema';

export const KEY_TYPES = ['user-level', 'deployment-level'] as const satisfies readonly KeyType[];

/** Limits of one key. Null means no limit. */
export interface KeyLimits {
  /** Requests per minute. */
  rpm: number | null;
  /** Prompt and completion tokens per minute. */
  tpm: number | null;
  /** Concurrent requests. */
  parallel: number | null;
}

/** Prompt and completion tokens per UTC period. `total` never resets. */
export interface KeyBudget {
  tokens: number;
  period: BudgetPeriod;
}

export const BUDGET_PERIODS = ['day', 'week', 'month', 'total'] as const satisfies readonly BudgetPeriod[];

export const NO_LIMITS: KeyLimits = { rpm: null, tpm: null, parallel: null };

/** Maximum grace period of a rotation. */
const MAX_GRACE_MS = 30 * 24 * 3_600_000;
const MAX_NAME_LENGTH = 100;
const MAX_CIDRS = 100;
const MAX_LIMIT = 2 ** 31 - 1;
/**
 * Control characters, line separators, lone surrogates and bidirectional overrides, which could forge a line of a list.
 */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u202a-\u202e\u2066-\u2069]/u;

/** Returns the trimmed text. @throws AccessError unless it has 1 to `maxLength` printable characters. */
export function checkText(param: string, value: unknown, maxLength: number): string {
  const text = typeof value === 'string' ? value.trim() : '';
  const length = [...text].length;
  if (length < 1 || length > maxLength || UNPRINTABLE.test(text))
    throw invalid(param, `1 to ${maxLength} printable characters`);
  return text;
}

/** Checks the name of an object that can also be found by id. The name must not look like an id. */
export function checkNameBesideId(prefix: IdPrefix, value: unknown): string {
  const name = checkText('name', value, MAX_NAME_LENGTH);
  if (name.startsWith(`${prefix}_`))
    throw invalid('name', `a name that does not start with ${prefix}_, because IDs do`);
  return name;
}

export function checkName(value: unknown): string {
  return checkText('name', value, MAX_NAME_LENGTH);
}

export function checkType(value: unknown): KeyType {
  const type = KEY_TYPES.find((candidate) => candidate === value);
  if (type === undefined) throw invalid('type', KEY_TYPES.join(' or '));
  return type;
}

export function checkLimits(value: Partial<KeyLimits>, current: KeyLimits = NO_LIMITS): KeyLimits {
  const limits = { ...current };
  for (const name of ['rpm', 'tpm', 'parallel'] as const) {
    const limit = value[name];
    if (limit === undefined) continue;
    if (limit !== null && !(Number.isInteger(limit) && limit >= 1 && limit <= MAX_LIMIT))
      throw invalid(name, `an integer from 1 to ${MAX_LIMIT}, or none`);
    limits[name] = limit;
  }
  return limits;
}

export function checkBudget(value: KeyBudget | null): KeyBudget | null {
  if (value === null) return null;
  const { tokens, period } = value;
  if (!BUDGET_PERIODS.includes(period)) throw invalid('budget', `one of the periods ${BUDGET_PERIODS.join(', ')}`);
  if (!(Number.isSafeInteger(tokens) && tokens >= 1)) throw invalid('budget', 'a whole number of tokens, 1 or more');
  return { tokens, period };
}

/** Returns the canonical form of the networks. */
export function checkCidrs(value: readonly string[] | null): string[] | null {
  if (value === null) return null;
  if (!Array.isArray(value) || value.length < 1 || value.length > MAX_CIDRS)
    throw invalid('allowed_cidrs', `1 to ${MAX_CIDRS} networks such as 10.0.0.0/8, or none to allow every address`);
  return CidrList.parse('allowed_cidrs', value).texts;
}

/** Null means never. */
export function checkExpiry(value: number | null, nowMs: number): number | null {
  if (value !== null && !(Number.isSafeInteger(value) && value > nowMs && value <= 8.64e15))
    throw invalid('expires', 'a time in the future');
  return value;
}

export function checkGrace(value: number): number {
  if (!(Number.isSafeInteger(value) && value >= 0 && value <= MAX_GRACE_MS)) throw invalid('grace', '0 to 30 days');
  return value;
}

function invalid(param: string, expected: string): AccessError {
  return new AccessError('invalid_argument', `${param}: expected ${expected}`);
}
