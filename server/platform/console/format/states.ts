import type { Container, Deployment, Key, Reason, Version } from '../../api/objects';

export type AnyState = Deployment['state'] | Version['state'] | Container['state'] | Key['state'];
type Tone = 'ok' | 'warn' | 'bad' | 'info' | 'idle';

interface Look {
  tone: Tone;
  /** The state is temporary: it changes without an action of the user. */
  isMoving?: boolean;
  /** Intentionally inactive. */
  isHollow?: boolean;
}

/** The colour and animation of each state. */
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

/** Whether the state changes without a user action. */
export function isMoving(state: AnyState): boolean {
  return STATE_LOOKS[state].isMoving === true;
}

/** The commands that a deployment accepts in a state. */
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

/** The exit code of a failure, or null if there is none or the message names it. */
export function exitCodeBeside({ message, exit_code }: Pick<Reason, 'message' | 'exit_code'>): number | null {
  return exit_code !== null && new RegExp(`\\bexit code ${exit_code}\\b`).test(message) ? null : exit_code;
}
