import type { KeyBudget } from '../keys/values';
import type { BudgetPeriod } from '../store/schema';

const DAY_MS = 86_400_000;
/** Days from a Monday to 1970-01-01, a Thursday. */
const MONDAY_OFFSET = 3;

/** Returns the UTC day as days since 1970. */
export function dayOf(nowMs: number): number {
  return Math.floor(nowMs / DAY_MS);
}

/** Returns the first day of the period that contains `nowMs`. Weeks start on Monday. */
export function periodStart(period: BudgetPeriod, nowMs: number): number {
  const day = dayOf(nowMs);
  if (period === 'day') return day;
  if (period === 'week') return day - ((day + MONDAY_OFFSET) % 7);
  if (period === 'total') return 0;
  const date = new Date(nowMs);
  return dayOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1));
}

/** Returns when the next period starts, or null for `total`. */
export function periodEndMs(period: BudgetPeriod, nowMs: number): number | null {
  if (period === 'total') return null;
  if (period === 'month') {
    const date = new Date(nowMs);
    return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  }
  return (periodStart(period, nowMs) + (period === 'day' ? 1 : 7)) * DAY_MS;
}

/** Tokens a key has used since the first day of a period, according to the database. */
export interface BudgetUse {
  keyId: string;
  period: BudgetPeriod;
  sinceDay: number;
  tokens: number;
}

/**
 * Tracks budget use: the total last read from the database plus the tokens this process has not written yet. Processes
 * see each other's use only at a flush, so between two flushes each of them may spend the remaining budget.
 */
export class BudgetMeter {
  readonly #written = new Map<string, BudgetUse>();
  readonly #unwritten: (keyId: string, sinceDay: number) => number;

  constructor(unwritten: (keyId: string, sinceDay: number) => number) {
    this.#unwritten = unwritten;
  }

  get size(): number {
    return this.#written.size;
  }

  /**
   * Stores a total from the database. Ignores a smaller total: results may arrive out of order. Periods are separate,
   * because a clock that is set back returns to an earlier one.
   */
  update(use: BudgetUse): void {
    const slot = slotOf(use);
    const known = this.#written.get(slot);
    if (known === undefined || use.tokens >= known.tokens) this.#written.set(slot, use);
  }

  used(keyId: string, { period }: KeyBudget, nowMs: number): number {
    const sinceDay = periodStart(period, nowMs);
    const written = this.#written.get(slotOf({ keyId, period, sinceDay }));
    return (written?.tokens ?? 0) + this.#unwritten(keyId, sinceDay);
  }

  /** The token count of a request is not known yet, so it is admitted while any tokens are left. */
  isExhausted(keyId: string, budget: KeyBudget, nowMs: number): boolean {
    return this.used(keyId, budget, nowMs) >= budget.tokens;
  }

  /** Removes periods that have ended. */
  sweep(nowMs: number): void {
    for (const [slot, { period, sinceDay }] of this.#written)
      if (sinceDay < periodStart(period, nowMs)) this.#written.delete(slot);
  }
}

function slotOf({ keyId, period, sinceDay }: Omit<BudgetUse, 'tokens'>): string {
  return `${period}:${sinceDay}:${keyId}`;
}
