import { useEffect, useRef, useState } from 'preact/hooks';
import { openStream } from './client';
import { ApiProblem } from './problem';
import { readEvents, type SseEvent } from './sse';

export type LiveState = 'connecting' | 'live' | 'lost';

const MIN_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;

/** Exponential backoff with jitter, so that pages do not all reconnect at the same moment. */
function waitBefore(attempt: number, random: number): number {
  return Math.min(MAX_WAIT_MS, MIN_WAIT_MS * 2 ** Math.min(attempt, 10)) * (0.5 + random / 2);
}

/** How long a page must be hidden before it closes its stream. */
const HIDDEN_MS = 20_000;

/**
 * Follows a stream of events until `signal` aborts. Reconnects with the id of the last event, so that none is missed.
 * Returns if the service refuses permanently. Pauses while the page is hidden, because a browser limits the number of
 * connections to one server across all its pages.
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
    const { whileVisible, stop } = abortWhileHidden(signal);
    try {
      const body = await openStream('GET', path, {
        signal: whileVisible,
        headers: id === '' ? {} : { 'Last-Event-ID': id },
      });
      onState('live');
      for await (const event of readEvents(body)) {
        if (signal.aborted) return;
        attempt = 0;
        if (event.id !== '') id = event.id;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      // An expired position restarts from the beginning. Other client errors are permanent.
      if (error instanceof ApiProblem && error.status === 416) id = '';
      else if (error instanceof ApiProblem && isPermanent(error.status)) return onState('lost');
    } finally {
      stop();
    }
    if (whileVisible.aborted) {
      await pageVisible(signal);
      attempt = -1;
      continue;
    }
    onState('lost');
    await pause(waitBefore(attempt, Math.random()), signal);
  }
}

function isPermanent(status: number): boolean {
  return status >= 400 && status < 500 && status !== 408 && status !== 429;
}

/** A signal that aborts with `signal`, and when the page has been hidden for HIDDEN_MS. */
function abortWhileHidden(signal: AbortSignal): { whileVisible: AbortSignal; stop: () => void } {
  const controller = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const end = () => controller.abort();
  const update = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(end, HIDDEN_MS);
  };
  update();
  signal.addEventListener('abort', end);
  document.addEventListener('visibilitychange', update);
  return {
    whileVisible: controller.signal,
    stop: () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      document.removeEventListener('visibilitychange', update);
    },
  };
}

function pageVisible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', check);
      signal.removeEventListener('abort', check);
      resolve();
    };
    document.addEventListener('visibilitychange', check);
    signal.addEventListener('abort', check);
    check();
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

/** Follows a stream while the component is mounted. A null path follows nothing. */
export function useLive(path: string | null, onEvent: (event: SseEvent) => void): LiveState {
  const [state, setState] = useState<LiveState>('connecting');
  const handler = useRef(onEvent);
  handler.current = onEvent;
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    setState('connecting');
    void follow(path, (event) => handler.current(event), setState, controller.signal);
    return () => controller.abort();
  }, [path]);
  return state;
}
