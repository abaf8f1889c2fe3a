const UNITS = ['kB', 'MB', 'GB', 'TB'];

/** Returns a size in powers of 1,000, such as `512 B`, `9.5 MB` or `1.2 GB`. */
export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  let value = bytes / 1000;
  let unit = 0;
  for (; value >= 999.5 && unit < UNITS.length - 1; unit++) value /= 1000;
  return `${value < 99.95 ? value.toFixed(1) : value.toFixed(0)} ${UNITS[unit]}`;
}
