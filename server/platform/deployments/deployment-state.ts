import { isComingUp, isInactive, isServing, type VersionState } from './version-state';

/** The states of a deployment as the API shows them. */
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

/** The state that the owner wants. */
export type DesiredState = 'running' | 'paused' | 'deleted';

export interface DeploymentFacts {
  desired: DesiredState;
  /** It forwards to an upstream server and has no versions. */
  isUpstream?: boolean;
  /** The version that serves or starts. Undefined before the first version. */
  active?: { state: VersionState; isWaking: boolean };
  /** During a roll-out: the version that will replace the active one. */
  target?: { state: VersionState };
  /** Whether any version was ever ready. */
  wasReady: boolean;
}

/** Derives the observed state from the desired state and the states of the versions. */
export function deploymentState({ desired, isUpstream, active, target, wasReady }: DeploymentFacts): DeploymentState {
  if (desired === 'deleted') return 'deleting';
  if (desired === 'paused')
    return active === undefined || active.state === 'stopped' || active.state === 'error' ? 'paused' : 'stopping';
  if (isUpstream === true) return 'running';
  if (target !== undefined && !(isInactive(target.state) && active !== undefined && isAsleep(active)))
    return rolloutState(active?.state, target.state, wasReady);
  if (active === undefined) return 'pending';
  return activeState(active.state, active.isWaking, wasReady);
}

/** Returns whether the gateway holds requests for this version. A failed roll-out does not change that. */
function isAsleep({ state, isWaking }: { state: VersionState; isWaking: boolean }): boolean {
  return state === 'idle' || (isWaking && isComingUp(state));
}

/** The active version serves until the target is ready. With too little capacity for both, neither serves meanwhile. */
function rolloutState(active: VersionState | undefined, target: VersionState, wasReady: boolean): DeploymentState {
  // The old version may be starting again after it stopped for a target that then failed.
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
    // A deployment that never served is not degraded. It stays pending, with the reason of the last exit.
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

/** What the gateway does with a request to the deployment's URL. */
export type UrlBehaviour =
  | { type: 'serve' }
  | { type: 'hold' }
  | { type: 'refuse'; status: 404 | 503; code: string; retryAfterS: number | null };

/**
 * Returns what to do with a request. `canServe` means that some replica is ready. It outranks the state, because an old
 * version serves while a new one starts.
 */
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
