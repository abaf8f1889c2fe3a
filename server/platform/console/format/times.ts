/** For example 21 Nov 2026, 16:04:05. */
export function formatTime(time: string | null, locale: string): string {
  const date = parse(time);
  return date === undefined
    ? '–'
    : new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium', hour12: false }).format(date);
}

/** For log lines: 16:04:05.123. */
export function formatClock(time: string): string {
  const date = parse(time);
  if (date === undefined) return '–';
  const pad = (value: number, length = 2) => String(value).padStart(length, '0');
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map((value) => pad(value)).join(':');
  return `${clock}.${pad(date.getMilliseconds(), 3)}`;
}

export function formatDate(time: string | null, locale: string): string {
  const date = parse(time);
  return date === undefined ? '–' : new Intl.DateTimeFormat(locale, { dateStyle: 'medium' }).format(date);
}

const UNITS = [
  ['year', 31_536_000],
  ['month', 2_592_000],
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
] as const;

const DURATION_UNITS = UNITS.filter(([, size]) => size <= 86_400);

/** For example "3 minutes ago" or "in 2 days". */
export function formatRelative(time: string | null, locale: string, nowMs: number): string {
  const date = parse(time);
  if (date === undefined) return '–';
  const seconds = Math.round((date.getTime() - nowMs) / 1000);
  const format = new Intl.RelativeTimeFormat(locale, { numeric: 'auto' });
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return format.format(Math.trunc(seconds / size), unit);
  }
  return format.format(0, 'second');
}

/**
 * A past time as {@link formatRelative}. A time after `nowMs` counts as now: the clocks of the service and the browser
 * differ, and an event may arrive after the page last read its own clock.
 */
export function formatPast(time: string | null, locale: string, nowMs: number): string {
  return formatRelative(time, locale, Math.max(nowMs, parse(time)?.getTime() ?? nowMs));
}

/** The two largest units: 90 becomes "1m 30s" in English. */
export function formatSeconds(seconds: number, locale: string): string {
  const format = (count: number, unit: string) =>
    new Intl.NumberFormat(locale, { style: 'unit', unit, unitDisplay: 'narrow' }).format(count);
  let rest = Math.max(0, Math.round(seconds));
  const parts = DURATION_UNITS.flatMap(([unit, size]) => {
    const count = Math.floor(rest / size);
    rest -= count * size;
    return count === 0 ? [] : [format(count, unit)];
  });
  return parts.length === 0 ? format(0, 'second') : parts.slice(0, 2).join(' ');
}

/** Converts the value of a `datetime-local` input, in the local time zone, to ISO 8601. */
export function fromLocalInput(value: string): string | null {
  const date = value === '' ? undefined : parse(value);
  return date === undefined ? null : date.toISOString();
}

export function toLocalInput(time: string | null): string {
  const date = parse(time);
  if (date === undefined) return '';
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function parse(time: string | null): Date | undefined {
  if (time === null) return undefined;
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? undefined : date;
}
