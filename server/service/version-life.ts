import type { ExitCause } from '../driver/driver';
import { ServiceError } from './errors';
import {
  type ErrorReason,
  type VersionCommand,
  type VersionSignal,
  VERSION_TRANSITIONS,
  type VersionState,
} from './version-state';

/** What is stored of a version's life. Times are UTC milliseconds. */
export interface VersionLife {
  readonly state: VersionState;
  /** Of the last error; in backoff, of the last end; in the queue, what it waits for; null otherwise. */
  readonly reason: ErrorReason | null;
  readonly message: string | null;
  readonly exitCode: number | null;
  /** Exits in a row, without {@link CrashPolicy.healthyMs} of readiness between them. */
  readonly numExits: number;
  /** In backoff: when the next start is due. */
  readonly retryAt: number | null;
  readonly startedAt: number | null;
  readonly readyAt: number | null;
  readonly endedAt: number | null;
}

export const NEW_VERSION: VersionLife = {
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
  /** The first delay; each further one is twice as long. */
  firstDelayMs: number;
  longestDelayMs: number;
  /** Readiness for this long makes earlier exits forgotten. */
  healthyMs: number;
  /** With this many exits in a row no more start is tried. */
  maxExits: number;
}

export const DEFAULT_CRASH_POLICY: CrashPolicy = {
  firstDelayMs: 10_000,
  longestDelayMs: 300_000,
  healthyMs: 600_000,
  maxExits: 5,
};

/** How the last replica ended. */
export interface Exit {
  exitCode: number | null;
  cause?: ExitCause | undefined;
  /** What is known of its cause, where that is more than its code. */
  reason?: ErrorReason;
  message?: string;
}

/** Why a version cannot go on; `message` is for people. */
export interface Failure {
  reason: ErrorReason;
  message: string;
}

/** @throws ServiceError `wrong_state` where the command makes no sense. */
export function command(life: VersionLife, wanted: VersionCommand, nowMs: number): VersionLife {
  const state = VERSION_TRANSITIONS[life.state][wanted];
  if (state === undefined) {
    const allowed = (Object.keys(VERSION_TRANSITIONS) as VersionState[]).filter(
      (candidate) => VERSION_TRANSITIONS[candidate][wanted] !== undefined,
    );
    throw new ServiceError(
      'wrong_state',
      `a version that is ${life.state} cannot ${wanted}: expected ${allowed.join(', ')}`,
    );
  }
  if (wanted === 'start') return { ...NEW_VERSION };
  return { ...life, state, retryAt: null, ...(state === 'stopped' ? { endedAt: nowMs } : {}) };
}

/** A signal that carries nothing. Where it does not belong any more, the life stays as it is. */
export function signal(
  life: VersionLife,
  name: Exclude<VersionSignal, 'exited' | 'prepareFailed' | 'queueExpired' | 'startExpired' | 'giveUp'>,
  nowMs: number,
): VersionLife {
  const state = VERSION_TRANSITIONS[life.state][name];
  if (state === undefined) return life;
  switch (name) {
    case 'started':
      return { ...life, state, startedAt: nowMs, readyAt: null };
    case 'ready':
      return { ...life, state, readyAt: life.readyAt ?? nowMs };
    case 'retry':
      return { ...life, state, reason: null, message: null, retryAt: null, startedAt: nowMs, readyAt: null };
    case 'ended':
      return { ...life, state, endedAt: nowMs };
    default:
      return { ...life, state };
  }
}

/** A version that cannot come up. */
export function fail(
  life: VersionLife,
  name: Extract<VersionSignal, 'prepareFailed' | 'queueExpired' | 'startExpired'>,
  failure: Failure,
  nowMs: number,
): VersionLife {
  return VERSION_TRANSITIONS[life.state][name] === undefined ? life : toError(life, failure, nowMs);
}

/** The last replica ended by itself: another start is due after a while, unless there were too many. Being slow to start is never an exit. */
export function exited(
  life: VersionLife,
  exit: Exit,
  nowMs: number,
  policy: CrashPolicy = DEFAULT_CRASH_POLICY,
): VersionLife {
  const state = VERSION_TRANSITIONS[life.state].exited;
  if (state === undefined) return life;
  const wasHealthy = life.readyAt !== null && nowMs - life.readyAt >= policy.healthyMs;
  const numExits = wasHealthy ? 1 : life.numExits + 1;
  const failure = exitFailure(exit, numExits);
  const waiting: VersionLife = {
    ...life,
    ...failure,
    state,
    numExits,
    exitCode: exit.exitCode,
    readyAt: null,
    retryAt: nowMs + retryDelayMs(numExits, policy),
  };
  return numExits >= policy.maxExits ? toError(waiting, failure, nowMs) : waiting;
}

/** After that many exits in a row. */
export function retryDelayMs(
  numExits: number,
  { firstDelayMs, longestDelayMs }: CrashPolicy = DEFAULT_CRASH_POLICY,
): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** (numExits - 1));
}

function toError(life: VersionLife, { reason, message }: Failure, nowMs: number): VersionLife {
  return { ...life, state: 'error', reason, message, retryAt: null, endedAt: nowMs };
}

function exitFailure({ exitCode, cause, reason = cause ?? 'crash_loop', message }: Exit, numExits: number): Failure {
  const times = numExits === 1 ? 'ended once' : `ended ${numExits} times`;
  if (message !== undefined) return { reason, message: `${times}: ${message}` };
  return {
    reason,
    message: `${times}, the last time with ${exitCode === null ? 'a signal' : `exit code ${exitCode}`}`,
  };
}
