import { useEffect, useRef } from 'preact/hooks';
import type { Deployment } from '../../../api/objects';
import { type LiveState, useLive } from '../../api/live';
import type { Resource } from '../../api/resource';
import { isMoving } from '../../format/states';

const SETTLE_MS = 150;
/** While something moves and the stream is lost. */
const POLL_MS = 4_000;

/** Calls soon, once for many calls. */
function useSoon(act: () => void): () => void {
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const latest = useRef(act);
  latest.current = act;
  useEffect(
    () => () => {
      if (timer.current !== null) clearTimeout(timer.current);
    },
    [],
  );
  return () => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      latest.current();
    }, SETTLE_MS);
  };
}

/** Loads anew what an event says has changed; asks by the clock while the stream is lost and something is under way. */
export function useLiveReload(path: string, isUnderWay: boolean, reload: () => void): LiveState {
  const soon = useSoon(reload);
  const state = useLive(path, soon);
  useEffect(() => {
    if (state === 'live' || !isUnderWay) return undefined;
    const timer = setInterval(soon, POLL_MS);
    return () => clearInterval(timer);
  }, [state, isUnderWay]);
  return state;
}

export function useLiveDeployment(
  id: string,
  deployment: Resource<Deployment>,
  alsoReload: () => void = () => undefined,
): LiveState {
  const moves = deployment.data !== undefined && isMoving(deployment.data.state);
  return useLiveReload(`/deployments/${id}/events/stream`, moves, () => {
    deployment.reload();
    alsoReload();
  });
}
