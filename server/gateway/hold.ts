import { ApiError, type ApiErrorCode } from '../errors';
import { urlBehaviour } from '../service/deployment-state';
import type { GatewayControl, Target, Targets } from './targets';

/** Between two calls to wake the same deployment. */
const WAKE_EVERY_MS = 1_000;

/** What may wait at once, with what the bodies of all of it take. */
export interface HoldLimits {
  perDeployment: number;
  /** Of all deployments, so that one of them can take a sixteenth. */
  total: number;
  totalBytes: number;
}

export const HOLD_LIMITS: HoldLimits = { perDeployment: 256, total: 4_096, totalBytes: 256 * 1024 * 1024 };

interface Held {
  look: (target: Target | undefined) => void;
  end: (error: Error) => void;
}

/** Requests that wait for the first replica of a deployment that is scaled to zero. */
export class Holds {
  readonly #targets: Targets;
  readonly #control: GatewayControl;
  readonly #bySlug = new Map<string, Set<Held>>();
  readonly #wokenMs = new Map<string, number>();
  readonly #unfollow: () => void;
  readonly #limits: HoldLimits;
  #size = 0;
  #numBytes = 0;

  constructor(targets: Targets, control: GatewayControl, limits = HOLD_LIMITS) {
    this.#targets = targets;
    this.#limits = limits;
    this.#control = control;
    this.#unfollow = targets.onChange((slug, target) => this.#bySlug.get(slug)?.forEach((held) => held.look(target)));
  }

  get size(): number {
    return this.#size;
  }

  /**
   * A target with replicas: the one given, or what it becomes after it was woken. Rejects with what its URL answers instead, and once the
   * wait has been too long. `bodyBytes`: what lies here meanwhile.
   */
  ready(target: Target, signal: AbortSignal, bodyBytes = 0): Target | Promise<Target> {
    const settled = settle(target);
    if (settled === 'wait') return this.#hold(target, signal, bodyBytes);
    if (settled instanceof ApiError) throw settled;
    return settled;
  }

  close(): void {
    this.#unfollow();
    const error = new ApiError('shutting_down', 'The server is shutting down');
    for (const held of [...this.#bySlug.values()].flatMap((all) => [...all])) held.end(error);
  }

  #hold({ slug, deploymentId, coldStartWaitMs }: Target, signal: AbortSignal, bodyBytes: number): Promise<Target> {
    const waiting = this.#bySlug.get(slug) ?? new Set<Held>();
    // Whoever comes again later is to find it awake.
    this.#wake(deploymentId);
    this.#demandRoom(waiting.size, bodyBytes);
    this.#bySlug.set(slug, waiting);
    this.#size++;
    this.#numBytes += bodyBytes;
    return new Promise((resolve, reject) => {
      const settleWith = (outcome: Target | Error) => {
        clearTimeout(timer);
        signal.removeEventListener('abort', leave);
        if (!waiting.delete(held)) return;
        this.#size--;
        this.#numBytes -= bodyBytes;
        if (waiting.size === 0 && this.#bySlug.get(slug) === waiting) this.#bySlug.delete(slug);
        if (outcome instanceof Error) reject(outcome);
        else resolve(outcome);
      };
      const held: Held = {
        look: (changed) => {
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
      waiting.add(held);
      // It may have come up while it was woken.
      const now = this.#targets.find(slug);
      if (now !== undefined) held.look(now);
    });
  }

  #demandRoom(numWaiting: number, bodyBytes: number): void {
    const { perDeployment, total, totalBytes } = this.#limits;
    if (numWaiting >= perDeployment)
      throw notReady(`The deployment starts, and ${perDeployment} requests wait for it already, which is the limit`);
    if (this.#size >= total || this.#numBytes + bodyBytes > totalBytes)
      throw notReady('The deployment starts, and too many requests wait for this and other deployments');
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

/** What a request to it meets now. */
function settle(target: Target): Target | ApiError | 'wait' {
  const behaviour = urlBehaviour(target.state, target.replicas.length > 0);
  if (behaviour.type === 'serve') return target;
  if (behaviour.type === 'hold') return 'wait';
  const { status, code, retryAfterS } = behaviour;
  const headers: Record<string, string> =
    status === 503 ? { 'Retry-After': String(retryAfterS ?? NEEDS_A_PERSON_RETRY_S) } : {};
  return new ApiError(code as ApiErrorCode, MESSAGES[code] ?? 'The deployment cannot be reached', { headers });
}

/** Where the state does not end by itself. */
const NEEDS_A_PERSON_RETRY_S = 60;

const MESSAGES: Readonly<Record<string, string>> = {
  deployment_not_found: 'There is no deployment at this address',
  deployment_not_ready: 'The deployment is not ready yet',
  deployment_paused: 'The deployment was stopped; it has to be started again by its owner',
  deployment_stopping: 'The deployment is stopping',
  deployment_failed: 'The deployment has failed; its page says why',
};
