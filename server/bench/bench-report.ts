/** What a benchmark has measured, for the page with plots. */
export interface BenchReport {
  title: string;
  /** The machine and the settings. */
  facts: readonly (readonly [name: string, value: string])[];
  tables: readonly Table[];
  plots: readonly Plot[];
}

export interface Table {
  title: string;
  columns: readonly string[];
  rows: readonly (readonly (string | number)[])[];
}

/** Lines over the same x values, in ascending order. */
export interface Plot {
  title: string;
  x: { label: string; values: readonly number[]; isLog?: boolean };
  yLabel: string;
  series: readonly { label: string; values: readonly (number | null)[] }[];
}

/** Returns the text of a cell: numbers with three significant digits, or all digits before the point. */
export function cellText(cell: string | number): string {
  if (typeof cell === 'string') return cell;
  if (Number.isInteger(cell)) return String(cell);
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(cell))));
  return cell.toFixed(Math.min(digits, 6));
}

/** Returns a table for the terminal. Numbers are aligned to the right. */
export function renderTable({ columns, rows }: Table): string {
  const cells = rows.map((row) => row.map(cellText));
  const widths = columns.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i].length)));
  const isNumber = columns.map((_, i) => rows.every((row) => typeof row[i] === 'number'));
  const line = (row: readonly string[]) =>
    row
      .map((cell, i) => (isNumber[i] ? cell.padStart(widths[i]) : cell.padEnd(widths[i])))
      .join('  ')
      .trimEnd();
  return `${[columns, ...cells].map(line).join('\n')}\n`;
}
