import { ServiceError } from '../store/errors';
import { command } from './version-status';
import { isServing } from '../deployments/version-state';
import { type DeploymentRecord, findVersion, isRollingOut, queueVersion, type VersionRecord } from './records';

/**
 * Commands of users. Each one changes the desired state, and the controller does the rest.
 * @throws ServiceError `wrong_state` or `busy` in states that do not allow the command.
 */
export const INTENTS = { start, stop, restart, scaleToZero } as const;
export type Intent = keyof typeof INTENTS;

/** Resumes a paused deployment, wakes one that is scaled to zero, or retries a failed one. */
function start(deployment: DeploymentRecord, nowMs: number): void {
  if (deployment.upstream !== undefined && deployment.desired === 'paused') {
    deployment.desired = 'running';
    return;
  }
  const active = demandActive(deployment);
  if (deployment.desired === 'running' && active.status.state === 'idle') return wakeUp(active, nowMs);
  if (deployment.desired === 'running' && active.status.state !== 'error')
    throw new ServiceError('wrong_state', 'the deployment is not stopped');
  deployment.desired = 'running';
  if (active.status.state === 'error') queueVersion(active, nowMs);
}

/** Pauses the deployment. Requests do not wake it. */
function stop(deployment: DeploymentRecord): void {
  if (deployment.desired === 'paused') throw new ServiceError('wrong_state', 'the deployment is already stopped');
  deployment.desired = 'paused';
}

/** Stops the active version and starts it again. It does not serve in between. */
function restart(deployment: DeploymentRecord, nowMs: number): void {
  if (deployment.desired === 'paused')
    throw new ServiceError('wrong_state', 'the deployment is stopped: start it instead');
  if (isRollingOut(deployment)) throw new ServiceError('busy', 'a roll-out is in progress: wait until it ends');
  const active = demandActive(deployment);
  if (active.status.state === 'stopping' || active.status.state === 'stopped')
    throw new ServiceError('busy', 'the deployment is already restarting');
  if (active.status.state === 'error') queueVersion(active, nowMs);
  else active.status = command(active.status, 'stop', nowMs);
}

function scaleToZero(deployment: DeploymentRecord, nowMs: number): void {
  if (isRollingOut(deployment)) throw new ServiceError('busy', 'a roll-out is in progress: wait until it ends');
  const active = demandActive(deployment);
  if (deployment.desired === 'paused' || !isServing(active.status.state))
    throw new ServiceError(
      'wrong_state',
      `cannot scale to zero: expected a running version, got ${active.status.state}`,
    );
  active.status = command({ ...active.status, state: 'running' }, 'scaleToZero', nowMs);
}

function demandActive(deployment: DeploymentRecord): VersionRecord {
  const active = findVersion(deployment, deployment.activeId);
  if (active === undefined)
    throw new ServiceError(
      'wrong_state',
      deployment.upstream === undefined
        ? 'the deployment has no version'
        : 'the deployment forwards to an upstream and has no replicas',
    );
  return active;
}

/** Wakes a deployment that is scaled to zero. Returns false if it is not. */
export function wake(deployment: DeploymentRecord, nowMs: number): boolean {
  const active = findVersion(deployment, deployment.activeId);
  if (deployment.desired !== 'running' || active?.status.state !== 'idle') return false;
  wakeUp(active, nowMs);
  return true;
}

function wakeUp(version: VersionRecord, nowMs: number): void {
  version.status = { ...command(version.status, 'wake', nowMs), startedAt: null, readyAt: null };
  version.isWaking = true;
  version.queuedAt = nowMs;
}
