import { smaller } from './amounts';
import type { Returned, Taken } from './ledger';
import type { Budget } from './money-rows';
import { sinceDayOf } from './periods';

/** A process takes this part of a budget ahead, so that few requests wait for the database. A crash may lose it. */
const SLICES = 128n;

export type TakeFromBudget = (budgetId: string, sinceDay: number, wanted: bigint) => Promise<Taken | undefined>;

/** What this process has taken of one period of a budget. */
export interface PeriodAccount {
  readonly budget: Budget;
  readonly sinceDay: number;
  /** Not reserved by any request. Negative after a request that cost more than its reservation. */
  free: bigint;
  /** Reserved by open requests. */
  open: bigint;
  /** According to the database. undefined: not read yet. */
  taken: bigint | undefined;
  /** The database has nothing left. */
  isDry: boolean;
  /** Highest percentage that was reported. */
  alerted: number;
}

/**
 * One budget in this process. What is taken from the database counts as spent there until it is returned, so a crash
 * never lets a budget be exceeded.
 */
export class BudgetAccount {
  #budget: Budget;
  readonly #take: TakeFromBudget;
  readonly #periods = new Map<number, PeriodAccount>();
  readonly #taking = new Map<number, { wanted: bigint; done: Promise<void> }>();

  constructor(budget: Budget, take: TakeFromBudget) {
    this.#budget = budget;
    this.#take = take;
  }

  get budget(): Budget {
    return this.#budget;
  }

  get periods(): readonly PeriodAccount[] {
    return [...this.#periods.values()];
  }

  update(budget: Budget): void {
    this.#budget = budget;
    for (const period of this.#periods.values()) Object.assign(period, { budget, isDry: false, alerted: 0 });
  }

  at(nowMs: number): PeriodAccount {
    const sinceDay = sinceDayOf(this.#budget.period, nowMs);
    let period = this.#periods.get(sinceDay);
    if (period === undefined) {
      period = {
        budget: this.#budget,
        sinceDay,
        free: 0n,
        open: 0n,
        taken: undefined,
        isDry: false,
        alerted: 0,
      };
      this.#periods.set(sinceDay, period);
    }
    return period;
  }

  /** Takes at least `missing` from the database if it has that much. One transaction serves all that wait. */
  take(period: PeriodAccount, missing: bigint): Promise<void> {
    const waiting = this.#taking.get(period.sinceDay);
    if (waiting !== undefined) {
      waiting.wanted += missing;
      return waiting.done;
    }
    const next = { wanted: missing, done: Promise.resolve() };
    next.done = Promise.resolve().then(() => this.#takeNow(period, next));
    this.#taking.set(period.sinceDay, next);
    return next.done;
  }

  async #takeNow(period: PeriodAccount, next: { wanted: bigint }): Promise<void> {
    // Those that come from now on wait for the next transaction.
    this.#taking.delete(period.sinceDay);
    const wanted = next.wanted + this.#slice;
    const taken = await this.#take(this.#budget.id, period.sinceDay, wanted);
    if (taken === undefined) {
      period.isDry = true;
      return;
    }
    period.free += taken.granted;
    period.taken = (period.taken ?? taken.taken - taken.granted) + taken.granted;
    period.alerted = Math.max(period.alerted, taken.alerted);
    if (taken.granted < wanted) period.isDry = true;
  }

  /** Takes out what should be returned to the database. @param everything Nothing is kept for later requests. */
  surplus(nowMs: number, everything: boolean): Returned[] {
    const current = this.at(nowMs);
    const returned: Returned[] = [];
    for (const period of this.#periods.values()) {
      period.isDry = false;
      const kept = period === current && !everything ? this.#slice : 0n;
      if (period.free < 0n || period.free > 2n * kept) {
        const amount = period.free < 0n ? period.free : period.free - kept;
        if (amount !== 0n) returned.push({ budgetId: this.#budget.id, sinceDay: period.sinceDay, amount });
        period.free -= amount;
        if (period.taken !== undefined) period.taken -= amount;
      }
      if (period !== current && period.open === 0n && period.free === 0n) this.#periods.delete(period.sinceDay);
    }
    return returned;
  }

  /** Undoes {@link surplus} for what could not be written. */
  keep({ sinceDay, amount }: Returned): void {
    const period = this.#periods.get(sinceDay);
    if (period === undefined) return;
    period.free += amount;
    if (period.taken !== undefined) period.taken += amount;
  }

  get #slice(): bigint {
    return this.#budget.amount / SLICES;
  }
}

/** What requests may reserve now. Less than what is free after the amount was lowered. */
export function usableOf({ budget, free, taken }: PeriodAccount): bigint {
  return taken === undefined ? free : smaller(free, budget.amount - taken + free);
}

/** What requests have cost in a period, without those that are open. undefined: not known yet. */
export function spentOf({ taken, free, open }: PeriodAccount): bigint | undefined {
  return taken === undefined ? undefined : taken - free - open;
}
