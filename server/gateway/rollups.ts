import type { GatewayRecord } from './gateway';
import { addHistogram, type Histogram, newHistogram, observe } from './histogram';

/** What came for a deployment in one minute by one key, with answers of one class. */
export interface UsageRollup {
  /** Since 1970. */
  minute: number;
  deploymentId: string;
  /** Null where no key was let in: a public deployment, or a refusal. */
  keyId: string | null;
  /** 2 for 200 to 299, and so on; who left before an answer counts as 4. */
  statusClass: number;
  requests: number;
  /** Of those, how many told what they used. */
  told: number;
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  latency: Histogram;
  /** Of those that a replica answered. */
  firstByte: Histogram;
}

const MINUTE_MS = 60_000;
/** What cannot be written is kept up to here. */
const MAX_ROLLUPS = 100_000;

/** Counts requests until they are written in a batch; a request touches a map and nothing else. */
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
    rollup.told++;
    rollup.promptTokens += usage.promptTokens;
    rollup.completionTokens += usage.completionTokens;
    rollup.cachedTokens += usage.cachedTokens;
  }

  /** Hands what there is to `write`; what it does not take is kept for the next time. */
  async flush(write: (rollups: UsageRollup[]) => Promise<void>): Promise<void> {
    if (this.#rollups.size === 0) return;
    const taken = this.#rollups;
    this.#rollups = new Map();
    try {
      await write([...taken.values()]);
    } catch (error) {
      taken.forEach((rollup) => this.#keep(rollup));
      throw error;
    }
  }

  #keep(old: UsageRollup): void {
    const rollup = this.#at(old);
    if (rollup === undefined) return;
    for (const field of ['requests', 'told', 'promptTokens', 'completionTokens', 'cachedTokens'] as const)
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
    const known = this.#rollups.get(name);
    if (known !== undefined || this.#rollups.size >= MAX_ROLLUPS) return known;
    const rollup: UsageRollup = {
      minute,
      deploymentId,
      keyId,
      statusClass,
      requests: 0,
      told: 0,
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
