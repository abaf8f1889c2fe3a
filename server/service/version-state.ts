/** What a version of a deployment can be; the words are the interface's. */
export const VERSION_STATES = [
  'queued',
  'preparing',
  'starting',
  'running',
  'degraded',
  'idle',
  'backoff',
  'stopping',
  'stopped',
  'error',
] as const;
export type VersionState = (typeof VERSION_STATES)[number];

/** What people ask for; refused where it makes no sense. */
export const VERSION_COMMANDS = ['start', 'stop', 'wake', 'scaleToZero'] as const;
export type VersionCommand = (typeof VERSION_COMMANDS)[number];

/** What the scheduler, the driver and the clock report; late ones change nothing. */
export const VERSION_SIGNALS = [
  'granted',
  'queueExpired',
  'started',
  'prepareFailed',
  'ready',
  'startExpired',
  'replicaLost',
  'exited',
  'retry',
  'giveUp',
  'ended',
] as const;
export type VersionSignal = (typeof VERSION_SIGNALS)[number];

export type VersionEvent = VersionCommand | VersionSignal;

/** Where each event leads. What is not here does not happen. */
export const VERSION_TRANSITIONS: Readonly<
  Record<VersionState, Readonly<Partial<Record<VersionEvent, VersionState>>>>
> = {
  /** Accepted; waits for a GPU, quota or an earlier operation. */
  queued: { granted: 'preparing', queueExpired: 'error', stop: 'stopped' },
  /** Image and data are checked, home is copied, the process made. */
  preparing: { started: 'starting', prepareFailed: 'error', stop: 'stopping' },
  /** The process lives and does not answer yet. */
  starting: { ready: 'running', exited: 'backoff', startExpired: 'error', stop: 'stopping' },
  /** Every replica that is wanted answers. */
  running: { replicaLost: 'degraded', exited: 'backoff', scaleToZero: 'idle', stop: 'stopping' },
  /** Some answer. */
  degraded: { ready: 'running', exited: 'backoff', stop: 'stopping' },
  /** No replicas, on purpose. */
  idle: { wake: 'queued', stop: 'stopping' },
  /** All replicas ended by themselves; a new start is due. */
  backoff: { retry: 'starting', giveUp: 'error', stop: 'stopping' },
  /** Takes no new requests, and ends. */
  stopping: { ended: 'stopped' },
  stopped: { start: 'queued' },
  error: { start: 'queued' },
};

export const ERROR_REASONS = [
  'image_missing',
  'data_binding_missing',
  'not_isolated',
  'insufficient_gpu',
  'insufficient_memory',
  'quota_exceeded',
  'port_80_not_bound',
  'wrong_port',
  'bound_to_loopback',
  'health_check_failed',
  'start_timeout',
  'crash_loop',
  'out_of_memory',
  'gpu_out_of_memory',
  'disk_full',
  'readiness_lost',
  'driver_lost',
  'cancelled',
] as const;
/** Why a version is in error; clients branch on it. */
export type ErrorReason = (typeof ERROR_REASONS)[number];

/** Only these may be started again, or deleted. */
export function isInactive(state: VersionState): boolean {
  return state === 'stopped' || state === 'error';
}

/** Whether requests are answered. */
export function isServing(state: VersionState): boolean {
  return state === 'running' || state === 'degraded';
}

/** The way to readiness. */
export function isComingUp(state: VersionState): boolean {
  return state === 'queued' || state === 'preparing' || state === 'starting';
}
