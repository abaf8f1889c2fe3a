import type { ExitCause, Misplaced, ReplicaAddress } from '../driver/driver';
import type { CanaryState } from '../canary/canary-schema';
import type { ReplicaState, Strategy } from '../store/deployment-schema';
import type { DeploymentState, DesiredState } from '../deployments/deployment-state';
import { command, type CrashPolicy, DEFAULT_CRASH_POLICY, type VersionStatus } from './version-status';
import type { UpstreamRecord } from '../upstreams/upstreams';
import type { Fallbacks } from '../deployments/fallbacks';
import { type ErrorReason, isInactive } from '../deployments/version-state';

/** A deployment with its versions and replicas, as the controller works on it. Read and written in one transaction. */
export interface DeploymentRecord {
  readonly id: string;
  readonly slug: string;
  readonly name: string;
  readonly aliases: readonly string[];
  readonly fallbacks: Fallbacks;
  /** In place of versions. */
  readonly upstream: UpstreamRecord | undefined;
  readonly createdMs: number;
  readonly ownerType: 'user' | 'org';
  readonly ownerId: string;
  readonly accessControl: boolean;
  desired: DesiredState;
  observed: DeploymentState;
  activeId: string | null;
  targetId: string | null;
  /** Overrides `strategy` for the current roll-out. */
  rolloutStrategy: Strategy | null;
  readonly strategy: Strategy;
  wasReady: boolean;
  desiredReplicas: number;
  readonly minReplicas: number;
  readonly maxReplicas: number;
  /** Null: never scales to zero automatically. */
  readonly idleTimeoutMs: number | null;
  readonly coldStartWaitMs: number;
  readonly cacheScope: 'key' | 'deployment';
  /** The canary of the roll-out. Null without one that runs. */
  canary: CanaryRecord | null;
  readonly versions: VersionRecord[];
}

export interface CanaryRecord {
  readonly versionId: string;
  readonly percent: number;
  readonly header: string | null;
  readonly keyIds: readonly string[];
  state: CanaryState;
  reason: string | null;
  decidedAt: number | null;
}

export interface VersionRecord {
  readonly id: string;
  readonly number: number;
  status: VersionStatus;
  isWaking: boolean;
  homeState: 'none' | 'pending' | 'ready';
  /** A model from the hub that it needs and that is not complete. */
  readonly download: PendingDownload | null;
  queuedAt: number;
  readonly resources: ReplicaResources;
  readonly startDeadlineMs: number;
  readonly graceMs: number;
  readonly isBuiltin: boolean;
  /** What the prefix cache of a replica may take on the disk; 0: it is only in memory. */
  readonly prefixCacheMb: number;
  /** Whether the end of its log has been saved after an error. */
  readonly hasLastLines: boolean;
  replicas: ReplicaRecord[];
}

export interface PendingDownload {
  hasFailed: boolean;
  /** What is downloaded, or why that failed. Shown to users. */
  message: string;
}

/** The resources of one replica. */
export interface ReplicaResources {
  readonly gpuCount: number;
  /** Null: any. */
  readonly gpuType: string | null;
  readonly cpuMillis: number;
  readonly memoryMb: number;
}

export interface ReplicaRecord {
  readonly id: string;
  readonly ordinal: number;
  state: ReplicaState;
  /** The gateway authenticates to the built-in runtime with it. Encrypted. */
  readonly secret: string;
  reference: string | null;
  address: ReplicaAddress | null;
  readonly cpuMillis: number;
  readonly memoryMb: number;
  readonly gpuUuids: readonly string[];
  /** Consecutive restarts. */
  restarts: number;
  misplaced: Misplaced | null;
  /** Whether another machine runs it, or ran it. */
  readonly isElsewhere: boolean;
  /** Whether no process of it is left. Until then a replacement must not use its GPUs. */
  isGone: boolean;
  /** When an exited replica is replaced. */
  retryAt: number | null;
  startedAt: number | null;
  readyAt: number | null;
  unreadyAt: number | null;
  readonly createdAt: number;
}

