import { newId } from '../../base/ids';
import type { AccessStore } from '../store/store';

const INTERVAL_MS = 10_000;

/** Writes the heartbeats of this process. Only reports use them, so errors are ignored. */
export class HeartbeatSender {
  readonly #store: AccessStore;
  readonly #gatewayId: string;
  readonly #version: string;
  readonly #monotonicMs: () => number;
  #sentRev = -1;
  #sentAtMs = -Infinity;
  #sending: Promise<void> | undefined;

  constructor(
    store: AccessStore,
    { gatewayId = newId('gtw'), version = '' }: { gatewayId?: string | undefined; version?: string | undefined },
    monotonicMs: () => number,
  ) {
    this.#store = store;
    this.#gatewayId = gatewayId;
    this.#version = version;
    this.#monotonicMs = monotonicMs;
  }

  /** Writes a heartbeat if the revision is new or the interval is over. Only one write runs at a time. */
  send(appliedRev: number): Promise<void> {
    if (this.#sending !== undefined) return this.#sending;
    const nowMs = this.#monotonicMs();
    if (appliedRev === this.#sentRev && nowMs - this.#sentAtMs < INTERVAL_MS) return Promise.resolve();
    this.#sending = this.#write(appliedRev, nowMs);
    return this.#sending;
  }

  /** Removes the heartbeat of this process. */
  async close(): Promise<void> {
    await this.#sending;
    await this.#store.deleteHeartbeat(this.#gatewayId).catch(() => {});
  }

  async #write(appliedRev: number, nowMs: number): Promise<void> {
    try {
      await this.#store.writeHeartbeat({ gatewayId: this.#gatewayId, appliedRev, version: this.#version });
      this.#sentRev = appliedRev;
      this.#sentAtMs = nowMs;
    } catch {
      // The next poll tries again.
    } finally {
      this.#sending = undefined;
    }
  }
}
