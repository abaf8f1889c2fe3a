import { newId } from './ids';
import type { AccessStore } from './store';

const BEAT_MS = 10_000;

/** Tells the database how far this process has followed it. Only for people to look at, so a failure is nobody's. */
export class Beacon {
  readonly #store: AccessStore;
  readonly #gatewayId: string;
  readonly #version: string;
  readonly #monotonicMs: () => number;
  #toldRev = -1;
  #toldAtMs = -Infinity;
  #telling: Promise<void> | undefined;

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

  /** When it is news, or has not been said for a while; one at a time. */
  tell(appliedRev: number): Promise<void> {
    const nowMs = this.#monotonicMs();
    if (this.#telling !== undefined || (appliedRev === this.#toldRev && nowMs - this.#toldAtMs < BEAT_MS))
      return this.#telling ?? Promise.resolve();
    return (this.#telling = this.#store
      .beat({ gatewayId: this.#gatewayId, appliedRev, version: this.#version })
      .then(
        () => {
          [this.#toldRev, this.#toldAtMs] = [appliedRev, nowMs];
        },
        () => {},
      )
      .finally(() => {
        this.#telling = undefined;
      }));
  }

  async leave(): Promise<void> {
    await this.#telling;
    await this.#store.leave(this.#gatewayId).catch(() => {});
  }
}
