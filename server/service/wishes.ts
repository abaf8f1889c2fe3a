import { ServiceError } from './errors';
import { command } from './version-life';
import { isServing } from './version-state';
import { type DeploymentWork, findVersion, isRollingOut, queueVersion, type VersionWork } from './work';

/** What people ask of a deployment: each puts down the wish, and what follows is the controller's. @throws ServiceError `wrong_state` where it makes no sense. */
export const WISHES = { start, stop, restart, scaleToZero } as const;
export type Wish = keyof typeof WISHES;

/** Resumes what is paused, wakes what sleeps, and tries again what failed. */
function start(work: DeploymentWork, nowMs: number): void {
  const active = demandActive(work);
  if (work.desired === 'running' && active.life.state === 'idle') return wakeUp(active, nowMs);
  if (work.desired === 'running' && active.life.state !== 'error')
    throw new ServiceError('wrong_state', 'the deployment is not stopped');
  work.desired = 'running';
  if (active.life.state === 'error') queueVersion(active, nowMs);
}

/** Until somebody starts it again: requests do not wake it. */
function stop(work: DeploymentWork): void {
  if (work.desired === 'paused') throw new ServiceError('wrong_state', 'the deployment is stopped already');
  work.desired = 'paused';
}

/** Ends what runs and starts it anew, with a gap. */
function restart(work: DeploymentWork, nowMs: number): void {
  if (work.desired === 'paused') throw new ServiceError('wrong_state', 'the deployment is stopped: start it');
  if (isRollingOut(work)) throw new ServiceError('busy', 'a rollout is in progress');
  const active = demandActive(work);
  if (active.life.state === 'stopping' || active.life.state === 'stopped')
    throw new ServiceError('busy', 'it is restarting');
  if (active.life.state === 'error') queueVersion(active, nowMs);
  else active.life = command(active.life, 'stop', nowMs);
}

function scaleToZero(work: DeploymentWork, nowMs: number): void {
  if (isRollingOut(work)) throw new ServiceError('busy', 'a rollout is in progress');
  const active = demandActive(work);
  if (work.desired === 'paused' || !isServing(active.life.state))
    throw new ServiceError(
      'wrong_state',
      `a deployment whose version is ${active.life.state} cannot be scaled to zero: expected running`,
    );
  active.life = command({ ...active.life, state: 'running' }, 'scaleToZero', nowMs);
}

function demandActive(work: DeploymentWork): VersionWork {
  const active = findVersion(work, work.activeId);
  if (active === undefined) throw new ServiceError('wrong_state', 'the deployment has no version');
  return active;
}

/** From zero; true when it slept. */
export function wake(work: DeploymentWork, nowMs: number): boolean {
  const active = findVersion(work, work.activeId);
  if (work.desired !== 'running' || active?.life.state !== 'idle') return false;
  wakeUp(active, nowMs);
  return true;
}

function wakeUp(version: VersionWork, nowMs: number): void {
  version.life = { ...command(version.life, 'wake', nowMs), startedAt: null, readyAt: null };
  version.isWaking = true;
  version.queuedAt = nowMs;
}
