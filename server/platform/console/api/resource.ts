import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { call } from './client';
import { type ApiProblem, toProblem } from './problem';

/** An object of the management API and its loading state. */
export interface Resource<T> {
  data: T | undefined;
  /** The problem of the last attempt. `data` may still hold an older response. */
  problem: ApiProblem | null;
  isLoading: boolean;
  reload: () => void;
  /** Replaces the data, for example with the response to a change. */
  set: (data: T) => void;
}

/** The latest responses by path, so that going back shows a page at once. */
const cache = new Map<string, unknown>();
const MAX_CACHED = 100;

export function clearResources(): void {
  cache.clear();
}

function store(path: string, data: unknown): void {
  cache.delete(path);
  cache.set(path, data);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value as string);
}

/** Loads the object at a path of the management API. A null path loads nothing. */
export function useResource<T>(path: string | null): Resource<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; problem: ApiProblem | null; isLoading: boolean }>(
    { path: null, problem: null, isLoading: true },
  );
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    const cached = cache.get(path) as T | undefined;
    setState((old) => ({
      path,
      data: old.path === path ? (old.data ?? cached) : cached,
      problem: null,
      isLoading: true,
    }));
    call<T>('GET', path, { signal: controller.signal }).then(
      (data) => {
        store(path, data);
        setState({ path, data, problem: null, isLoading: false });
      },
      (error: unknown) => {
        if (controller.signal.aborted) return;
        setState((old) => ({ ...old, problem: toProblem(error), isLoading: false }));
      },
    );
    return () => controller.abort();
  }, [path, round]);
  const reload = useCallback(() => setRound((value) => value + 1), []);
  const set = useCallback(
    (data: T) => {
      if (path !== null) store(path, data);
      setState({ path, data, problem: null, isLoading: false });
    },
    [path],
  );
  // After a change of the path, the first render still has the state of the previous path.
  const isCurrent = state.path === path;
  const cachedData = path === null ? undefined : (cache.get(path) as T | undefined);
  return {
    data: isCurrent ? state.data : cachedData,
    problem: isCurrent ? state.problem : null,
    isLoading: !isCurrent || state.isLoading,
    reload,
    set,
  };
}

export interface PageList<T> {
  data: T[] | undefined;
  problem: ApiProblem | null;
  isLoading: boolean;
  hasMore: boolean;
  loadMore: () => void;
  reload: () => void;
}

/** Loads a list page by page. A change of the path starts again with the first page. */
export function usePages<T>(path: string | null): PageList<T> {
  const first = useResource<{ data: T[]; next: string | null }>(path);
  const [more, setMore] = useState<{ from: string | null; data: T[]; next: string | null } | null>(null);
  const [state, setState] = useState<{ isLoading: boolean; problem: ApiProblem | null }>({
    isLoading: false,
    problem: null,
  });
  // Further pages stay valid while the first page ends at the same cursor.
  const further = more !== null && first.data !== undefined && more.from === first.data.next ? more : null;
  const next = further === null ? (first.data?.next ?? null) : further.next;
  const loadMore = () => {
    if (path === null || next === null || state.isLoading) return;
    setState({ isLoading: true, problem: null });
    call<{ data: T[]; next: string | null }>(
      'GET',
      `${path}${path.includes('?') ? '&' : '?'}after=${encodeURIComponent(next)}`,
    ).then(
      (page) => {
        setMore({ from: first.data?.next ?? null, data: [...(further?.data ?? []), ...page.data], next: page.next });
        setState({ isLoading: false, problem: null });
      },
      (error: unknown) => setState({ isLoading: false, problem: toProblem(error) }),
    );
  };
  return {
    data: first.data === undefined ? undefined : [...first.data.data, ...(further?.data ?? [])],
    problem: first.problem ?? state.problem,
    isLoading: first.isLoading || state.isLoading,
    hasMore: next !== null,
    loadMore,
    reload: first.reload,
  };
}

export interface Action<A extends unknown[]> {
  isBusy: boolean;
  problem: ApiProblem | null;
  /** Resolves to whether the action succeeded. A call during another call does nothing. */
  run: (...args: A) => Promise<boolean>;
  clear: () => void;
}

/** Wraps a change with its busy state and its last problem. */
export function useAction<A extends unknown[]>(act: (...args: A) => Promise<void>): Action<A> {
  const [state, setState] = useState<{ isBusy: boolean; problem: ApiProblem | null }>({ isBusy: false, problem: null });
  const isRunning = useRef(false);
  const run = async (...args: A): Promise<boolean> => {
    if (isRunning.current) return false;
    isRunning.current = true;
    setState({ isBusy: true, problem: null });
    try {
      await act(...args);
      setState({ isBusy: false, problem: null });
      return true;
    } catch (error) {
      setState({ isBusy: false, problem: toProblem(error) });
      return false;
    } finally {
      isRunning.current = false;
    }
  };
  return { ...state, run, clear: () => setState({ isBusy: false, problem: null }) };
}
