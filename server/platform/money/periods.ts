import type { MoneyPeriod } from './money-schema';

const DAY_MS = 86_400_000;

/** Returns the UTC day as days since 1970. */
export function dayOf(nowMs: number): number {
  return Math.floor(nowMs / DAY_MS);
}

export function dayText(day: number): string {
  return new Date(day * DAY_MS).toISOString().slice(0, 10);
}

/** Returns the first day of the period that contains `nowMs`. */
export function sinceDayOf(period: MoneyPeriod, nowMs: number): number {
  if (period === 'total') return 0;
  if (period === 'day') return dayOf(nowMs);
  const date = new Date(nowMs);
  return dayOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1));
}

/** Returns when the next period starts, or null for `total`. */
export function endMsOf(period: MoneyPeriod, nowMs: number): number | null {
  if (period === 'total') return null;
  if (period === 'day') return (dayOf(nowMs) + 1) * DAY_MS;
  const date = new Date(nowMs);
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
}

export function startMsOf(sinceDay: number): number {
  return sinceDay * DAY_MS;
}
