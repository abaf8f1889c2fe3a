import { isServing } from '../deployments/version-state';
import type { ReconcileContext } from './reconcile-context';
import { type DeploymentRecord, isLive, minAwakeReplicas, type ReplicaRecord, type VersionRecord } from './records';
import { addReplica, freeOrdinal } from './replicas';
import { command, signal } from './version-status';

/** Sets the desired number of replicas from the open requests, then adds or stops replicas of the active version. */
export function scale(deployment: DeploymentRecord, active: VersionRecord, context: ReconcileContext): void {
  if (!isServing(active.status.state)) return;
  const { activity, policy, pool } = context;
  const clamp = (count: number) => Math.min(deployment.maxReplicas, Math.max(minAwakeReplicas(deployment), count));
  deployment.desiredReplicas = clamp(deployment.desiredReplicas);
  // Scale up on the minimum of a short window and down on the maximum of a long one, so that spikes change nothing.
  const scaleUpTo = clamp(Math.ceil(activity.minOpen / policy.openPerReplica));
  const scaleDownTo = clamp(Math.ceil(activity.maxOpen / policy.openPerReplica));
  if (scaleUpTo > deployment.desiredReplicas) deployment.desiredReplicas = scaleUpTo;
  else if (scaleDownTo < deployment.desiredReplicas) deployment.desiredReplicas = scaleDownTo;

  const kept = active.replicas.filter((replica) => isLive(replica) || replica.state === 'exited');
  const hasCapacity = () => pool.shortage(active.resources, 1) === undefined;
  for (let count = kept.length; count < deployment.desiredReplicas && hasCapacity(); count++)
    addReplica(active, freeOrdinal(active), context);
  for (const replica of kept.sort(byKeepOrder).slice(deployment.desiredReplicas)) replica.state = 'stopping';

  const numReady = active.replicas.filter(({ state }) => state === 'ready').length;
  if (active.status.state === 'degraded' && numReady >= deployment.desiredReplicas)
    active.status = signal(active.status, 'ready', context.nowMs);
}

/** Scales to zero when no request was open for the idle timeout. */
export function scaleToZeroWhenIdle(
  { idleTimeoutMs }: DeploymentRecord,
  active: VersionRecord,
  { nowMs, activity }: ReconcileContext,
): void {
  if (idleTimeoutMs === null || active.status.state !== 'running' || activity.numOpen > 0) return;
  if (nowMs >= Math.max(activity.lastAt, active.status.readyAt ?? 0) + idleTimeoutMs)
    active.status = command(active.status, 'scaleToZero', nowMs);
}

const KEEP_ORDER = ['ready', 'unready', 'starting', 'created', 'exited'];

/** Sorts replicas to keep first: ready ones, then those with the lowest ordinal. */
function byKeepOrder(a: ReplicaRecord, b: ReplicaRecord): number {
  return KEEP_ORDER.indexOf(a.state) - KEEP_ORDER.indexOf(b.state) || a.ordinal - b.ordinal;
}
