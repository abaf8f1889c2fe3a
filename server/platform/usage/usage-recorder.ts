import type { Log } from 'capstan/internal';
import type { Driver } from '../driver/driver';
import type { GatewayRecord } from '../gateway/gateway';
import { UsageMeter } from './rollups';
import { allReplicas, type Targets } from '../gateway/targets';
import type { ResourceSample, UsageStore } from './usage-store';

export interface UsageRecorderOptions {
  store: Pick<UsageStore, 'recordUsage' | 'recordResources' | 'pruneUsage'>;
  targets: Targets;
  driver: Pick<Driver, 'usage'>;
  log: Pick<Log, 'warn' | 'info'>;
  now?: () => number;
}

const MINUTE_MS = 60_000;
const FLUSH_MS = 5_000;
const SAMPLE_MS = 15_000;
const PRUNE_MS = 3_600_000;
const KEPT_MINUTES = 30 * 24 * 60;

/** Saves request counts and resource samples, and deletes them after 30 days. */
export class UsageRecorder {
  readonly #options: UsageRecorderOptions;
  readonly #meter = new UsageMeter();
  readonly #now: () => number;
  #samples = new Map<string, ResourceSample>();
  #timers: NodeJS.Timeout[] = [];
  #flushing: Promise<void> = Promise.resolve();
  #isFailing = false;

  constructor(options: UsageRecorderOptions) {
    this.#options = options;
    this.#now = options.now ?? Date.now;
  }

  /** The gateway's `onEnd`. */
  readonly record = (record: GatewayRecord): void => this.#meter.record(record);

  start(): void {
    const { store } = this.#options;
    const every = (ms: number, run: () => Promise<void>) =>
      this.#timers.push(setInterval(() => void run().catch((error: unknown) => this.#logFailure(error)), ms).unref());
    every(FLUSH_MS, () => this.flush());
    every(SAMPLE_MS, () => this.sample());
    every(PRUNE_MS, () => store.pruneUsage(Math.floor(this.#now() / MINUTE_MS) - KEPT_MINUTES));
  }

  /** Writes all counts, one write at a time. Never rejects: counts that cannot be written are kept. */
  flush(): Promise<void> {
    this.#flushing = this.#flushing.then(() => this.#write());
    return this.#flushing;
  }

  /** Samples the resource usage of all replicas. */
  async sample(): Promise<void> {
    const { targets, driver } = this.#options;
    const minute = Math.floor(this.#now() / MINUTE_MS);
    for (const target of targets.deployments()) {
      const { deploymentId } = target;
      const usages = (await Promise.all(allReplicas(target).map(({ id }) => driver.usage(id)))).filter(
        (usage) => usage !== undefined,
      );
      if (usages.length === 0) continue;
      const name = `${minute} ${deploymentId}`;
      const sample = this.#samples.get(name) ?? { minute, deploymentId, samples: 0, cpuPercentSum: 0, memoryMbSum: 0 };
      sample.samples++;
      for (const { cpuPercent, memoryMb } of usages) {
        sample.cpuPercentSum += cpuPercent;
        sample.memoryMbSum += memoryMb;
      }
      this.#samples.set(name, sample);
    }
  }

  /** Stops the timers and flushes. */
  async close(): Promise<void> {
    this.#timers.splice(0).forEach((timer) => clearInterval(timer));
    await this.flush();
  }

  async #write(): Promise<void> {
    const { store, log } = this.#options;
    try {
      await this.#meter.flush((rollups) => store.recordUsage(rollups));
      const samples = this.#samples;
      this.#samples = new Map();
      if (samples.size > 0) await store.recordResources([...samples.values()]);
      if (this.#isFailing) log.info({}, 'usage can be saved again');
      this.#isFailing = false;
    } catch (error) {
      this.#logFailure(error);
    }
  }

  /** Logs once per outage. */
  #logFailure(error: unknown): void {
    if (!this.#isFailing)
      this.#options.log.warn({ reason: (error as Error).message }, 'cannot save usage, retrying every 5 s');
    this.#isFailing = true;
  }
}
