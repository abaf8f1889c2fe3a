import { useRef, useState } from 'preact/hooks';
import { formatCompact, niceTicks } from '../format/numbers';
import { formatTime } from '../format/times';
import { type PlotSeries, plotLayout } from '../format/plot-layout';
import { locale, t } from '../i18n';

/** Lines or bars over time, drawn by hand. Arrow keys and the pointer read single values; the last line says them in words. */
export function Plot({
  label,
  unit,
  series,
  isBars = false,
  base = 1,
  format = (value) => formatCompact(value, locale()),
}: {
  label: string;
  unit: string;
  series: readonly PlotSeries[];
  isBars?: boolean;
  format?: (value: number) => string;
  /** What round values are multiples of: 1024 for sizes of memory. */
  base?: number;
}) {
  const [at, setAt] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const max = Math.max(0, ...series.flatMap(({ points }) => points.map(([, value]) => value ?? 0)));
  const ticks = niceTicks(max / base).map((tick) => tick * base);
  const layout = plotLayout(series, ticks[ticks.length - 1]);
  const count = layout.times.length;
  if (count === 0 || series.every(({ points }) => points.every(([, value]) => value === null)))
    return <div class="plot-empty">{t('metrics.none')}</div>;
  const point = (event: PointerEvent) => {
    const bounds = box.current?.querySelector('svg')?.getBoundingClientRect();
    if (bounds === undefined) return;
    const x = ((event.clientX - bounds.left) / bounds.width) * layout.width;
    setAt(
      Math.max(0, Math.min(count - 1, Math.round(((x - layout.left) / (layout.right - layout.left)) * (count - 1)))),
    );
  };
  const walk = (event: KeyboardEvent) => {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(count - 1, (at ?? (step > 0 ? -1 : count)) + step)));
  };
  const spoken =
    at === null
      ? ''
      : `${formatTime(layout.times[at], locale())}: ${series.map(({ name, points }) => `${name} ${said(points[at]?.[1], format)}`).join(', ')}${unit === '' ? '' : ` ${unit}`}`;
  return (
    <div class="plot">
      <div
        ref={box}
        tabIndex={0}
        role="group"
        aria-label={`${label}. ${t('plot.keys')}`}
        onPointerMove={point}
        onPointerLeave={() => setAt(null)}
        onKeyDown={walk}
        onBlur={() => setAt(null)}
      >
        <svg viewBox={`0 0 ${layout.width} ${layout.height}`} preserveAspectRatio="none" aria-hidden="true">
          {ticks.map((tick) => (
            <line
              key={tick}
              class="grid"
              x1={layout.left}
              x2={layout.right}
              y1={layout.yOf(tick)}
              y2={layout.yOf(tick)}
              vector-effect="non-scaling-stroke"
            />
          ))}
          {series.map(({ name, points }, i) =>
            isBars ? (
              <g key={name} class={`plot-${i + 1}`}>
                {points.map(
                  ([time, value], j) =>
                    value !== null &&
                    value > 0 && (
                      <rect
                        key={time}
                        class="bar"
                        x={layout.barX(j)}
                        width={layout.barWidth}
                        y={layout.yOf(value)}
                        height={layout.yOf(0) - layout.yOf(value)}
                      />
                    ),
                )}
              </g>
            ) : (
              <g key={name} class={`plot-${i + 1}`}>
                {series.length === 1 && <path class="area" d={layout.area(points)} />}
                <path class="series" d={layout.line(points)} vector-effect="non-scaling-stroke" />
              </g>
            ),
          )}
          {at !== null && (
            <line
              class="cursor"
              x1={layout.xOf(at)}
              x2={layout.xOf(at)}
              y1={layout.yOf(0)}
              y2={layout.top}
              vector-effect="non-scaling-stroke"
            />
          )}
        </svg>
        <div class="plot-ticks" aria-hidden="true">
          {ticks.map((tick) => (
            <span key={tick} style={{ top: `${(layout.yOf(tick) / layout.height) * 100}%` }}>
              {format(tick)}
            </span>
          ))}
        </div>
      </div>
      <div class="plot-note tiny" role="status">
        {at === null ? (
          <>
            <span class="faint">{formatTime(layout.times[0], locale())}</span>
            <span class="faint">{formatTime(layout.times[count - 1], locale())}</span>
          </>
        ) : (
          <span>{spoken}</span>
        )}
      </div>
      {series.length > 1 && (
        <ul class="legend">
          {series.map(({ name }, i) => (
            <li key={name}>
              <span class={`key plot-${i + 1}`} />
              {name}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function said(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? '–' : format(value);
}
