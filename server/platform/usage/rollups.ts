import type { GatewayRecord } from '../gateway/gateway';
import { addHistogram, type Histogram, newHistogram, observe } from './histogram';

/** The requests of one deployment, minute, key and status class. */
export interface UsageRollup {
  /** Minutes since 1970. */
  minute: number;
  deploymentId: string;
  /** Null without a valid key: a public deployment or a refused request. */
  keyId: string | null;
  /** 2 for 200 to 299, and so on. Clients that disconnect before the response count as 4. */
  statusClass: number;
  requests: number;
  /** Requests with token counts. */
  requestsWithUsage: number;
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  latency: Histogram;
  /** Only requests that a replica responded to. */
  firstByte: Histogram;
}

const MINUTE_MS = 60_000;
/** Bound on the rollups in memory while the database fails. Further ones are dropped. */
const MAX_ROLLUPS = 100_000;

/** Counts requests in memory until they are written in a batch. */
export class UsageMeter {
  #rollups = new Map<string, UsageRollup>();

  get size(): number {
    return this.#rollups.size;
  }

  record({ deploymentId, keyId, status, endedMs, durationMs, firstByteMs, usage }: GatewayRecord): void {
    const minute = Math.floor(endedMs / MINUTE_MS);
    const rollup = this.#at({ minute, deploymentId, keyId: keyId ?? null, statusClass: Math.floor(status / 100) });
    if (rollup === undefined) return;
    rollup.requests++;
    observe(rollup.latency, durationMs);
    if (firstByteMs !== undefined) observe(rollup.firstByte, firstByteMs);
    if (usage === undefined) return;
    rollup.requestsWithUsage++;
    rollup.promptTokens += usage.promptTokens;
    rollup.completionTokens += usage.completionTokens;
    rollup.cachedTokens += usage.cachedTokens;
  }

  /** Passes all rollups to `write`. Keeps them for the next flush if it rejects. */
  async flush(write: (rollups: UsageRollup[]) => Promise<void>): Promise<void> {
    if (this.#rollups.size === 0) return;
    const taken = this.#rollups;
    this.#rollups = new Map();
    try {
      await write([...taken.values()]);
    } catch (error) {
      taken.forEach((rollup) => this.#restore(rollup));
      throw error;
    }
  }

  #restore(old: UsageRollup): void {
    const rollup = this.#at(old);
    if (rollup === undefined) return;
    for (const field of ['requests', 'requestsWithUsage', 'promptTokens', 'completionTokens', 'cachedTokens'] as const)
      rollup[field] += old[field];
    addHistogram(rollup.latency, old.latency);
    addHistogram(rollup.firstByte, old.firstByte);
  }

  #at({
    minute,
    deploymentId,
    keyId,
    statusClass,
  }: Pick<UsageRollup, 'minute' | 'deploymentId' | 'keyId' | 'statusClass'>): UsageRollup | undefined {
    const name = `${minute} ${deploymentId} ${keyId ?? ''} ${statusClass}`;
    const existing = this.#rollups.get(name);
    if (existing !== undefined || this.#rollups.size >= MAX_ROLLUPS) return existing;
    const rollup: UsageRollup = {
      minute,
      deploymentId,
      keyId,
      statusClass,
      requests: 0,
      requestsWithUsage: 0,
      promptTokens: 0,
      completionTokens: 0,
      cachedTokens: 0,
      latency: newHistogram(),
      firstByte: newHistogram(),
    };
    this.#rollups.set(name, rollup);
    return rollup;
  }
}
