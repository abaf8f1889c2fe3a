import type { KeyBudget } from './key-values';
import type { BudgetPeriod } from './schema';

export const DAY_MS = 86_400_000;
/** 1970-01-01 was a Thursday: the Monday before it. */
const MONDAY_OFFSET = 3;

/** Days since 1970 of UTC. */
export function dayOf(nowMs: number): number {
  return Math.floor(nowMs / DAY_MS);
}

/** The first day of the period that holds this moment: weeks begin on Monday. */
export function periodStart(period: BudgetPeriod, nowMs: number): number {
  const day = dayOf(nowMs);
  if (period === 'day') return day;
  if (period === 'week') return day - ((day + MONDAY_OFFSET) % 7);
  if (period === 'total') return 0;
  const date = new Date(nowMs);
  return dayOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1));
}

/** When the next period begins; null when none does. */
export function periodEndMs(period: BudgetPeriod, nowMs: number): number | null {
  if (period === 'total') return null;
  if (period === 'month') {
    const date = new Date(nowMs);
    return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  }
  return (periodStart(period, nowMs) + (period === 'day' ? 1 : 7)) * DAY_MS;
}

/** What a key used since the first day of a period, as the database has it. */
export interface BudgetUse {
  keyId: string;
  period: BudgetPeriod;
  sinceDay: number;
  tokens: number;
}

/**
 * What keys with a budget used of it: what the database knew when it was last asked, and what this process has not written yet. Several
 * processes see one another's use at each writing, so between two of them each may spend what is left.
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

  /** An earlier period of the same length, or less of the same one, says nothing new: readings and writings overtake one another. */
  learn(use: BudgetUse): void {
    const slot = `${use.period}:${use.keyId}`;
    const known = this.#written.get(slot);
    if (
      known !== undefined &&
      (use.sinceDay < known.sinceDay || (use.sinceDay === known.sinceDay && use.tokens < known.tokens))
    )
      return;
    this.#written.set(slot, use);
  }

  used(keyId: string, { period }: KeyBudget, nowMs: number): number {
    const sinceDay = periodStart(period, nowMs);
    const written = this.#written.get(`${period}:${keyId}`);
    return (written?.sinceDay === sinceDay ? written.tokens : 0) + this.#unwritten(keyId, sinceDay);
  }

  /** A request of unknown length is let in while anything is left. */
  isExhausted(keyId: string, budget: KeyBudget, nowMs: number): boolean {
    return this.used(keyId, budget, nowMs) >= budget.tokens;
  }

  /** Forgets periods that are over. */
  sweep(nowMs: number): void {
    for (const [slot, { period, sinceDay }] of this.#written)
      if (sinceDay < periodStart(period, nowMs)) this.#written.delete(slot);
  }
}
