import { type Clock, SYSTEM_CLOCK } from '../control/clock';
import type { GatewayRecord } from '../gateway/gateway';
import type { Targets } from '../gateway/targets';
import type { ServiceStore } from '../store/store';
import { CanaryMeter } from './canary-rule';

export interface CanaryWatcherOptions {
  store: Pick<ServiceStore, 'failCanary' | 'saveCanaryStats' | 'readCanaryStats'>;
  targets: Targets;
  /** Makes the controller follow the decision. */
  reconcile: (deploymentId: string) => Promise<void>;
  log: { info(fields: object, message: string): void; warn(fields: object, message: string): void };
  clock?: Clock;
}

/** A roll-back that the timer repeats until it is done. */
interface Failure {
  readonly reason: string;
  next: 'save' | 'reconcile' | 'nothing';
}

interface Watched {
  deploymentId: string;
  versionId: string;
  /** Undefined until the statistics of an earlier run are read. */
  meter: CanaryMeter | undefined;
  /** Records that wait for the meter. */
  waiting: GatewayRecord[];
  hasChanged: boolean;
  failure: Failure | undefined;
}

const SAVE_MS = 5_000;
const MAX_WAITING = 10_000;
const CLIENT_GONE = 499;
/** The client requested something that the runtime does not support. */
const NOT_IMPLEMENTED = 501;

/** Compares canaries with the stable versions, and rolls those back that break the rule. */
export class CanaryWatcher {
  readonly #options: CanaryWatcherOptions;
  readonly #clock: Clock;
  /** By deployment id. */
  readonly #watched = new Map<string, Watched>();
  #running: Promise<unknown> = Promise.resolve();
  #cancel: (() => void) | undefined;
  #isClosed = false;

  constructor(options: CanaryWatcherOptions) {
    this.#options = options;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
    this.#schedule();
  }

  /** The gateway's `onEnd`. */
  readonly record = (record: GatewayRecord): void => {
    const { served, deploymentId, status } = record;
    if (served === undefined || status === CLIENT_GONE) return;
    let watched = this.#watched.get(deploymentId);
    if (watched?.versionId !== served.versionId) {
      watched = {
        deploymentId,
        versionId: served.versionId,
        meter: undefined,
        waiting: [],
        hasChanged: false,
        failure: undefined,
      };
      this.#watched.set(deploymentId, watched);
      this.#load(watched);
    }
    if (watched.meter !== undefined) this.#count(watched, watched.meter, record);
    else if (watched.waiting.length < MAX_WAITING) watched.waiting.push(record);
  };

  /** Resolves when all decisions are saved and applied. */
  async settled(): Promise<void> {
    let last: Promise<unknown> | undefined;
    while (last !== this.#running) await (last = this.#running);
  }

  /** Saves the statistics. Never rejects. */
  async save(): Promise<void> {
    for (const watched of this.#watched.values()) {
      const { deploymentId, versionId, meter } = watched;
      if (!watched.hasChanged || meter === undefined) continue;
      watched.hasChanged = false;
      await this.#options.store.saveCanaryStats(deploymentId, versionId, meter.stats).catch((error: unknown) => {
        watched.hasChanged = true;
        this.#warn(error, 'cannot save the statistics of a canary');
      });
      if (this.#options.targets.findById(deploymentId)?.canary?.versionId !== versionId)
        this.#watched.delete(deploymentId);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancel?.();
    await this.settled();
    await this.save();
  }

  #load(watched: Watched): void {
    this.#run(async () => {
      const { deploymentId, versionId } = watched;
      const stats = await this.#options.store.readCanaryStats(deploymentId, versionId).catch((error: unknown) => {
        this.#warn(error, 'cannot read the statistics of a canary');
        return undefined;
      });
      const meter = new CanaryMeter(stats);
      watched.meter = meter;
      // The service may have stopped before a roll-back was saved.
      if (meter.verdict !== undefined) this.#decide(watched, meter.verdict);
      for (const record of watched.waiting.splice(0)) this.#count(watched, meter, record);
    });
  }

  #count(watched: Watched, meter: CanaryMeter, record: GatewayRecord): void {
    const { status, failures, fallbackId, replicaMs } = record;
    const isClientError = (status >= 400 && status < 500) || status === NOT_IMPLEMENTED;
    // A request that another replica or deployment repeated with success is an error of the first one.
    const isError = failures.length > 0 || fallbackId !== undefined || (status >= 500 && !isClientError);
    if (isClientError && !isError) return;
    watched.hasChanged = true;
    const isTimed = status < 300 && replicaMs !== undefined;
    const reason = meter.record(record.served!.variant, { isError, ...(isTimed ? { firstTokenMs: replicaMs } : {}) });
    if (reason !== undefined && watched.failure === undefined) this.#decide(watched, reason);
  }

  #decide(watched: Watched, reason: string): void {
    const failure: Failure = { reason, next: 'save' };
    watched.failure = failure;
    this.#stopTraffic(watched);
    this.#run(() => this.#fail(watched, failure));
  }

  /** No further request goes to the canary, although the decision is not saved yet. */
  #stopTraffic({ deploymentId, versionId }: Watched): void {
    const { targets } = this.#options;
    const target = targets.findById(deploymentId);
    if (target?.canary?.versionId === versionId)
      targets.set({ ...target, canary: { ...target.canary, percent: 0, header: null, keyIds: [] } });
  }

  async #fail({ deploymentId, versionId }: Watched, failure: Failure): Promise<void> {
    const { reason } = failure;
    const { store, log, reconcile } = this.#options;
    try {
      if (failure.next === 'save') {
        await this.save();
        const isOurs = await store.failCanary(deploymentId, versionId, reason);
        failure.next = isOurs ? 'reconcile' : 'nothing';
        if (isOurs) log.info({ deployment: deploymentId, reason }, 'canary rolled back');
      }
      if (failure.next === 'reconcile') await reconcile(deploymentId);
      failure.next = 'nothing';
    } catch (error) {
      this.#warn(error, 'cannot roll a canary back, trying again');
    }
  }

  #run(work: () => Promise<void>): void {
    this.#running = this.#running.then(work);
  }

  #schedule(): void {
    if (this.#isClosed) return;
    this.#cancel = this.#clock.after(SAVE_MS, () => {
      this.#retry();
      void this.save().then(() => this.#schedule());
    });
  }

  #retry(): void {
    for (const watched of this.#watched.values()) {
      const { failure } = watched;
      if (failure === undefined || failure.next === 'nothing') continue;
      // The controller may have set the share again.
      this.#stopTraffic(watched);
      this.#run(() => this.#fail(watched, failure));
    }
  }

  #warn(error: unknown, message: string): void {
    this.#options.log.warn({ reason: (error as Error).message }, message);
  }
}
