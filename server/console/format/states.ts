import type { Container, Deployment, Key, Version } from '../../api/objects';

export type AnyState = Deployment['state'] | Version['state'] | Container['state'] | Key['state'];
export type Tone = 'ok' | 'warn' | 'bad' | 'info' | 'idle';

interface Look {
  tone: Tone;
  /** On its way to another state by itself. */
  isMoving?: boolean;
  /** Serves nothing, on purpose. */
  isHollow?: boolean;
}

/** How each state looks; the word comes from the language. */
export const STATE_LOOKS: Readonly<Record<AnyState, Look>> = {
  pending: { tone: 'info', isMoving: true },
  queued: { tone: 'info', isMoving: true },
  preparing: { tone: 'info', isMoving: true },
  starting: { tone: 'info', isMoving: true },
  running: { tone: 'ok' },
  updating: { tone: 'info', isMoving: true },
  update_failed: { tone: 'warn' },
  degraded: { tone: 'warn' },
  backoff: { tone: 'warn', isMoving: true },
  idle: { tone: 'idle', isHollow: true },
  scaled_to_zero: { tone: 'idle', isHollow: true },
  paused: { tone: 'idle', isHollow: true },
  stopping: { tone: 'idle', isMoving: true },
  stopped: { tone: 'idle', isHollow: true },
  deleting: { tone: 'idle', isMoving: true },
  failed: { tone: 'bad' },
  error: { tone: 'bad' },
  active: { tone: 'ok' },
  rotating: { tone: 'info' },
  disabled: { tone: 'idle', isHollow: true },
  expired: { tone: 'warn' },
  exhausted: { tone: 'warn' },
  deleted: { tone: 'idle', isHollow: true },
};

/** Whether it will change without anybody doing anything. */
export function isMoving(state: AnyState): boolean {
  return STATE_LOOKS[state].isMoving === true;
}

/** What may be done to a deployment in a state. */
export function commandsOf(state: Deployment['state']): {
  start: boolean;
  stop: boolean;
  restart: boolean;
  scaleToZero: boolean;
  wake: boolean;
} {
  return {
    start: state === 'paused' || state === 'failed',
    stop: state !== 'paused' && state !== 'stopping' && state !== 'deleting',
    restart: state === 'running' || state === 'degraded' || state === 'failed' || state === 'update_failed',
    scaleToZero: state === 'running',
    wake: state === 'scaled_to_zero',
  };
}
