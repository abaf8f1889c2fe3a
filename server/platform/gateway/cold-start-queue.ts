import { ApiError, type ApiErrorCode } from 'capstan/internal';
import { urlBehaviour } from '../deployments/deployment-state';
import type { GatewayControl, Target, Targets } from './targets';

/** Shortest time between two calls to wake the same deployment. */
const WAKE_EVERY_MS = 1_000;

/** Maximum number of waiting requests, and of bytes of their bodies. */
export interface QueueLimits {
  perDeployment: number;
  /** Limit over all deployments. One deployment can use a sixteenth of it. */
  total: number;
  totalBytes: number;
}

export const COLD_START_LIMITS: QueueLimits = { perDeployment: 256, total: 4_096, totalBytes: 256 * 1024 * 1024 };

interface QueuedRequest {
  onTargetChange: (target: Target | undefined) => void;
  end: (error: Error) => void;
}

/** Requests that wait for the first replica of a deployment that is scaled to zero. */
export class ColdStartQueue {
  readonly #targets: Targets;
  readonly #control: GatewayControl;
  readonly #bySlug = new Map<string, Set<QueuedRequest>>();
  readonly #wokenMs = new Map<string, number>();
  readonly #unsubscribe: () => void;
  readonly #limits: QueueLimits;
  #size = 0;
  #numBytes = 0;

  constructor(targets: Targets, control: GatewayControl, limits = COLD_START_LIMITS) {
    this.#targets = targets;
    this.#limits = limits;
    this.#control = control;
    this.#unsubscribe = targets.onChange((slug, target) => {
      this.#bySlug.get(slug)?.forEach((queued) => queued.onTargetChange(target));
    });
  }

  get size(): number {
    return this.#size;
  }

  /**
   * Returns a target with replicas: `target` itself, or its later state after it has been woken. Rejects with the error
   * of the deployment's state, or after the cold start timeout. `bodyBytes`: buffered while the request waits.
   */
  ready(target: Target, signal: AbortSignal, bodyBytes = 0): Target | Promise<Target> {
    const settled = settle(target);
    if (settled === 'wait') return this.#enqueue(target, signal, bodyBytes);
    if (settled instanceof ApiError) throw settled;
    return settled;
  }

  close(): void {
    this.#unsubscribe();
    const error = new ApiError('shutting_down', 'The server is shutting down');
    for (const queued of [...this.#bySlug.values()].flatMap((all) => [...all])) queued.end(error);
  }

  #enqueue({ slug, deploymentId, coldStartWaitMs }: Target, signal: AbortSignal, bodyBytes: number): Promise<Target> {
    const waiting = this.#bySlug.get(slug) ?? new Set<QueuedRequest>();
    // Wake it even when the queue is full: a client that retries later finds it running.
    this.#wake(deploymentId);
    this.#checkLimits(waiting.size, bodyBytes);
    this.#bySlug.set(slug, waiting);
    this.#size++;
    this.#numBytes += bodyBytes;
    return new Promise((resolve, reject) => {
      const settleWith = (outcome: Target | Error) => {
        clearTimeout(timer);
        signal.removeEventListener('abort', leave);
        if (!waiting.delete(queued)) return;
        this.#size--;
        this.#numBytes -= bodyBytes;
        if (waiting.size === 0 && this.#bySlug.get(slug) === waiting) this.#bySlug.delete(slug);
        if (outcome instanceof Error) reject(outcome);
        else resolve(outcome);
      };
      const queued: QueuedRequest = {
        onTargetChange: (changed) => {
          const settled = changed === undefined ? notFound() : settle(changed);
          if (settled !== 'wait') settleWith(settled);
        },
        end: settleWith,
      };
      const leave = () => settleWith(signal.reason as Error);
      const timer = setTimeout(
        () => settleWith(notReady(`The deployment did not start within ${coldStartWaitMs / 1000} s`)),
        coldStartWaitMs,
      );
      signal.addEventListener('abort', leave, { once: true });
      waiting.add(queued);
      // The replica may already have started during the call to wake it.
      const current = this.#targets.find(slug);
      if (current !== undefined) queued.onTargetChange(current);
    });
  }

  #checkLimits(numWaiting: number, bodyBytes: number): void {
    const { perDeployment, total, totalBytes } = this.#limits;
    if (numWaiting >= perDeployment)
      throw notReady(`The deployment is starting, and its queue is full (${perDeployment} requests)`);
    if (this.#size >= total || this.#numBytes + bodyBytes > totalBytes)
      throw notReady('The deployment is starting, and the queue of all starting deployments is full');
  }

  #wake(deploymentId: string): void {
    const nowMs = performance.now();
    if (nowMs - (this.#wokenMs.get(deploymentId) ?? -Infinity) < WAKE_EVERY_MS) return;
    for (const [id, wokenMs] of this.#wokenMs) if (nowMs - wokenMs >= WAKE_EVERY_MS) this.#wokenMs.delete(id);
    this.#wokenMs.set(deploymentId, nowMs);
    this.#control.wake(deploymentId);
  }
}

export function notFound(): ApiError {
  return new ApiError('deployment_not_found', 'There is no deployment at this address');
}

function notReady(message: string): ApiError {
  return new ApiError('deployment_not_ready', message);
}

/** Returns the target if it can serve, the error of its state, or 'wait'. */
function settle(target: Target): Target | ApiError | 'wait' {
  const behaviour = urlBehaviour(target.state, target.replicas.length > 0);
  if (behaviour.type === 'serve') return target;
  if (behaviour.type === 'hold') return 'wait';
  const { status, code, retryAfterS } = behaviour;
  const headers: Record<string, string> =
    status === 503 ? { 'Retry-After': String(retryAfterS ?? MANUAL_RETRY_S) } : {};
  return new ApiError(code as ApiErrorCode, MESSAGES[code] ?? 'The deployment cannot be reached', { headers });
}

/** Retry-After for states that only a user can end. */
const MANUAL_RETRY_S = 60;

const MESSAGES: Readonly<Record<string, string>> = {
  deployment_not_found: 'There is no deployment at this address',
  deployment_not_ready: 'The deployment is not ready yet',
  deployment_paused: 'The deployment was stopped. Its owner must start it again',
  deployment_stopping: 'The deployment is stopping',
  deployment_failed: 'The deployment has failed. The console shows the reason',
};
