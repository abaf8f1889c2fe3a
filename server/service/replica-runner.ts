import { type Driver, DriverError, type ReplicaSpec } from '../driver/driver';
import type { Clock } from './clock';
import { demandIsolated } from './replica-spec';
import { isLive, type Observation, type ReplicaWork } from './work';

export interface RunnerOptions {
  driver: Driver;
  clock: Clock;
  /** Whether start scripts run where nothing isolates them. */
  allowsUnisolated: boolean;
  /** Undefined: the replica is no more. @throws DriverError where it cannot be started. */
  specOf: (replicaId: string) => Promise<ReplicaSpec | undefined>;
  openOf: (ownerId: string, replicaId: string) => number;
  /** What happened to a replica of a deployment or a container. */
  tell: (ownerId: string, observation: Observation) => void;
  onError: (error: unknown, replicaId: string) => void;
}

/** How long processes have to end once told to, when no request is open any more. */
const TERM_MS = 10_000;
const RETRY_MS = 5_000;

interface Entry {
  readonly ownerId: string;
  /** Resolves when the start is over, however it went. */
  starting: Promise<void>;
  ending: Promise<void> | undefined;
  isGone: boolean;
  /** Ends the wait for open requests. */
  onIdle: (() => void) | undefined;
}

/** Makes the driver do what the rows say: each replica is started, or found again, once, and stopped once. Rows are written before it acts, so that another process can take over at any moment. */
export class ReplicaRunner {
  readonly #options: RunnerOptions;
  readonly #entries = new Map<string, Entry>();

  constructor(options: RunnerOptions) {
    this.#options = options;
  }

  ownerOf(replicaId: string): string | undefined {
    return this.#entries.get(replicaId)?.ownerId;
  }

  /** All replicas of one owner, as they are to be. `graceMs`: for how long open requests of one that stops are waited for. */
  sync(ownerId: string, replicas: readonly { replica: ReplicaWork; graceMs: number }[]): void {
    const kept = new Set(replicas.map(({ replica: { id } }) => id));
    for (const { replica, graceMs } of replicas) {
      if (isLive(replica)) this.#start(ownerId, replica);
      else this.#end(ownerId, replica.id, replica.state === 'stopping' ? graceMs : 0, replica.state === 'stopping');
    }
    for (const [id, entry] of this.#entries) {
      if (entry.ownerId !== ownerId || kept.has(id)) continue;
      // Its place was filled again.
      this.#end(ownerId, id, 0, false);
      void entry.ending?.then(() => this.#entries.delete(id));
    }
  }

  /** No request is open at a replica. */
  idle(replicaId: string): void {
    this.#entries.get(replicaId)?.onIdle?.();
  }

  /** For the end of the service; what the rows say stays. */
  async stopAll(): Promise<void> {
    await Promise.all(
      [...this.#entries].map(async ([id, { starting }]) => {
        await starting;
        await this.#options.driver.stop(id, TERM_MS);
      }),
    );
  }

  #start(ownerId: string, replica: ReplicaWork): void {
    if (this.#entries.has(replica.id)) return;
    const entry: Entry = { ownerId, starting: Promise.resolve(), ending: undefined, isGone: false, onIdle: undefined };
    this.#entries.set(replica.id, entry);
    entry.starting = this.#run(replica).then((observation) => {
      if (observation !== undefined && entry.ending === undefined) this.#options.tell(ownerId, observation);
    });
  }

  async #run({ id, reference, state }: ReplicaWork): Promise<Observation | undefined> {
    const { driver, specOf, allowsUnisolated } = this.#options;
    try {
      const spec = await specOf(id);
      if (spec === undefined) return undefined;
      if (reference === null) demandIsolated(spec, driver.isolation, allowsUnisolated);
      const handle = reference === null ? await driver.ensure(spec) : await driver.adopt(reference, spec);
      return handle === undefined ? { type: 'lost', replicaId: id } : { type: 'started', replicaId: id, ...handle };
    } catch (error) {
      if (!(error instanceof DriverError)) this.#options.onError(error, id);
      const reason = error instanceof DriverError ? error.reason : 'driver_lost';
      // One that ran cannot be started wrong: it is lost.
      return state === 'created'
        ? { type: 'notStarted', replicaId: id, reason, message: (error as Error).message }
        : { type: 'lost', replicaId: id };
    }
  }

  #end(ownerId: string, replicaId: string, graceMs: number, isTold: boolean): void {
    let entry = this.#entries.get(replicaId);
    if (entry === undefined)
      this.#entries.set(
        replicaId,
        (entry = { ownerId, starting: Promise.resolve(), ending: undefined, isGone: false, onIdle: undefined }),
      );
    const { tell } = this.#options;
    const known = entry;
    known.ending ??= this.#stop(replicaId, known, graceMs).then(() => {
      known.isGone = true;
    });
    if (isTold)
      void known.ending.then(() => {
        if (this.#entries.delete(replicaId)) tell(ownerId, { type: 'gone', replicaId });
      });
  }

  /** Until it is gone: a driver that fails is asked again. */
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
    if (this.#options.openOf(entry.ownerId, replicaId) === 0) return;
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
