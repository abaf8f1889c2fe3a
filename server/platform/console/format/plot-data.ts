type PlotPoint = readonly [time: string, value: number | null];

export interface PlotSeries {
  name: string;
  points: readonly PlotPoint[];
}

/** The x positions first, then the values of each series. Time steps are even, so x is the index of the step. */
export type PlotColumns = [x: number[], ...values: (number | null)[][]];

export function plotColumns(series: readonly PlotSeries[]): PlotColumns {
  const times = series[0]?.points ?? [];
  return [times.map((_, i) => i), ...series.map(({ points }) => points.map(([, value]) => value))];
}

/** The indexes of values without a neighbour. A line cannot show them, so they are drawn as dots. */
export function loneIndexes(values: readonly (number | null)[]): number[] {
  const has = (i: number) => (values[i] ?? null) !== null;
  return values.flatMap((_, i) => (has(i) && !has(i - 1) && !has(i + 1) ? [i] : []));
}
