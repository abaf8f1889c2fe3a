export type PlotPoint = readonly [time: string, value: number | null];

export interface PlotSeries {
  name: string;
  points: readonly PlotPoint[];
}

const WIDTH = 600;
const HEIGHT = 190;
const TOP = 8;
const BOTTOM = 182;
const LEFT = 0;
const RIGHT = 600;

/** Where things are on a plot of 600 × 190; the steps are even, and values that are missing leave a gap. */
export function plotLayout(series: readonly PlotSeries[], max: number) {
  const times = (series[0]?.points ?? []).map(([time]) => time);
  const count = times.length;
  const step = count > 1 ? (RIGHT - LEFT) / (count - 1) : 0;
  const slot = (RIGHT - LEFT) / Math.max(1, count);
  const barWidth = Math.max(1, Math.min(28, slot * 0.7));
  const xOf = (i: number) => (count === 1 ? (LEFT + RIGHT) / 2 : LEFT + i * step);
  const yOf = (value: number) => BOTTOM - (BOTTOM - TOP) * (max === 0 ? 0 : value / max);
  const runs = (points: readonly PlotPoint[]) => {
    const found: [x: number, y: number][][] = [];
    let run: [number, number][] = [];
    for (const [i, [, value]] of points.entries()) {
      if (value !== null) run.push([round(xOf(i)), round(yOf(value))]);
      if ((value === null || i === points.length - 1) && run.length > 0) {
        found.push(run);
        run = [];
      }
    }
    return found;
  };
  return {
    width: WIDTH,
    height: HEIGHT,
    left: LEFT,
    right: RIGHT,
    top: TOP,
    times,
    barWidth,
    xOf,
    yOf,
    barX: (i: number) => LEFT + slot * i + (slot - barWidth) / 2,
    // A lone value is a short line: it would be nothing otherwise.
    line: (points: readonly PlotPoint[]) =>
      runs(points)
        .map((run) =>
          run.length === 1
            ? `M${run[0][0] - 2} ${run[0][1]}H${run[0][0] + 2}`
            : `M${run.map(([x, y]) => `${x} ${y}`).join('L')}`,
        )
        .join(''),
    area: (points: readonly PlotPoint[]) =>
      runs(points)
        .map(
          (run) =>
            `M${run[0][0]} ${BOTTOM}L${run.map(([x, y]) => `${x} ${y}`).join('L')}L${run[run.length - 1][0]} ${BOTTOM}Z`,
        )
        .join(''),
  };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
