import type { ExitCause } from '../driver/driver';
import { ServiceError } from '../store/errors';
import {
  type ErrorReason,
  type VersionCommand,
  type VersionSignal,
  VERSION_TRANSITIONS,
  type VersionState,
} from '../deployments/version-state';

/** The state of a version and how it got there. Times are UTC milliseconds. */
export interface VersionStatus {
  readonly state: VersionState;
  /** In `error` why it failed, in `backoff` why it exited, in `queued` what it waits for. Null in other states. */
  readonly reason: ErrorReason | null;
  readonly message: string | null;
  readonly exitCode: number | null;
  /** Consecutive exits. {@link CrashPolicy.healthyMs} of readiness reset the count. */
  readonly numExits: number;
  /** In `backoff`: the time of the next start. */
  readonly retryAt: number | null;
  readonly startedAt: number | null;
  readonly readyAt: number | null;
  readonly endedAt: number | null;
}

export const NEW_VERSION: VersionStatus = {
  state: 'queued',
  reason: null,
  message: null,
  exitCode: null,
  numExits: 0,
  retryAt: null,
  startedAt: null,
  readyAt: null,
  endedAt: null,
};

export interface CrashPolicy {
  /** The first backoff. Each further one is twice as long. */
  firstDelayMs: number;
  longestDelayMs: number;
  /** Being ready for this long resets the number of exits. */
  healthyMs: number;
  /** After this many consecutive exits the version is in error. */
  maxExits: number;
}

export const DEFAULT_CRASH_POLICY: CrashPolicy = {
  firstDelayMs: 10_000,
  longestDelayMs: 300_000,
  healthyMs: 600_000,
  maxExits: 5,
};

/** How a replica ended. */
export interface Exit {
  exitCode: number | null;
  cause?: ExitCause | undefined;
  /** A more specific reason than `crash_loop`. */
  reason?: ErrorReason;
  message?: string;
  /** Each further start would end in the same way. */
  isFinal?: boolean;
}

/** Why a version failed. `message` is shown to users. */
export interface Failure {
  reason: ErrorReason;
  message: string;
}

/** Applies a user's command. @throws ServiceError `wrong_state` if the state does not allow it. */
export function command(status: VersionStatus, name: VersionCommand, nowMs: number): VersionStatus {
  const state = VERSION_TRANSITIONS[status.state][name];
  if (state === undefined) {
    const allowed = (Object.keys(VERSION_TRANSITIONS) as VersionState[]).filter(
      (candidate) => VERSION_TRANSITIONS[candidate][name] !== undefined,
    );
    throw new ServiceError(
      'wrong_state',
      `${name}: expected a version in state ${allowed.join(' or ')}, got ${status.state}`,
    );
  }
  if (name === 'start') return { ...NEW_VERSION };
  return { ...status, state, retryAt: null, ...(state === 'stopped' ? { endedAt: nowMs } : {}) };
}

/** Applies a signal without data. Returns `status` itself if the state does not expect the signal. */
export function signal(
  status: VersionStatus,
  name: Exclude<VersionSignal, 'exited' | 'prepareFailed' | 'queueExpired' | 'startExpired' | 'giveUp'>,
  nowMs: number,
): VersionStatus {
  const state = VERSION_TRANSITIONS[status.state][name];
  if (state === undefined) return status;
  switch (name) {
    case 'started':
      return { ...status, state, startedAt: nowMs, readyAt: null };
    case 'ready':
      return { ...status, state, readyAt: status.readyAt ?? nowMs };
    case 'retry':
      return { ...status, state, reason: null, message: null, retryAt: null, startedAt: nowMs, readyAt: null };
    case 'ended':
      return { ...status, state, endedAt: nowMs };
    default:
      return { ...status, state };
  }
}

/** Moves a version that cannot start to `error`. */
export function fail(
  status: VersionStatus,
  name: Extract<VersionSignal, 'prepareFailed' | 'queueExpired' | 'startExpired'>,
  failure: Failure,
  nowMs: number,
): VersionStatus {
  return VERSION_TRANSITIONS[status.state][name] === undefined ? status : toError(status, failure, nowMs);
}

/**
 * Applies the exit of the last replica: backoff, or `error` after too many exits or a final first one. A slow start is
 * not an exit.
 */
export function exited(
  status: VersionStatus,
  exit: Exit,
  nowMs: number,
  policy: CrashPolicy = DEFAULT_CRASH_POLICY,
): VersionStatus {
  const state = VERSION_TRANSITIONS[status.state].exited;
  if (state === undefined) return status;
  const wasHealthy = status.readyAt !== null && nowMs - status.readyAt >= policy.healthyMs;
  const numExits = wasHealthy ? 1 : status.numExits + 1;
  const failure = exitFailure(exit, numExits);
  const waiting: VersionStatus = {
    ...status,
    ...failure,
    state,
    numExits,
    exitCode: exit.exitCode,
    readyAt: null,
    retryAt: nowMs + retryDelayMs(numExits, policy),
  };
  const isFinal = exit.isFinal === true && numExits === 1 && status.readyAt === null;
  return isFinal || numExits >= policy.maxExits ? toError(waiting, failure, nowMs) : waiting;
}

/** Returns the backoff after `numExits` consecutive exits. */
export function retryDelayMs(
  numExits: number,
  { firstDelayMs, longestDelayMs }: CrashPolicy = DEFAULT_CRASH_POLICY,
): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** (numExits - 1));
}

function toError(status: VersionStatus, { reason, message }: Failure, nowMs: number): VersionStatus {
  return { ...status, state: 'error', reason, message, retryAt: null, endedAt: nowMs };
}

function exitFailure({ exitCode, cause, reason = cause ?? 'crash_loop', message }: Exit, numExits: number): Failure {
  const times = numExits === 1 ? 'exited once' : `exited ${numExits} times`;
  if (message !== undefined) return { reason, message: `${times}: ${message}` };
  return {
    reason,
    message: `${times}, last ${exitCode === null ? 'by a signal' : `with exit code ${exitCode}`}`,
  };
}
