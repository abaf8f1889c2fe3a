import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { LogLine, LogPage } from '../../api/objects';
import { call } from '../api/client';
import { follow, type LiveState } from '../api/live';
import { type ApiProblem, toProblem } from '../api/problem';
import { formatClock, formatTime } from '../format/times';
import { neutralise } from '../format/neutral';
import { locale, serviceText, t } from '../i18n';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { Select } from '../ui/field';
import { ProblemBanner } from '../ui/state';
import { addLines, type LineRange, markMatches, parseLines } from './lines';
import { FOLLOW_PX, useVirtualRows } from './virtual-rows';

interface Filter {
  q: string;
  stream: string;
  level: string;
}

const LEVELS = ['error', 'warn', 'info', 'debug', 'unknown'] as const satisfies readonly LogLine['level'][];
const PAGE = 500;
const TYPING_MS = 300;
const FLUSH_MS = 60;

/** A log: its last lines, new lines as they are written, older lines on request, and a search through all of them. */
export function LogView({ path }: { path: string }) {
  const [text, setText] = useState('');
  const [filter, setFilter] = useState<Filter>({ q: '', stream: '', level: '' });
  useEffect(() => {
    const timer = setTimeout(() => setFilter((old) => (old.q === text ? old : { ...old, q: text })), TYPING_MS);
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
  const { lines } = log;
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const { selected, selectAll } = useSelectedLines(box, content);
  const rows = useVirtualRows(lines, () => box.current, selected);
  const [isFollowing, setFollowing] = useState(true);
  const onScroll = ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }: { currentTarget: HTMLElement }) =>
    setFollowing(scrollHeight - scrollTop - clientHeight < FOLLOW_PX);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'a' || !(event.ctrlKey || event.metaKey) || lines.length === 0) return;
    event.preventDefault();
    selectAll([lines[0].seq, lines[lines.length - 1].seq]);
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
        {log.older !== null && (
          <div class="log-note">
            <Button isSmall look="quiet" isBusy={log.isLoading} onClick={() => void log.loadOlder()}>
              {t('logs.older')}
            </Button>
          </div>
        )}
        <div
          class="log-lines"
          ref={box}
          tabIndex={0}
          role="region"
          aria-label={t('logs.title')}
          onKeyDown={onKeyDown}
          onScroll={onScroll}
        >
          {lines.length === 0 && !log.isLoading && (
            <div class="log-note">{t(isSearching ? 'logs.noMatch' : 'logs.empty')}</div>
          )}
          <div class="log-rows" ref={content} style={{ height: `${rows.getTotalSize()}px` }}>
            {rows.getVirtualItems().map(({ key, index, start }) => (
              <Line
                key={key}
                of={lines[index]}
                search={filter.q}
                index={index}
                start={start}
                measure={rows.measureElement}
              />
            ))}
          </div>
        </div>
        <div class="log-foot">
          <span class="row-tight" role="status">
            <LiveMark state={log.live} /> {t('logs.count', { n: lines.length })}
            {log.lastSeq !== null && ` · #${log.lastSeq}`}
          </span>
          {!isFollowing && (
            <Button isSmall onClick={() => rows.scrollToEnd()}>
              {t('logs.toEnd')}
            </Button>
          )}
        </div>
      </div>
    </>
  );
}

/**
 * Tracks the lines in which the browser's selection starts and ends. The value is null if one end is outside the log.
 * `selectAll` renders the given lines before it selects them.
 */
function useSelectedLines(
  box: { readonly current: HTMLElement | null },
  content: { readonly current: HTMLElement | null },
) {
  const selected = useRef<LineRange | null>(null);
  const isSelectingAll = useRef(false);
  const [numSelectAll, setNumSelectAll] = useState(0);
  useEffect(() => {
    const update = () => {
      if (isSelectingAll.current) return;
      const selection = document.getSelection();
      const [from, to] = [lineOf(selection?.anchorNode), lineOf(selection?.focusNode)];
      const isHere = selection?.isCollapsed === false && box.current?.contains(selection.anchorNode) === true;
      selected.current = isHere && from !== undefined && to !== undefined ? [from, to] : null;
    };
    document.addEventListener('selectionchange', update);
    return () => document.removeEventListener('selectionchange', update);
  }, [box]);
  useLayoutEffect(() => {
    const [first, last] = [content.current?.firstElementChild ?? null, content.current?.lastElementChild ?? null];
    if (isSelectingAll.current && first !== null && last !== null)
      document.getSelection()?.setBaseAndExtent(first, 0, last, last.childNodes.length);
    isSelectingAll.current = false;
  }, [numSelectAll, content]);
  const selectAll = (range: LineRange) => {
    selected.current = range;
    isSelectingAll.current = true;
    setNumSelectAll((count) => count + 1);
  };
  return { selected, selectAll };
}

/** The sequence number of the line that contains a node. */
function lineOf(node: Node | null | undefined): number | undefined {
  const element = node instanceof Element ? node : node?.parentElement;
  const seq = element?.closest<HTMLElement>('.log-line')?.dataset.seq;
  return seq === undefined ? undefined : Number(seq);
}

const LIVE_TONES: Readonly<Record<LiveState, string>> = { live: 'ok', connecting: 'info', lost: 'warn' };

function LiveMark({ state }: { state: LiveState }) {
  return (
    <span class={`badge badge-${LIVE_TONES[state]}`}>
      <span class={state === 'live' ? 'dot' : 'dot dot-moving'} />
      {t(`live.${state}`)}
    </span>
  );
}

function Line({
  of: { seq, at, stream, level, replica, text },
  search,
  index,
  start,
  measure,
}: {
  of: LogLine;
  search: string;
  index: number;
  /** Distance from the top of the log in pixels. */
  start: number;
  measure: (element: HTMLElement | null) => void;
}) {
  // A search finds the original texts.
  const shown = stream === 'system' && search === '' ? serviceText(text) : text;
  const parts = markMatches(neutralise(shown.replaceAll('\u2028', '\n')), search);
  return (
    <div
      class="log-line"
      ref={measure}
      data-index={index}
      data-seq={seq}
      data-stream={stream}
      data-level={level}
      style={{ transform: `translateY(${start}px)` }}
    >
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
  /** The cursor of the page before the first line, or null if there is none. */
  older: string | null;
  lastSeq: number | null;
  isLoading: boolean;
  problem: ApiProblem | null;
}

/** Loads the end of a log and follows it. Sequence numbers join the two, so that no line is missing or repeated. */
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
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const query = queryOf({ q, stream, level });
    const fits = (line: LogLine) =>
      (stream === '' || line.stream === stream) && line.text.toLowerCase().includes(q.toLowerCase());
    // Lines that arrive within a short time are added in one render.
    let arrived: LogLine[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      const added = arrived;
      arrived = [];
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
          arrived.push(...parseLines(data));
          timer ??= setTimeout(flush, FLUSH_MS);
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
      clearTimeout(timer);
    };
  }, [path, q, stream, level, round]);
  const loadOlder = async () => {
    if (state.older === null) return;
    setState((old) => ({ ...old, isLoading: true }));
    try {
      const query = { ...queryOf({ q, stream, level }), before: state.older, limit: PAGE };
      const page = await call<LogPage>('GET', withQuery(path, query));
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

function queryOf({ q, stream, level }: Filter) {
  const orNull = (value: string) => (value === '' ? null : value);
  return { q: orNull(q), stream: orNull(stream), level: orNull(level) };
}
