/** 21 Nov 2026, 16:04:05. */
export function formatTime(time: string | null, locale: string): string {
  const date = parse(time);
  return date === undefined
    ? '–'
    : new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium', hour12: false }).format(date);
}

/** 16:04:05.123, for lines of a log. */
export function formatClock(time: string): string {
  const date = parse(time);
  if (date === undefined) return '–';
  const two = (value: number) => String(value).padStart(2, '0');
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, '0')}`;
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

/** 3 minutes ago, in 2 days. */
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

/** 90 → 1m 30s; whole parts, the two largest. */
export function formatSeconds(seconds: number): string {
  let rest = Math.max(0, Math.round(seconds));
  const parts: string[] = [];
  for (const [unit, size] of [
    ['d', 86_400],
    ['h', 3_600],
    ['m', 60],
    ['s', 1],
  ] as const) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count}${unit}`);
  }
  return parts.length === 0 ? '0s' : parts.slice(0, 2).join(' ');
}

/** What a field of the browser for dates and times gives, in the zone of the browser, as the interface wants it. */
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
