import { type Driver, DriverError, type MonitoredSpec, type ReplicaSpec } from '../driver/driver';
import type { Clock } from './clock';
import { demandIsolated } from './replica-spec';
import { TERM_MS } from './strays';
import { isLive, type Observation, type ReplicaRecord } from './records';

export interface RunnerOptions {
  driver: Driver;
  clock: Clock;
  /** Whether start scripts may run without isolation. */
  allowsUnisolated: boolean;
  /** Returns undefined if the replica was removed. @throws DriverError if it cannot be started. */
  buildSpec: (replicaId: string) => Promise<ReplicaSpec | undefined>;
  /** For a replica that runs: what monitoring needs. Does not look at its folders. */
  readMonitored: (replicaId: string) => Promise<MonitoredSpec | undefined>;
  countOpenRequests: (ownerId: string, replicaId: string) => number;
  /** Reports an observation for a deployment or container. */
  report: (ownerId: string, observation: Observation) => void;
  onError: (error: unknown, replicaId: string) => void;
}

const RETRY_MS = 5_000;

const isDriverError = (error: unknown): error is DriverError => error instanceof DriverError;

interface Entry {
  readonly ownerId: string;
  /** Aborts the start. */
  readonly aborting: AbortController;
  /** Resolves when the start succeeded or failed. */
  starting: Promise<void>;
  ending: Promise<void> | undefined;
  /** Ends the drain. */
  onIdle: (() => void) | undefined;
}

function newEntry(ownerId: string): Entry {
  return {
    ownerId,
    aborting: new AbortController(),
    starting: Promise.resolve(),
    ending: undefined,
    onIdle: undefined,
  };
}

/**
 * Makes the driver match the rows: starts or adopts each replica once, and stops it once. The rows are saved before it
 * acts, so another process can take over at any time.
 */
export class ReplicaRunner {
  readonly #options: RunnerOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #closing = new AbortController();

  constructor(options: RunnerOptions) {
    this.#options = options;
  }

  ownerOf(replicaId: string): string | undefined {
    return this.#entries.get(replicaId)?.ownerId;
  }

  /** Sets the replicas that an owner should have. `graceMs` is the longest drain of a stopping replica. */
  sync(ownerId: string, replicas: readonly { replica: ReplicaRecord; graceMs: number }[]): void {
    const present = replicas.filter(({ replica: { isGone } }) => !isGone);
    for (const { replica, graceMs } of present) {
      if (isLive(replica)) this.#start(ownerId, replica);
      else this.#end(ownerId, replica.id, replica.state === 'stopping' ? graceMs : 0);
    }
    const kept = new Set(present.map(({ replica: { id } }) => id));
    for (const [id, entry] of this.#entries) {
      if (entry.ownerId !== ownerId || kept.has(id)) continue;
      this.#end(ownerId, id, 0);
      void entry.ending?.then(() => this.#entries.delete(id));
    }
  }

  /** Ends the drain of a replica. Call when it has no open requests. */
  idle(replicaId: string): void {
    this.#entries.get(replicaId)?.onIdle?.();
  }

  /** Stops all processes when the service shuts down, also after one that cannot be stopped. The rows do not change. */
  async stopAll(): Promise<void> {
    await Promise.all(
      [...this.#entries].map(async ([id, { aborting, starting }]) => {
        aborting.abort();
        await starting;
        await this.#options.driver.stop(id, TERM_MS).catch((error: unknown) => this.#options.onError(error, id));
      }),
    );
  }

