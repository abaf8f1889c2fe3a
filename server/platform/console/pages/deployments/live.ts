import { useCallback, useEffect, useRef } from 'preact/hooks';
import type { Deployment } from '../../../api/objects';
import { type LiveState, useLive } from '../../api/live';
import type { Resource } from '../../api/resource';
import { isMoving } from '../../format/states';

const SETTLE_MS = 150;
/** Poll interval while the stream is lost. */
const POLL_MS = 4_000;

/** Combines several calls within SETTLE_MS into one. */
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
  return useCallback(() => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      latest.current();
    }, SETTLE_MS);
  }, []);
}

/** Reloads on every event of the stream. Polls while the stream is lost and the state is expected to change. */
export function useLiveReload(path: string, isUnderWay: boolean, reload: () => void): LiveState {
  const soon = useSoon(reload);
  const state = useLive(path, soon);
  useEffect(() => {
    if (state === 'live' || !isUnderWay) return undefined;
    const timer = setInterval(soon, POLL_MS);
    return () => clearInterval(timer);
  }, [state, isUnderWay, soon]);
  return state;
}

export function useLiveDeployment(
  id: string,
  deployment: Resource<Deployment>,
  alsoReload: () => void = () => undefined,
): LiveState {
  const isUnderWay = deployment.data !== undefined && isMoving(deployment.data.state);
  return useLiveReload(`/deployments/${id}/events/stream`, isUnderWay, () => {
    deployment.reload();
    alsoReload();
  });
}
