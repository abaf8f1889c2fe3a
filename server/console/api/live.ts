import { useEffect, useRef, useState } from 'preact/hooks';
import { openStream } from './client';
import { ApiProblem } from './problem';
import { readEvents, type SseEvent } from './sse';

export type LiveState = 'connecting' | 'live' | 'lost';

const MIN_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;

/** How long to wait before the next attempt; some of it by chance, so that not all pages come back at once. */
export function waitBefore(attempt: number, random: number): number {
  return Math.min(MAX_WAIT_MS, MIN_WAIT_MS * 2 ** Math.min(attempt, 10)) * (0.5 + random / 2);
}

/** Longer than a look at another window. */
const HIDDEN_MS = 20_000;

/**
 * Follows a stream of events until the signal: comes back after a break with the id of the last event, so that none is missed. Ends by itself
 * where the interface refuses for good. Rests while the page is hidden: browsers open only a few connections to one place for all their pages.
 */
export async function follow(
  path: string,
  onEvent: (event: SseEvent) => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
  lastId = '',
): Promise<void> {
  let id = lastId;
  for (let attempt = 0; !signal.aborted; attempt++) {
    const { rest, stop } = restWhileHidden(signal);
    try {
      const body = await openStream('GET', path, { signal: rest, headers: id === '' ? {} : { 'Last-Event-ID': id } });
      onState('live');
      for await (const event of readEvents(body)) {
        if (signal.aborted) return;
        attempt = 0;
        if (event.id !== '') id = event.id;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      // Positions that have expired are begun anew; what is forbidden stays so.
      if (error instanceof ApiProblem && error.status === 416) id = '';
      else if (
        error instanceof ApiProblem &&
        error.status >= 400 &&
        error.status < 500 &&
        error.status !== 429 &&
        error.status !== 408
      )
        return onState('lost');
    } finally {
      stop();
    }
    if (rest.aborted) {
      await visible(signal);
      attempt = -1;
      continue;
    }
    onState('lost');
    await pause(waitBefore(attempt, Math.random()), signal);
  }
}

/** Aborted with the other, and once the page is hidden for a while. */
function restWhileHidden(signal: AbortSignal): { rest: AbortSignal; stop: () => void } {
  const controller = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const end = () => controller.abort();
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(end, HIDDEN_MS);
  };
  look();
  signal.addEventListener('abort', end);
  document.addEventListener('visibilitychange', look);
  return {
    rest: controller.signal,
    stop: () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      document.removeEventListener('visibilitychange', look);
    },
  };
}

function visible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', look);
      signal.removeEventListener('abort', look);
      resolve();
    };
    document.addEventListener('visibilitychange', look);
    signal.addEventListener('abort', look);
    look();
  });
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener('online', done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    addEventListener('online', done);
    signal.addEventListener('abort', done);
  });
}

/** Follows a stream while the component is shown; null follows nothing. */
export function useLive(path: string | null, onEvent: (event: SseEvent) => void, lastId?: string): LiveState {
  const [state, setState] = useState<LiveState>('connecting');
  const handler = useRef(onEvent);
  handler.current = onEvent;
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    setState('connecting');
    void follow(path, (event) => handler.current(event), setState, controller.signal, lastId);
    return () => controller.abort();
  }, [path]);
  return state;
}