  /** Aborts the starts and stops in progress. The next service repeats them. */
  close(): void {
    this.#closing.abort();
    for (const { aborting } of this.#entries.values()) aborting.abort();
  }

  #start(ownerId: string, replica: ReplicaRecord): void {
    if (this.#entries.has(replica.id)) return;
    const entry = newEntry(ownerId);
    this.#entries.set(replica.id, entry);
    const { id, reference } = replica;
    const { signal } = entry.aborting;
    const running = reference === null ? this.#launch(id, signal) : this.#adopt(id, reference, signal);
    entry.starting = running.then((observation) => {
      if (observation !== undefined && !signal.aborted) this.#options.report(ownerId, observation);
    });
  }

  async #launch(id: string, signal: AbortSignal): Promise<Observation | undefined> {
    const { driver, buildSpec, allowsUnisolated } = this.#options;
    try {
      const spec = await this.#untilKnown(id, signal, isDriverError, () => buildSpec(id));
      if (spec === undefined) return undefined;
      demandIsolated(spec, driver.isolation, allowsUnisolated);
      return { type: 'started', replicaId: id, ...(await driver.ensure(spec, signal)) };
    } catch (error) {
      if (signal.aborted) return undefined;
      if (!isDriverError(error)) this.#options.onError(error, id);
      const reason = isDriverError(error) ? error.reason : 'driver_lost';
      return { type: 'notStarted', replicaId: id, reason, message: (error as Error).message };
    }
  }

  /** Only the driver knows that a replica is lost. Any failure on the way leaves it running and is repeated. */
  async #adopt(id: string, reference: string, signal: AbortSignal): Promise<Observation | undefined> {
    const { driver, readMonitored } = this.#options;
    return this.#untilKnown<Observation>(
      id,
      signal,
      () => false,
      async () => {
        const spec = await readMonitored(id);
        if (spec === undefined) return undefined;
        const handle = await driver.adopt(reference, spec);
        return handle === undefined ? { type: 'lost', replicaId: id } : { type: 'started', replicaId: id, ...handle };
      },
    );
  }

  /** Repeats `run` until it succeeds or its error is final. Returns undefined when the signal aborts. */
  async #untilKnown<T>(
    id: string,
    signal: AbortSignal,
    isFinal: (error: unknown) => boolean,
    run: () => Promise<T | undefined>,
  ): Promise<T | undefined> {
    while (!signal.aborted) {
      try {
        return await run();
      } catch (error) {
        if (isFinal(error)) throw error;
        this.#options.onError(error, id);
        await this.#sleep(RETRY_MS, signal);
      }
    }
    return undefined;
  }

  #sleep(ms: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const onAbort = (): void => {
        cancel();
        resolve();
      };
      const cancel = this.#options.clock.after(ms, () => {
        signal.removeEventListener('abort', onAbort);
        resolve();
      });
      signal.addEventListener('abort', onAbort, { once: true });
    });
  }

  /** Ends a replica once, and reports when none of its processes is left. */
  #end(ownerId: string, replicaId: string, graceMs: number): void {
    const entry = this.#entries.get(replicaId) ?? newEntry(ownerId);
    this.#entries.set(replicaId, entry);
    if (entry.ending !== undefined) return;
    entry.aborting.abort();
    entry.ending = this.#stop(replicaId, entry, graceMs).then(() =>
      this.#options.report(ownerId, { type: 'gone', replicaId }),
    );
  }

  /** Drains and stops the replica. Retries until the driver succeeds or the runner closes. */
  async #stop(replicaId: string, entry: Entry, graceMs: number): Promise<void> {
    const { driver, onError } = this.#options;
    const { signal } = this.#closing;
    await entry.starting;
    if (graceMs > 0) await this.#drain(replicaId, entry, graceMs);
    while (!signal.aborted) {
      try {
        return await driver.stop(replicaId, TERM_MS);
      } catch (error) {
        onError(error, replicaId);
        await this.#sleep(RETRY_MS, signal);
      }
    }
  }

  async #drain(replicaId: string, entry: Entry, graceMs: number): Promise<void> {
    if (this.#options.countOpenRequests(entry.ownerId, replicaId) === 0) return;
    const idle = new AbortController();
    entry.onIdle = () => idle.abort();
    await this.#sleep(graceMs, AbortSignal.any([idle.signal, this.#closing.signal]));
    entry.onIdle = undefined;
  }
}
