import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { loneIndexes, plotColumns, type PlotSeries } from '../format/plot-data';

/** Loaded on demand by `plot.tsx`, because uPlot is larger than all other code of a page. */

const HEIGHT_PX = 190;
const AXIS_WIDTH_PX = 60;
const MAX_BAR_PX = 28;

export interface PlotOptions {
  series: readonly PlotSeries[];
  isBars: boolean;
  /** Values of the horizontal lines, from zero to the top of the plot. */
  ticks: readonly number[];
  format: (value: number) => string;
  /** Called with the index of the step under the pointer, or null when the pointer leaves. */
  onCursor: (index: number | null) => void;
}

export interface PlotCanvas {
  moveCursor: (index: number | null) => void;
  destroy: () => void;
}

/** Draws into `host` in the colours of the current theme and follows the width of `host`. */
export function drawPlot(host: HTMLElement, { series, isBars, ticks, format, onCursor }: PlotOptions): PlotCanvas {
  const data = plotColumns(series);
  const count = data[0].length;
  const [textColor, lineColor] = [colorOf(host, '--text-faint'), colorOf(host, '--line')];
  const plot = new UPlot(
    {
      width: host.clientWidth,
      height: HEIGHT_PX,
      padding: [8, 2, 8, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: !isBars } },
      scales: {
        x: { time: false, range: isBars || count === 1 ? [-0.5, count - 0.5] : [0, count - 1] },
        y: { range: [0, ticks[ticks.length - 1]] },
      },
      axes: [
        { show: false },
        {
          size: AXIS_WIDTH_PX,
          stroke: textColor,
          font: `11px ${getComputedStyle(host).fontFamily}`,
          grid: { stroke: lineColor, width: 1 },
          ticks: { show: false },
          splits: [...ticks],
          values: (_, splits) => splits.map(format),
        },
      ],
      series: [
        {},
        ...series.map((_, i) => (isBars ? barSeries(colorOf(host, `--plot-${i + 1}`)) : lineSeries(host, data, i))),
      ],
      hooks: { setCursor: [({ cursor }) => onCursor(cursor.idx ?? null)] },
    },
    data,
    host,
  );
  const observer = new ResizeObserver(() => plot.setSize({ width: host.clientWidth, height: HEIGHT_PX }));
  observer.observe(host);
  return {
    moveCursor: (index) => plot.setCursor(index === null ? OUTSIDE : { left: plot.valToPos(index, 'x'), top: 0 }),
    destroy: () => {
      observer.disconnect();
      plot.destroy();
    },
  };
}

/** uPlot hides the cursor at negative positions. */
const OUTSIDE = { left: -10, top: -10 };

function barSeries(color: string): UPlot.Series {
  return {
    stroke: color,
    fill: color,
    width: 0,
    points: { show: false },
    paths: UPlot.paths.bars?.({ size: [0.7, MAX_BAR_PX] }),
  };
}

function lineSeries(host: HTMLElement, [, ...columns]: UPlot.AlignedData, index: number): UPlot.Series {
  const color = colorOf(host, `--plot-${index + 1}`);
  const lone = loneIndexes(columns[index] as (number | null)[]);
  return {
    stroke: color,
    width: 1.8,
    ...(columns.length === 1 ? { fill: color.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.1)') } : {}),
    points: { show: lone.length > 0, filter: () => lone, size: 5, fill: color },
  };
}

/** Returns the computed colour of a token, because a canvas knows neither variables nor `light-dark()`. */
function colorOf(host: HTMLElement, token: string): string {
  const probe = document.createElement('span');
  probe.style.color = `var(${token})`;
  host.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
