import type { Target } from '../targets';

/** Failures in a row after which an upstream is passed over. */
const MAX_FAILURES = 5;
/** How long it is passed over. Then one request tries it again. */
const PAUSE_MS = 10_000;

interface Health {
  numFailures: number;
  retryAtMs: number;
}

/**
 * Remembers which upstreams fail, so that requests with fallbacks do not wait for them. A request without another
 * deployment always tries.
 */
export class UpstreamHealth {
  readonly #nowMs: () => number;
  /** By the id of the upstream, which changes with its settings. */
  readonly #failing = new Map<string, Health>();

  constructor(nowMs: () => number = () => performance.now()) {
    this.#nowMs = nowMs;
  }

  /** Returns the chain without the upstreams that fail. The last deployment stays. */
  usable(chain: readonly Target[]): readonly Target[] {
    if (this.#failing.size === 0) return chain;
    return chain.filter((target, i) => i === chain.length - 1 || !this.#isPaused(target));
  }

  report(target: Target, hasServed: boolean): void {
    const id = upstreamId(target);
    if (id === undefined) return;
    if (hasServed) return void this.#failing.delete(id);
    const numFailures = (this.#failing.get(id)?.numFailures ?? 0) + 1;
    // A removed upstream stays until the map is large.
    if (this.#failing.size > 10_000) this.#failing.clear();
    this.#failing.set(id, { numFailures, retryAtMs: this.#nowMs() + PAUSE_MS });
  }

  #isPaused(target: Target): boolean {
    const id = upstreamId(target);
    const health = id === undefined ? undefined : this.#failing.get(id);
    if (health === undefined || health.numFailures < MAX_FAILURES) return false;
    const nowMs = this.#nowMs();
    if (nowMs < health.retryAtMs) return true;
    // Other requests pass it over until this one has an outcome.
    health.retryAtMs = nowMs + PAUSE_MS;
    return false;
  }
}

function upstreamId({ replicas }: Target): string | undefined {
  return replicas.find(({ upstream }) => upstream !== undefined)?.id;
}
