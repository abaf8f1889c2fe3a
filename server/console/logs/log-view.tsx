import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { LogLine, LogPage } from '../../api/objects';
import { call } from '../api/client';
import { follow, type LiveState } from '../api/live';
import { type ApiProblem, toProblem } from '../api/problem';
import { formatClock, formatTime } from '../format/times';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { Select } from '../ui/field';
import { ProblemBanner } from '../ui/state';
import { addLines, markMatches, parseLines } from './lines';

interface Filter {
  q: string;
  stream: string;
  level: string;
}

const LEVELS = ['error', 'warn', 'info', 'debug', 'unknown'] as const satisfies readonly LogLine['level'][];
const PAGE = 500;
const TYPING_MS = 300;
/** This near to the end counts as at the end. */
const NEAR_PX = 40;

/** A log: the last lines, those that come, older ones on request, and a search through all of it. */
export function LogView({ path }: { path: string }) {
  const [text, setText] = useState('');
  const [filter, setFilter] = useState<Filter>({ q: '', stream: '', level: '' });
  useEffect(() => {
    if (text === filter.q) return undefined;
    const timer = setTimeout(() => setFilter({ ...filter, q: text }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class="stack-small">
      <div class="filters" role="search">
        <input
          class="input"
          type="search"
          aria-label={t('logs.search')}
          placeholder={t('logs.search')}
          maxLength={200}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <Select
          label={t('logs.stream')}
          value={filter.stream}
          onChange={(stream) => setFilter({ ...filter, stream })}
          options={[
            { value: '', label: t('logs.allStreams') },
            ...['stdout', 'stderr', 'system'].map((value) => ({ value, label: value })),
          ]}
        />
        <Select
          label={t('logs.level')}
          value={filter.level}
          onChange={(level) => setFilter({ ...filter, level })}
          options={[
            { value: '', label: t('logs.allLevels') },
            ...LEVELS.map((value) => ({ value, label: t(`logs.level.${value}`) })),
          ]}
        />
      </div>
      <Lines key={`${path} ${filter.q} ${filter.stream} ${filter.level}`} path={path} filter={filter} />
    </div>
  );
}

function Lines({ path, filter }: { path: string; filter: Filter }) {
  const log = useLog(path, filter);
  const box = useRef<HTMLDivElement>(null);
  const [isFollowing, setFollowing] = useState(true);
  const { lines } = log;
  useLayoutEffect(() => {
    if (isFollowing && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, isFollowing]);
  const onScroll = () => {
    if (box.current === null) return;
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setFollowing(scrollHeight - scrollTop - clientHeight < NEAR_PX);
  };
  const older = async () => {
    const before = box.current?.scrollHeight ?? 0;
    await log.loadOlder();
    // What was on view stays on view.
    requestAnimationFrame(() => {
      if (box.current !== null) box.current.scrollTop += box.current.scrollHeight - before;
    });
  };
  const isSearching = filter.q !== '' || filter.stream !== '' || filter.level !== '';
  return (
    <>
      <ProblemBanner problem={log.problem}>
        <div class="row">
          <Button isSmall icon="restart" onClick={log.retry}>
            {t('action.retry')}
          </Button>
        </div>
      </ProblemBanner>
      <div class="log">
        <div class="log-lines" ref={box} tabIndex={0} role="region" aria-label={t('logs.title')} onScroll={onScroll}>
          {log.older !== null && (
            <div class="log-note">
              <Button isSmall look="quiet" isBusy={log.isLoading} onClick={() => void older()}>
                {t('logs.older')}
              </Button>
            </div>
          )}
          {lines.length === 0 && !log.isLoading && (
            <div class="log-note">{t(isSearching ? 'logs.noMatch' : 'logs.empty')}</div>
          )}
          {lines.map((line) => (
            <Line key={line.seq} of={line} search={filter.q} />
          ))}
        </div>
        <div class="log-foot">
          <span class="row-tight" role="status">
            <LiveMark state={log.live} /> {t('logs.count', { n: lines.length })}
            {log.lastSeq !== null && ` · #${log.lastSeq}`}
          </span>
          {!isFollowing && (
            <Button isSmall onClick={() => setFollowing(true)}>
              {t('logs.toEnd')}
            </Button>
          )}
        </div>
      </div>
    </>
  );
}

function LiveMark({ state }: { state: LiveState }) {
  return (
    <span class={`badge badge-${state === 'live' ? 'ok' : state === 'lost' ? 'warn' : 'info'}`}>
      <span class={state === 'live' ? 'dot' : 'dot dot-moving'} />
      {t(`live.${state}`)}
    </span>
  );
}

function Line({ of: { at, stream, level, replica, text }, search }: { of: LogLine; search: string }) {
  const parts = markMatches(neutralise(text.replaceAll('\u2028', '\n')), search);
  return (
    <div class="log-line" data-stream={stream} data-level={level}>
      <time dateTime={at} title={formatTime(at, locale())}>
        {formatClock(at)}
      </time>
      <span class="from" title={stream}>
        {stream === 'system' ? 'sys' : `r${replica}`}
      </span>
      <span class="text">{parts.map((part, i) => (i % 2 === 1 ? <mark key={i}>{part}</mark> : part))}</span>
    </div>
  );
}

interface LogState {
  lines: readonly LogLine[];
  /** What to ask before; null where there is no more. */
  older: string | null;
  lastSeq: number | null;
  isLoading: boolean;
  problem: ApiProblem | null;
}

/** The end of the log first, then what follows it; both by number, so that nothing is shown twice or missed. */
function useLog(path: string, { q, stream, level }: Filter) {
  const [state, setState] = useState<LogState>({
    lines: [],
    older: null,
    lastSeq: null,
    isLoading: true,
    problem: null,
  });
  const [live, setLive] = useState<LiveState>('connecting');
  const [round, setRound] = useState(0);
  const query = { q: q === '' ? null : q, stream: stream === '' ? null : stream, level: level === '' ? null : level };
  const fits = (line: LogLine) =>
    (stream === '' || line.stream === stream) && (q === '' || line.text.toLowerCase().includes(q.toLowerCase()));
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    // Many lines in a short time are one change of the page.
    let waiting: LogLine[] = [];
    let frame: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      frame = undefined;
      const added = waiting;
      waiting = [];
      setState((old) => ({
        ...old,
        lines: addLines(old.lines, added.filter(fits)),
        lastSeq: added.at(-1)?.seq ?? old.lastSeq,
      }));
    };
    const start = async () => {
      const page = await call<LogPage>('GET', withQuery(path, { ...query, limit: PAGE }), { signal });
      setState({
        lines: addLines([], page.data),
        older: page.next,
        lastSeq: page.last_seq,
        isLoading: false,
        problem: null,
      });
      await follow(
        withQuery(`${path}/follow`, query),
        ({ data }) => {
          waiting.push(...parseLines(data));
          frame ??= setTimeout(flush, 60);
        },
        setLive,
        signal,
        String(page.last_seq ?? 0),
      );
    };
    start().catch((error: unknown) => {
      if (!signal.aborted) setState((old) => ({ ...old, isLoading: false, problem: toProblem(error) }));
    });
    return () => {
      controller.abort();
      if (frame !== undefined) clearTimeout(frame);
    };
  }, [path, q, stream, level, round]);
  const loadOlder = async () => {
    if (state.older === null) return;
    setState((old) => ({ ...old, isLoading: true }));
    try {
      const page = await call<LogPage>('GET', withQuery(path, { ...query, before: state.older, limit: PAGE }));
      setState((old) => ({
        ...old,
        lines: addLines(old.lines, page.data, 'oldest'),
        older: page.next,
        isLoading: false,
        problem: null,
      }));
    } catch (error) {
      setState((old) => ({ ...old, isLoading: false, problem: toProblem(error) }));
    }
  };
  return { ...state, live, loadOlder, retry: () => setRound((value) => value + 1) };
}
