import { useEffect, useState } from 'preact/hooks';
import { formatPast, formatRelative, formatTime } from '../format/times';
import { locale } from '../i18n';

/** The current time, updated every `everyMs`. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** A past time, relative to now, with the exact time as its tooltip. */
export function Ago({ time }: { time: string | null }) {
  return <Relative time={time} format={formatPast} />;
}

/** A future time, relative to now, with the exact time as its tooltip. */
export function Until({ time }: { time: string | null }) {
  return <Relative time={time} format={formatRelative} />;
}

function Relative({ time, format }: { time: string | null; format: typeof formatRelative }) {
  const now = useNow(30_000);
  if (time === null) return <>–</>;
  return (
    <time dateTime={time} title={formatTime(time, locale())} class="nowrap">
      {format(time, locale(), now)}
    </time>
  );
}

export function At({ time }: { time: string | null }) {
  return time === null ? (
    <>–</>
  ) : (
    <time dateTime={time} class="numeric nowrap">
      {formatTime(time, locale())}
    </time>
  );
}
