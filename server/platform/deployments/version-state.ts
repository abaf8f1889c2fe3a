/** The states of a version, as the API spells them. */
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

/** Events from users. They are refused in states that do not allow them. */
export const VERSION_COMMANDS = ['start', 'stop', 'wake', 'scaleToZero'] as const;
export type VersionCommand = (typeof VERSION_COMMANDS)[number];

/** Events from the controller, the driver and the clock. They change nothing in states that do not expect them. */
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

/** The next state for each event. */
export const VERSION_TRANSITIONS: Readonly<
  Record<VersionState, Readonly<Partial<Record<VersionEvent, VersionState>>>>
> = {
  /** Waits for a GPU, memory, quota or an earlier operation. */
  queued: { granted: 'preparing', queueExpired: 'error', stop: 'stopped' },
  /** Checks the image and data, and creates the process. */
  preparing: { started: 'starting', prepareFailed: 'error', stop: 'stopping' },
  /** The process runs and is not ready yet. */
  starting: { ready: 'running', exited: 'backoff', startExpired: 'error', stop: 'stopping' },
  /** At least one replica is ready. */
  running: { replicaLost: 'degraded', exited: 'backoff', scaleToZero: 'idle', stop: 'stopping' },
  /** Some replicas are not ready. */
  degraded: { ready: 'running', exited: 'backoff', stop: 'stopping' },
  /** Scaled to zero. */
  idle: { wake: 'queued', stop: 'stopping' },
  /** All replicas exited. The next start waits until `retryAt`. */
  backoff: { retry: 'starting', giveUp: 'error', stop: 'stopping' },
  /** Takes no new requests. Open requests drain and the processes end. */
  stopping: { ended: 'stopped' },
  stopped: { start: 'queued' },
  error: { start: 'queued' },
};

export const ERROR_REASONS = [
  'image_missing',
  'data_binding_missing',
  'downloading_model',
  'model_download_failed',
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
  'disk_quota_exceeded',
  'readiness_lost',
  'driver_lost',
  'cancelled',
] as const;
/** Why a version is in error. Clients branch on these codes. */
export type ErrorReason = (typeof ERROR_REASONS)[number];

/** Returns whether a version may be started again or deleted. */
export function isInactive(state: VersionState): boolean {
  return state === 'stopped' || state === 'error';
}

/** Returns whether a version serves requests. */
export function isServing(state: VersionState): boolean {
  return state === 'running' || state === 'degraded';
}

/** Returns whether a version is starting and was not ready yet. */
export function isComingUp(state: VersionState): boolean {
  return state === 'queued' || state === 'preparing' || state === 'starting';
}