/** What the controller observed. Late observations change nothing. */
export type Observation =
  | { type: 'homeReady'; versionId: string }
  | { type: 'homeFailed'; versionId: string; message: string }
  | { type: 'started'; replicaId: string; reference: string; address: ReplicaAddress }
  | { type: 'notStarted'; replicaId: string; reason: ErrorReason; message: string }
  | { type: 'ready'; replicaId: string }
  | { type: 'unready'; replicaId: string }
  | ({ type: 'misplaced'; replicaId: string } & Misplaced)
  | { type: 'placed'; replicaId: string }
  | {
      type: 'exited';
      replicaId: string;
      exitCode: number | null;
      cause?: ExitCause;
      message: string;
      wasStopped: boolean;
      /** See {@link ReplicaEvent}. */
      refusedFlag?: boolean;
    }
  /** Not running any more after a restart of the service, for example because the machine rebooted. */
  | { type: 'lost'; replicaId: string }
  /** None of its processes is left. */
  | { type: 'gone'; replicaId: string };

/** The load of a deployment. */
export interface Activity {
  numOpen: number;
  /** When a request last started or ended, or this process started. */
  lastAt: number;
  /** The minimum over the last {@link ControlPolicy.scaleUpAfterMs}. */
  minOpen: number;
  /** The maximum over the last {@link ControlPolicy.scaleDownAfterMs}. */
  maxOpen: number;
}

export interface ControlPolicy {
  crash: CrashPolicy;
  /** A version that is queued for longer fails. */
  queueDeadlineMs: number;
  /** A training container whose process does not exist after this time fails. */
  prepareDeadlineMs: number;
  /** A replica that is unready for longer is restarted. */
  unreadyDeadlineMs: number;
  /** Open requests that one replica should have. */
  openPerReplica: number;
  /** Adds replicas when the load was higher for all of this time. */
  scaleUpAfterMs: number;
  /** Removes replicas when the load was lower for all of this time. */
  scaleDownAfterMs: number;
}

export const DEFAULT_CONTROL_POLICY: ControlPolicy = {
  crash: DEFAULT_CRASH_POLICY,
  queueDeadlineMs: 1_800_000,
  prepareDeadlineMs: 1_200_000,
  unreadyDeadlineMs: 300_000,
  openPerReplica: 8,
  scaleUpAfterMs: 5_000,
  scaleDownAfterMs: 300_000,
};

/** Returns whether the replica has or may have a process and should keep it. */
export function isLive({ state }: ReplicaRecord): boolean {
  return state === 'created' || state === 'starting' || state === 'ready' || state === 'unready';
}

/** Returns whether some replicas of `before` are not in `after`. */
export function lacksAny(before: readonly ReplicaRecord[], after: readonly ReplicaRecord[]): boolean {
  return before.some(({ id }) => !after.some((replica) => replica.id === id));
}

export function findVersion(deployment: DeploymentRecord, id: string | null): VersionRecord | undefined {
  return id === null ? undefined : deployment.versions.find((version) => version.id === id);
}

/** Returns the replicas that can serve requests. */
export function readyReplicas(version: VersionRecord | undefined): ReplicaRecord[] {
  return version?.replicas.filter(({ state, address }) => state === 'ready' && address !== null) ?? [];
}

/** Returns the minimum number of replicas while the deployment is not scaled to zero. */
export function minAwakeReplicas({ minReplicas }: DeploymentRecord): number {
  return Math.max(1, minReplicas);
}

/** Returns how many replicas the deployment should have now, within its bounds. */
export function desiredWithin(deployment: DeploymentRecord): number {
  return Math.min(deployment.maxReplicas, Math.max(minAwakeReplicas(deployment), deployment.desiredReplicas));
}

/** Returns whether there is a target version that can still become active. */
export function isRollingOut(deployment: DeploymentRecord): boolean {
  const target = findVersion(deployment, deployment.targetId);
  return target !== undefined && !isInactive(target.status.state);
}

/** Queues an inactive version. */
export function queueVersion(version: VersionRecord, nowMs: number): void {
  if (!isInactive(version.status.state)) return;
  version.status = command(version.status, 'start', nowMs);
  version.queuedAt = nowMs;
}

/** Starts stopping a version unless it is stopping or inactive. */
export function stopVersion(version: VersionRecord, nowMs: number): void {
  if (!isInactive(version.status.state) && version.status.state !== 'stopping')
    version.status = command(version.status, 'stop', nowMs);
  version.isWaking = false;
}
