/** The states of a training container. */
export const CONTAINER_STATES = ['queued', 'preparing', 'running', 'stopping', 'stopped', 'error'] as const;
export type ContainerState = (typeof CONTAINER_STATES)[number];

export const CONTAINER_EVENTS = ['start', 'stop', 'granted', 'started', 'failed', 'ended'] as const;
export type ContainerEvent = (typeof CONTAINER_EVENTS)[number];

/** The next state for each event. Events without an entry change nothing. A new container is stopped. */
export const CONTAINER_TRANSITIONS: Readonly<
  Record<ContainerState, Readonly<Partial<Record<ContainerEvent, ContainerState>>>>
> = {
  queued: { granted: 'preparing', failed: 'error', stop: 'stopped' },
  preparing: { started: 'running', failed: 'error', stop: 'stopping' },
  running: { ended: 'stopped', failed: 'error', stop: 'stopping' },
  stopping: { ended: 'stopped', failed: 'stopped' },
  stopped: { start: 'queued' },
  error: { start: 'queued' },
};
