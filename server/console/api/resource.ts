import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { call } from './client';
import { type ApiProblem, toProblem } from './problem';

/** Something of the interface, as far as it is known. */
export interface Resource<T> {
  data: T | undefined;
  /** Of the last attempt; older data may be there all the same. */
  problem: ApiProblem | null;
  isLoading: boolean;
  reload: () => void;
  /** What a change answered. */
  set: (data: T) => void;
}

/** The last answers, so that going back shows something at once. */
const known = new Map<string, unknown>();
const MAX_KNOWN = 100;

export function forgetAll(): void {
  known.clear();
}

function remember(path: string, data: unknown): void {
  known.delete(path);
  known.set(path, data);
  if (known.size > MAX_KNOWN) known.delete(known.keys().next().value as string);
}

/** What is at a path of the interface; null is nothing yet. */
export function useResource<T>(path: string | null): Resource<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; problem: ApiProblem | null; isLoading: boolean }>(
    { path: null, problem: null, isLoading: true },
  );
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    const before = known.get(path) as T | undefined;
    setState((old) => ({
      path,
      data: old.path === path ? (old.data ?? before) : before,
      problem: null,
      isLoading: true,
    }));
    call<T>('GET', path, { signal: controller.signal }).then(
      (data) => {
        remember(path, data);
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
      if (path !== null) remember(path, data);
      setState({ path, data, problem: null, isLoading: false });
    },
    [path],
  );
  // The first render after the path has changed still has the state of the path before.
  const isCurrent = state.path === path;
  return {
    data: isCurrent ? state.data : path === null ? undefined : (known.get(path) as T | undefined),
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

/** A list, page by page; a change of the path begins anew. */
export function usePages<T>(path: string | null): PageList<T> {
  const first = useResource<{ data: T[]; next: string | null }>(path);
  const [more, setMore] = useState<{ from: string | null; data: T[]; next: string | null } | null>(null);
  const [state, setState] = useState<{ isLoading: boolean; problem: ApiProblem | null }>({
    isLoading: false,
    problem: null,
  });
  // What was loaded beyond the first page stays while the first page ends where it did.
  const own = more !== null && first.data !== undefined && more.from === first.data.next ? more : null;
  const next = own === null ? (first.data?.next ?? null) : own.next;
  const loadMore = () => {
    if (path === null || next === null || state.isLoading) return;
    setState({ isLoading: true, problem: null });
    call<{ data: T[]; next: string | null }>(
      'GET',
      `${path}${path.includes('?') ? '&' : '?'}after=${encodeURIComponent(next)}`,
    ).then(
      (page) => {
        setMore({ from: first.data?.next ?? null, data: [...(own?.data ?? []), ...page.data], next: page.next });
        setState({ isLoading: false, problem: null });
      },
      (error: unknown) => setState({ isLoading: false, problem: toProblem(error) }),
    );
  };
  return {
    data: first.data === undefined ? undefined : [...first.data.data, ...(own?.data ?? [])],
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
  /** Whether it went well. One at a time: while one runs, another does nothing. */
  run: (...args: A) => Promise<boolean>;
  clear: () => void;
}

/** A change, with what became of the last attempt. */
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
