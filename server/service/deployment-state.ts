import { isComingUp, isInactive, isServing, type VersionState } from './version-state';

/** What the console shows of a deployment. */
export const DEPLOYMENT_STATES = [
  'pending',
  'running',
  'updating',
  'update_failed',
  'degraded',
  'scaled_to_zero',
  'paused',
  'stopping',
  'deleting',
  'failed',
] as const;
export type DeploymentState = (typeof DEPLOYMENT_STATES)[number];

/** What its owner wants. */
export type DesiredState = 'running' | 'paused' | 'deleted';

export interface DeploymentFacts {
  desired: DesiredState;
  /** The version that serves, or is to; undefined before the first. */
  active?: { state: VersionState; isWaking: boolean };
  /** Of a rollout: the version that is to replace the active one. */
  target?: { state: VersionState };
  /** Whether any version was ever ready. */
  wasReady: boolean;
}

/** Follows from the versions and the wish, and from nothing else. */
export function deploymentState({ desired, active, target, wasReady }: DeploymentFacts): DeploymentState {
  if (desired === 'deleted') return 'deleting';
  if (desired === 'paused')
    return active === undefined || active.state === 'stopped' || active.state === 'error' ? 'paused' : 'stopping';
  if (target !== undefined && !(isInactive(target.state) && active !== undefined && isAsleep(active)))
    return rolloutState(active?.state, target.state, wasReady);
  if (active === undefined) return 'pending';
  return activeState(active.state, active.isWaking, wasReady);
}

/** Requests are held for it, whatever became of a rollout. */
function isAsleep({ state, isWaking }: { state: VersionState; isWaking: boolean }): boolean {
  return state === 'idle' || (isWaking && isComingUp(state));
}

/** The old version serves on until the new one is ready; where there was no room for both, nothing serves meanwhile. */
function rolloutState(active: VersionState | undefined, target: VersionState, wasReady: boolean): DeploymentState {
  // An old version that made room for one that failed is on its way back.
  const oldServes =
    active !== undefined && (isServing(active) || isComingUp(active) || active === 'idle' || active === 'backoff');
  if (target === 'error' || target === 'stopped') return oldServes ? 'update_failed' : 'failed';
  return oldServes || wasReady ? 'updating' : 'pending';
}

function activeState(state: VersionState, isWaking: boolean, wasReady: boolean): DeploymentState {
  if (isComingUp(state)) return isWaking ? 'scaled_to_zero' : 'pending';
  switch (state) {
    case 'running':
      return 'running';
    case 'degraded':
      return 'degraded';
    // What never served is not less of what it was: it comes up, with a reason why it takes so long.
    case 'backoff':
      return wasReady ? 'degraded' : 'pending';
    case 'idle':
      return 'scaled_to_zero';
    case 'stopping':
    case 'stopped':
      return state === 'stopping' ? 'stopping' : 'paused';
    default:
      return 'failed';
  }
}

/** What becomes of a request to the deployment's URL. */
export type UrlBehaviour =
  | { type: 'serve' }
  | { type: 'hold' }
  | { type: 'refuse'; status: 404 | 503; code: string; retryAfterS: number | null };

/** `canServe`: some replica answers right now. It goes before the state: an old version serves while a new one comes up. */
export function urlBehaviour(state: DeploymentState, canServe: boolean): UrlBehaviour {
  if (state === 'deleting') return { type: 'refuse', status: 404, code: 'deployment_not_found', retryAfterS: null };
  if (state === 'paused') return refuse('deployment_paused', null);
  if (state === 'stopping') return refuse('deployment_stopping', null);
  if (canServe) return { type: 'serve' };
  if (state === 'scaled_to_zero') return { type: 'hold' };
  return state === 'failed' ? refuse('deployment_failed', null) : refuse('deployment_not_ready', NOT_READY_RETRY_S);
}

const NOT_READY_RETRY_S = 5;

function refuse(code: string, retryAfterS: number | null): UrlBehaviour {
  return { type: 'refuse', status: 503, code, retryAfterS };
}
