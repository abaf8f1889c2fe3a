/** For example 1.4 GiB, or a dash for null. */
export function formatBytes(bytes: number | null, locale: string): string {
  if (bytes === null || !Number.isFinite(bytes)) return '–';
  let value = bytes;
  let i = 0;
  for (; Math.abs(value) >= 1024 && i < BYTE_UNITS.length - 1; i++) value /= 1024;
  return `${formatNumber(value, locale, i === 0 || value >= 100 ? 0 : 1)} ${BYTE_UNITS[i]}`;
}

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function formatMegabytes(megabytes: number, locale: string): string {
  return formatBytes(megabytes * 1024 * 1024, locale);
}

export function formatNumber(value: number, locale: string, maxDigits = 2): string {
  return new Intl.NumberFormat(locale, { maximumFractionDigits: maxDigits }).format(value);
}

/** For axes: 12,345 becomes 12.3K. */
export function formatCompact(value: number, locale: string): string {
  const size = Math.abs(value);
  const language = locale === 'zh-CN' ? 'zh-CN' : 'en';
  if (size >= 10_000)
    return new Intl.NumberFormat(language, { notation: 'compact', maximumFractionDigits: 1 }).format(value);
  if (size < 1) return new Intl.NumberFormat(language, { maximumSignificantDigits: 3 }).format(value);
  return formatNumber(value, language, size >= 100 ? 0 : 2);
}

/** Formats an amount of money: 12.35, and 0.000041 below 1. */
export function formatAmount(value: number, locale: string): string {
  return formatNumber(value, locale, Math.abs(value) < 1 ? 6 : 2);
}

/** Formats thousandths of a CPU core: 1500 becomes 1.5. */
export function formatCores(millis: number, locale: string): string {
  return formatNumber(millis / 1000, locale, 2);
}

/** A measured duration, such as 12.3 ms or 1.24 s. */
export function formatMs(ms: number | null, locale: string): string {
  if (ms === null || !Number.isFinite(ms)) return '–';
  if (ms < 10) return `${formatNumber(ms, locale, 2)} ms`;
  if (ms < 1000) return `${formatNumber(ms, locale, ms < 100 ? 1 : 0)} ms`;
  return `${formatNumber(ms / 1000, locale, ms < 10_000 ? 2 : 1)} s`;
}

const NUM_STEPS = 4;

/** Round values from zero up to at least `max`, in about four steps. From `base` on, they are multiples of it. */
export function niceTicks(max: number, base = 1): number[] {
  // Below one base they are not: 0.05 GiB is 51.2 MiB.
  if (base !== 1) return max < base ? niceTicks(max) : niceTicks(max / base).map((tick) => tick * base);
  if (!(max > 0) || !Number.isFinite(max)) return [0, 1];
  const rough = max / NUM_STEPS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const ticks: number[] = [];
  for (let i = 0; ; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
    if (i * step >= max) return ticks;
  }
}
