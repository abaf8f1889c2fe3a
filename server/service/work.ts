import type { ExitCause, Misplaced, ReplicaAddress } from '../driver/driver';
import type { ReplicaState, Strategy } from './deployment-schema';
import type { DeploymentState, DesiredState } from './deployment-state';
import { command, type CrashPolicy, DEFAULT_CRASH_POLICY, type VersionLife } from './version-life';
import { type ErrorReason, isInactive } from './version-state';

/** A deployment with all that runs for it, as the controller works on it; read and written as a whole, in one transaction. */
export interface DeploymentWork {
  readonly id: string;
  readonly slug: string;
  readonly ownerType: 'user' | 'org';
  readonly ownerId: string;
  readonly accessControl: boolean;
  desired: DesiredState;
  observed: DeploymentState;
  activeId: string | null;
  targetId: string | null;
  /** Of the rollout under way, where it differs from the deployment's. */
  rolloutStrategy: Strategy | null;
  readonly strategy: Strategy;
  wasReady: boolean;
  wanted: number;
  readonly min: number;
  readonly max: number;
  /** Null: never scaled to zero by itself. */
  readonly idleTimeoutMs: number | null;
  readonly coldStartWaitMs: number;
  readonly cacheScope: 'key' | 'deployment';
  readonly versions: VersionWork[];
}

export interface VersionWork {
  readonly id: string;
  readonly number: number;
  life: VersionLife;
  isWaking: boolean;
  homeState: 'none' | 'pending' | 'ready';
  queuedAt: number;
  readonly needs: Needs;
  readonly startDeadlineMs: number;
  readonly graceMs: number;
  readonly isBuiltin: boolean;
  /** Whether the end of its log is stored with its error. */
  readonly hasLastLines: boolean;
  replicas: ReplicaWork[];
}

/** What one replica takes. */
export interface Needs {
  readonly gpuCount: number;
  /** Null: any. */
  readonly gpuType: string | null;
  readonly memoryMb: number;
}

export interface ReplicaWork {
  readonly id: string;
  readonly ordinal: number;
  state: ReplicaState;
  /** What callers prove themselves with to the built-in runtime; sealed. */
  readonly secret: string;
  reference: string | null;
  address: ReplicaAddress | null;
  readonly memoryMb: number;
  readonly gpuUuids: readonly string[];
  /** How often this place was started again in a row. */
  restarts: number;
  misplaced: Misplaced | null;
  /** Of one that exited while others run: when its place is filled again. */
  retryAt: number | null;
  startedAt: number | null;
  readyAt: number | null;
  unreadyAt: number | null;
  readonly createdAt: number;
}

/** What happened to what runs, told to the deployment by the controller. Late ones change nothing. */
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
    }
  /** It was gone when this process came back: ended by nobody knows what, such as a restart of the machine. */
  | { type: 'lost'; replicaId: string }
  /** Told to stop, and nothing is left of it. */
  | { type: 'gone'; replicaId: string };

/** What requests do. */
export interface Activity {
  numOpen: number;
  /** When a request last began or ended, or this process started. */
  lastAt: number;
  /** The least that was open over the last {@link ControlPolicy.scaleUpAfterMs}, and the most over the last {@link ControlPolicy.scaleDownAfterMs}. */
  leastOpen: number;
  mostOpen: number;
}

export interface ControlPolicy {
  crash: CrashPolicy;
  /** After that long in the queue a version is in error. */
  queueDeadlineMs: number;
  /** One that lives and does not answer for that long is ended. */
  unreadyDeadlineMs: number;
  /**
   * How replicas follow the load, between the deployment's bounds: one for each so many open requests. More of them once that many were open all the time for {@link scaleUpAfterMs}, fewer once
   * it was never more for {@link scaleDownAfterMs}. A replica more is never waited for: where there is no room, those there are do.
   */
  openPerReplica: number;
  scaleUpAfterMs: number;
  scaleDownAfterMs: number;
}

export const DEFAULT_CONTROL_POLICY: ControlPolicy = {
  crash: DEFAULT_CRASH_POLICY,
  queueDeadlineMs: 1_800_000,
  unreadyDeadlineMs: 300_000,
  openPerReplica: 8,
  scaleUpAfterMs: 5_000,
  scaleDownAfterMs: 300_000,
};

/** Of a deployment with no least number of replicas and no idle time of its own. */
export const DEFAULT_IDLE_TIMEOUT_S = 900;

/** It has, or may have, a process. */
export function isLive({ state }: ReplicaWork): boolean {
  return state === 'created' || state === 'starting' || state === 'ready' || state === 'unready';
}

export function findVersion(work: DeploymentWork, id: string | null): VersionWork | undefined {
  return id === null ? undefined : work.versions.find((version) => version.id === id);
}

/** What a version answers requests with. */
export function readyReplicas(version: VersionWork | undefined): ReplicaWork[] {
  return version?.replicas.filter(({ state, address }) => state === 'ready' && address !== null) ?? [];
}

export function leastReplicas({ min }: DeploymentWork): number {
  return Math.max(1, min);
}

/** A target that can still replace the active version. */
export function isRollingOut(work: DeploymentWork): boolean {
  const target = findVersion(work, work.targetId);
  return target !== undefined && !isInactive(target.life.state);
}

/** From rest. */
export function queueVersion(version: VersionWork, nowMs: number): void {
  if (!isInactive(version.life.state)) return;
  version.life = command(version.life, 'start', nowMs);
  version.queuedAt = nowMs;
}
