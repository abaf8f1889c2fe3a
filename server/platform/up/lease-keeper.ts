import type { Clock } from '../control/clock';
import type { ControllerLog } from '../control/controller';
import { type Lease, LEASE_MS } from '../control/lease';
import { ServiceError } from '../store/errors';
import type { ServiceStore } from '../store/store';

export interface LeaseKeeperOptions {
  store: Pick<ServiceStore, 'readLease' | 'takeLease' | 'renewLease' | 'releaseLease'>;
  /** Id of this service. It stays the same for a data directory, so a restart continues at once. */
  holder: string;
  /** Whether no other service can use the database, as for one in a locked data directory. Then none is waited for. */
  isAlone: boolean;
  clock: Clock;
  log: ControllerLog;
}

/** A standby takes over this long after the lease has run out. */
const TAKE_OVER_AFTER_MS = 15_000;
const RENEW_MS = 5_000;
const POLL_MS = 1_000;

/**
 * Keeps the lease of the control loop, so that one service at a time controls the deployments of a database. A standby
 * measures with its own monotonic clock how long the lease has not changed. Clocks of machines are never compared.
 */
export class LeaseKeeper {
  /** Resolves when another service has taken the lease. */
  readonly lost: Promise<void>;
  readonly #options: LeaseKeeperOptions;
  #onLost!: () => void;
  #epoch: number | undefined;
  #cancel = (): void => {};
  #isClosed = false;
  #isFailing = false;

  constructor(options: LeaseKeeperOptions) {
    this.#options = options;
    this.lost = new Promise((resolve) => {
      this.#onLost = resolve;
    });
  }

  /**
   * Waits for the lease and keeps it. Returns its epoch, or undefined when the signal aborts.
   * @param onStandby Called once, if another service holds the lease.
   * @throws ServiceError `lease_lost` if a service of a newer release has changed the tables
   */
  async acquire(signal: AbortSignal, onStandby: () => void): Promise<number | undefined> {
    const { clock } = this.#options;
    let seen: { lease: Lease; sinceMs: number } | undefined;
    let isStandby = false;
    while (!signal.aborted) {
      const lease = await this.#attempt((store) => store.readLease());
      // The holder could not renew it either while the database did not respond.
      if (lease === undefined) seen = undefined;
      else if (!isSame(lease, seen?.lease)) seen = { lease, sinceMs: clock.now() };
      if (seen !== undefined && this.#isFree(seen)) {
        if (await this.#take(seen.lease)) return this.#epoch;
      } else if (seen !== undefined && !isStandby) {
        isStandby = true;
        onStandby();
      }
      await clock.sleep(POLL_MS);
    }
    return undefined;
  }

  /** Call when a write of the loop fails because of its epoch. */
  lose(): void {
    this.#cancel();
    this.#onLost();
  }

  /** With `releases`, another service can take over at once. Otherwise the replicas that run wait for a restart. */
  async close({ releases = false } = {}): Promise<void> {
    this.#isClosed = true;
    this.#cancel();
    const epoch = this.#epoch;
    if (releases && epoch !== undefined) await this.#attempt((store) => store.releaseLease(epoch));
  }

  #isFree({ lease, sinceMs }: { lease: Lease; sinceMs: number }): boolean {
    const { holder, isAlone, clock } = this.#options;
    if (isAlone || lease.holder === null || lease.holder === holder) return true;
    return clock.now() - sinceMs >= LEASE_MS + TAKE_OVER_AFTER_MS;
  }

  async #take(seen: Lease): Promise<boolean> {
    this.#epoch = await this.#attempt((store) => store.takeLease(this.#options.holder, seen));
    if (this.#epoch === undefined) return false;
    this.#renewLater(this.#epoch);
    return true;
  }

  #renewLater(epoch: number): void {
    this.#cancel = this.#options.clock.after(RENEW_MS, () => void this.#renew(epoch));
  }

  async #renew(epoch: number): Promise<void> {
    // While the database does not respond, no service loses its lease.
    const isHeld = (await this.#attempt((store) => store.renewLease(epoch))) ?? true;
    if (this.#isClosed) return;
    if (isHeld) this.#renewLater(epoch);
    else this.lose();
  }

  /** Returns undefined if the database does not respond. Logs that once. */
  async #attempt<T>(run: (store: LeaseKeeperOptions['store']) => Promise<T>): Promise<T | undefined> {
    const { store, log } = this.#options;
    try {
      const result = await run(store);
      this.#isFailing = false;
      return result;
    } catch (error) {
      if (error instanceof ServiceError) throw error;
      if (!this.#isFailing) log.warn({ reason: (error as Error).message }, 'cannot reach the control lease, retrying');
      this.#isFailing = true;
      return undefined;
    }
  }
}

function isSame(a: Lease, b: Lease | undefined): boolean {
  return a.holder === b?.holder && a.epoch === b.epoch && a.expiresAt === b.expiresAt;
}
