import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { formatCompact, niceTicks } from '../format/numbers';
import type { PlotSeries } from '../format/plot-data';
import { formatTime } from '../format/times';
import { locale, t } from '../i18n';
import type { PlotCanvas } from './plot-canvas';

const formatPlain = (value: number) => formatCompact(value, locale());

/** Lines or bars over time. The pointer and the arrow keys select a step, and the line below reads its values out. */
export function Plot({
  label,
  series,
  isBars = false,
  base = 1,
  format = formatPlain,
}: {
  label: string;
  series: readonly PlotSeries[];
  isBars?: boolean;
  format?: (value: number) => string;
  /** From this value on, ticks are round multiples of it: 1024 for memory sizes. */
  base?: number;
}) {
  const [index, setIndex] = useState<number | null>(null);
  const [hasFailed, setFailed] = useState(false);
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<PlotCanvas | null>(null);
  const theme = useThemeRound();
  const ticks = useMemo(() => {
    const values = series.flatMap(({ points }) => points.map(([, value]) => value ?? 0));
    return niceTicks(Math.max(0, ...values), base);
  }, [series, base]);
  const isEmpty = series.every(({ points }) => points.every(([, value]) => value === null));
  useEffect(() => {
    if (isEmpty) return undefined;
    let isGone = false;
    import('./plot-canvas').then(
      ({ drawPlot }) => {
        if (isGone || host.current === null) return;
        canvas.current = drawPlot(host.current, { series, isBars, ticks, format, onCursor: setIndex });
      },
      () => setFailed(true),
    );
    return () => {
      isGone = true;
      canvas.current?.destroy();
      canvas.current = null;
    };
  }, [series, isBars, ticks, format, isEmpty, theme]);
  if (isEmpty) return <div class="plot-empty">{t('metrics.none')}</div>;

  const times = series[0].points.map(([time]) => time);
  const select = (next: number | null) => {
    setIndex(next);
    canvas.current?.moveCursor(next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const from = index ?? (step > 0 ? -1 : times.length);
    select(Math.max(0, Math.min(times.length - 1, from + step)));
  };
  return (
    <div class="plot">
      <div
        tabIndex={0}
        role="group"
        aria-label={`${label}. ${t('plot.keys')}`}
        onKeyDown={onKeyDown}
        onBlur={() => select(null)}
      >
        <div ref={host} class="plot-canvas" aria-hidden="true" />
        {hasFailed && <div class="plot-empty">{t('plot.failed')}</div>}
      </div>
      <div class="plot-note tiny" role="status">
        {index === null ? (
          <>
            <span class="faint">{formatTime(times[0], locale())}</span>
            <span class="faint">{formatTime(times[times.length - 1], locale())}</span>
          </>
        ) : (
          <span>{readout(series, index, format)}</span>
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

const STEPS: Readonly<Record<string, number>> = { ArrowLeft: -1, ArrowRight: 1 };

/** The time and the values of one step, in words. */
function readout(series: readonly PlotSeries[], index: number, format: (value: number) => string): string {
  const values = series.map(({ name, points }) => {
    const value = points[index]?.[1] ?? null;
    return `${name} ${value === null ? '–' : format(value)}`;
  });
  return `${formatTime(series[0].points[index]?.[0] ?? null, locale())}: ${values.join(', ')}`;
}

/** A number that changes with the theme, because a canvas has to be drawn again in the new colours. */
function useThemeRound(): number {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const update = () => setRound((value) => value + 1);
    const systemTheme = matchMedia('(prefers-color-scheme: dark)');
    const observer = new MutationObserver(update);
    systemTheme.addEventListener('change', update);
    observer.observe(document.documentElement, { attributeFilter: ['data-theme'] });
    return () => {
      systemTheme.removeEventListener('change', update);
      observer.disconnect();
    };
  }, []);
  return round;
}
