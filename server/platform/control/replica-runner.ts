import { type Driver, DriverError, type ReplicaSpec } from '../driver/driver';
import type { Clock } from './clock';
import { demandIsolated } from './replica-spec';
import { isLive, type Observation, type ReplicaRecord } from './records';

export interface RunnerOptions {
  driver: Driver;
  clock: Clock;
  /** Whether start scripts may run without isolation. */
  allowsUnisolated: boolean;
  /** Returns undefined if the replica was removed. @throws DriverError if it cannot be started. */
  buildSpec: (replicaId: string) => Promise<ReplicaSpec | undefined>;
  countOpenRequests: (ownerId: string, replicaId: string) => number;
  /** Reports an observation for a deployment or container. */
  report: (ownerId: string, observation: Observation) => void;
  onError: (error: unknown, replicaId: string) => void;
}

/** Time between SIGTERM and SIGKILL. */
const TERM_MS = 10_000;
const RETRY_MS = 5_000;

interface Entry {
  readonly ownerId: string;
  /** Resolves when the start succeeded or failed. */
  starting: Promise<void>;
  ending: Promise<void> | undefined;
  /** Ends the drain. */
  onIdle: (() => void) | undefined;
}

function newEntry(ownerId: string): Entry {
  return { ownerId, starting: Promise.resolve(), ending: undefined, onIdle: undefined };
}

/**
 * Makes the driver match the rows: starts or adopts each replica once, and stops it once. The rows are saved before it
 * acts, so another process can take over at any time.
 */
export class ReplicaRunner {
  readonly #options: RunnerOptions;
  readonly #entries = new Map<string, Entry>();

  constructor(options: RunnerOptions) {
    this.#options = options;
  }

  ownerOf(replicaId: string): string | undefined {
    return this.#entries.get(replicaId)?.ownerId;
  }

  /** Sets the replicas that an owner should have. `graceMs` is the longest drain of a stopping replica. */
  sync(ownerId: string, replicas: readonly { replica: ReplicaRecord; graceMs: number }[]): void {
    const kept = new Set(replicas.map(({ replica: { id } }) => id));
    for (const { replica, graceMs } of replicas) {
      if (isLive(replica)) this.#start(ownerId, replica);
      else this.#end(ownerId, replica.id, replica.state === 'stopping' ? graceMs : 0, replica.state === 'stopping');
    }
    for (const [id, entry] of this.#entries) {
      if (entry.ownerId !== ownerId || kept.has(id)) continue;
      // The row was replaced by the row of a new replica.
      this.#end(ownerId, id, 0, false);
      void entry.ending?.then(() => this.#entries.delete(id));
    }
  }

  /** Ends the drain of a replica. Call when it has no open requests. */
  idle(replicaId: string): void {
    this.#entries.get(replicaId)?.onIdle?.();
  }

  /** Stops all processes when the service shuts down. The rows do not change. */
  async stopAll(): Promise<void> {
    await Promise.all(
      [...this.#entries].map(async ([id, { starting }]) => {
        await starting;
        await this.#options.driver.stop(id, TERM_MS);
      }),
    );
  }

  #start(ownerId: string, replica: ReplicaRecord): void {
    if (this.#entries.has(replica.id)) return;
    const entry = newEntry(ownerId);
    this.#entries.set(replica.id, entry);
    entry.starting = this.#run(replica).then((observation) => {
      if (observation !== undefined && entry.ending === undefined) this.#options.report(ownerId, observation);
    });
  }

  async #run({ id, reference, state }: ReplicaRecord): Promise<Observation | undefined> {
    const { driver, buildSpec, allowsUnisolated } = this.#options;
    try {
      const spec = await buildSpec(id);
      if (spec === undefined) return undefined;
      if (reference === null) demandIsolated(spec, driver.isolation, allowsUnisolated);
      const handle = reference === null ? await driver.ensure(spec) : await driver.adopt(reference, spec);
      return handle === undefined ? { type: 'lost', replicaId: id } : { type: 'started', replicaId: id, ...handle };
    } catch (error) {
      if (!(error instanceof DriverError)) this.#options.onError(error, id);
      const reason = error instanceof DriverError ? error.reason : 'driver_lost';
      // Only a new replica can fail to start. One that ran before is lost.
      return state === 'created'
        ? { type: 'notStarted', replicaId: id, reason, message: (error as Error).message }
        : { type: 'lost', replicaId: id };
    }
  }

  #end(ownerId: string, replicaId: string, graceMs: number, isStopping: boolean): void {
    const entry = this.#entries.get(replicaId) ?? newEntry(ownerId);
    this.#entries.set(replicaId, entry);
    entry.ending ??= this.#stop(replicaId, entry, graceMs);
    if (isStopping)
      void entry.ending.then(() => {
        if (this.#entries.delete(replicaId)) this.#options.report(ownerId, { type: 'gone', replicaId });
      });
  }

  /** Drains and stops the replica. Retries until the driver succeeds. */
  async #stop(replicaId: string, entry: Entry, graceMs: number): Promise<void> {
    const { driver, clock, onError } = this.#options;
    await entry.starting;
    if (graceMs > 0) await this.#drain(replicaId, entry, graceMs);
    for (;;) {
      try {
        return await driver.stop(replicaId, TERM_MS);
      } catch (error) {
        onError(error, replicaId);
        await clock.sleep(RETRY_MS);
      }
    }
  }

  async #drain(replicaId: string, entry: Entry, graceMs: number): Promise<void> {
    if (this.#options.countOpenRequests(entry.ownerId, replicaId) === 0) return;
    await new Promise<void>((resolve) => {
      const cancel = this.#options.clock.after(graceMs, resolve);
      entry.onIdle = () => {
        cancel();
        resolve();
      };
    });
    entry.onIdle = undefined;
  }
}
