/** Usage counts in memory and in the database. */
import { randomBytes } from 'node:crypto';
import type { GatewayRecord } from '../../../../server/platform/gateway/gateway';
import {
  addHistogram,
  BUCKET_BOUNDS_MS,
  countOf,
  newHistogram,
  observe,
  percentile,
} from '../../../../server/platform/usage/histogram';
import { UsageMeter, type UsageRollup } from '../../../../server/platform/usage/rollups';
import { Targets } from '../../../../server/platform/gateway/targets';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { UsageRecorder } from '../../../../server/platform/usage/usage-recorder';
import { ALICE, overBackends } from '../../access/support';
import { migrated } from '../support';
import { target } from '../gateway/support';

const MINUTE = 30_000_000;
const MS = MINUTE * 60_000;

function record(fields: Partial<GatewayRecord> = {}): GatewayRecord {
  return {
    deploymentId: 'dep_1',
    slug: 's',
    keyId: undefined,
    status: 200,
    endedMs: MS,
    durationMs: 100,
    firstByteMs: 50,
    requestBytes: 0,
    responseBytes: 0,
    usage: undefined,
    numRetries: 0,
    failures: [],
    ...fields,
  };
}

async function taken(meter: UsageMeter): Promise<UsageRollup[]> {
  let all: UsageRollup[] = [];
  await meter.flush((rollups) => {
    all = rollups;
    return Promise.resolve();
  });
  return all;
}

describe('a histogram', () => {
  test('returns percentiles within its buckets, and undefined when empty', () => {
    const histogram = newHistogram();
    expect(percentile(histogram, 0.5)).toBeUndefined();
    for (let ms = 1; ms <= 1_000; ms++) observe(histogram, ms);
    expect(countOf(histogram)).toBe(1_000);
    for (const q of [0.5, 0.75, 0.9, 0.99]) expect(Math.abs(percentile(histogram, q)! - q * 1_000)).toBeLessThan(40);
    expect(percentile(histogram, 1)).toBeLessThanOrEqual(1_000);
    expect([histogram.sumMs, histogram.maxMs]).toEqual([500_500, 1_000]);
  });

  test('counts durations above the last bound', () => {
    const histogram = newHistogram();
    observe(histogram, 2 * BUCKET_BOUNDS_MS[BUCKET_BOUNDS_MS.length - 1]);
    expect(percentile(histogram, 0.99)).toBeLessThanOrEqual(1_200_000);
    expect(percentile(histogram, 0.99)).toBeGreaterThan(600_000);
    const sum = newHistogram();
    addHistogram(sum, histogram);
    expect(sum).toEqual(histogram);
  });
});

describe('the meter', () => {
  test('counts by minute, deployment, key and class', async () => {
    const meter = new UsageMeter();
    meter.record(record());
    meter.record(record({ status: 204, usage: { promptTokens: 5, completionTokens: 7, cachedTokens: 2 } }));
    meter.record(record({ keyId: 'key_1' }));
    meter.record(record({ status: 499, firstByteMs: undefined }));
    meter.record(record({ endedMs: MS + 60_000 }));
    meter.record(record({ deploymentId: 'dep_2' }));
    const all = await taken(meter);
    expect(
      all.map(({ minute, deploymentId, keyId, statusClass, requests }) => [
        minute - MINUTE,
        deploymentId,
        keyId,
        statusClass,
        requests,
      ]),
    ).toEqual([
      [0, 'dep_1', null, 2, 2],
      [0, 'dep_1', 'key_1', 2, 1],
      [0, 'dep_1', null, 4, 1],
      [1, 'dep_1', null, 2, 1],
      [0, 'dep_2', null, 2, 1],
    ]);
    expect(all[0]).toMatchObject({ requestsWithUsage: 1, promptTokens: 5, completionTokens: 7, cachedTokens: 2 });
    expect([countOf(all[0].latency), countOf(all[0].firstByte), countOf(all[2].firstByte)]).toEqual([2, 2, 0]);
    expect(meter.size).toBe(0);
  });

  test('keeps counts that could not be written, and adds new ones', async () => {
    const meter = new UsageMeter();
    meter.record(record());
    await expect(
      meter.flush(() => {
        meter.record(record());
        return Promise.reject(new Error('disk full'));
      }),
    ).rejects.toThrow('disk full');
    expect(await taken(meter)).toMatchObject([{ requests: 2 }]);
  });

  test('bounds the number of rollups', () => {
    const meter = new UsageMeter();
    for (let i = 0; i < 100_500; i++) meter.record(record({ keyId: `key_${i}` }));
    expect(meter.size).toBe(100_000);
  });
});

overBackends((make) => {
  let store: ServiceStore;
  beforeEach(async () => {
    store = await openServiceStore({ location: await make(migrated), secretKey: randomBytes(32) } as Parameters<
      typeof openServiceStore
    >[0]);
  });
  afterEach(async () => {
    await store.close();
  });

  const write = async (...records: GatewayRecord[]) => {
    const meter = new UsageMeter();
    records.forEach((one) => meter.record(one));
    await store.recordUsage(await taken(meter));
  };
  const range = { deploymentId: 'dep_1', fromMinute: MINUTE, toMinute: MINUTE + 10, stepMinutes: 5 };

  test('adds counts of the same minute', async () => {
    await write(
      record({ durationMs: 10 }),
      record({ durationMs: 1_000, usage: { promptTokens: 5, completionTokens: 7, cachedTokens: 2 } }),
    );
    await write(record({ durationMs: 30 }));
    const { buckets } = await store.readUsageReport(range);
    expect(buckets).toHaveLength(1);
    expect(buckets[0]).toMatchObject({
      bucket: MINUTE / 5,
      statusClass: 2,
      requests: 3,
      requestsWithUsage: 1,
      promptTokens: 5,
      completionTokens: 7,
      cachedTokens: 2,
    });
    expect(buckets[0].latency).toMatchObject({ sumMs: 1_040, maxMs: 1_000 });
    expect(countOf(buckets[0].latency)).toBe(3);
  });

  test('reads buckets of one deployment within the range', async () => {
    const at = (minutes: number, fields: Partial<GatewayRecord> = {}) =>
      record({ endedMs: MS + minutes * 60_000, ...fields });
    await write(at(-1), at(0), at(4), at(5), at(9, { status: 500 }), at(10), at(3, { deploymentId: 'dep_2' }));
    const { buckets } = await store.readUsageReport(range);
    expect(buckets.map(({ bucket, statusClass, requests }) => [bucket - MINUTE / 5, statusClass, requests])).toEqual([
      [0, 2, 2],
      [1, 2, 1],
      [1, 5, 1],
    ]);
  });

  test('returns totals by key with the names of keys', async () => {
    await store.openDeployment(ALICE, 'mine');
    const { key } = await store.createKey({ owner: ALICE, name: 'laptop', type: 'user-level' } as Parameters<
      ServiceStore['createKey']
    >[0]);
    await write(
      record({ keyId: key.id }),
      record({ keyId: key.id, status: 429 }),
      record({ keyId: key.id }),
      record({ keyId: 'key_gone' }),
      record({ keyId: 'key_gone' }),
      record({ status: 401 }),
    );
    const { keys } = await store.readUsageReport(range);
    expect(keys.map(({ keyId, name, requests, errors }) => [keyId, name, requests, errors])).toEqual([
      [key.id, 'laptop', 3, 1],
      ['key_gone', null, 2, 0],
      [null, null, 1, 1],
    ]);
    const one = await store.readUsageReport({ ...range, keyId: key.id });
    expect([one.keys.length, one.buckets.map(({ requests }) => requests)]).toEqual([1, [2, 1]]);
  });

  test('takes thousands of rows at once', async () => {
    await write(...Array.from({ length: 3_000 }, (_, i) => record({ keyId: `key_${i}` })));
    expect((await store.readUsageReport(range)).buckets[0].requests).toBe(3_000);
  });

  test('averages resource samples and prunes old ones', async () => {
    await store.recordResources([
      { minute: MINUTE, deploymentId: 'dep_1', samples: 2, cpuPercentSum: 100, memoryMbSum: 400 },
    ]);
    await store.recordResources([
      { minute: MINUTE, deploymentId: 'dep_1', samples: 2, cpuPercentSum: 60, memoryMbSum: 400 },
    ]);
    await write(record());
    expect((await store.readUsageReport(range)).resources).toEqual([
      { bucket: MINUTE / 5, cpuPercent: 40, memoryMb: 200 },
    ]);
    await store.pruneUsage(MINUTE + 1);
    expect(await store.readUsageReport(range)).toEqual({ buckets: [], resources: [], keys: [] });
  });
});

describe('the recorder', () => {
  const log = { warn: jest.fn(), info: jest.fn() };

  test('saves counts and samples, and logs an outage once', async () => {
    const written: unknown[] = [];
    let isBroken = true;
    const write = (value: unknown) => {
      if (isBroken) return Promise.reject(new Error('disk full'));
      written.push(value);
      return Promise.resolve();
    };
    const targets = new Targets();
    const replicas = ['rep_1', 'rep_2'].map((id) => ({
      id,
      address: { type: 'unix', path: '/x' } as const,
      secret: 's',
      isBuiltin: false,
    }));
    targets.set(target('s', replicas));
    targets.set(target('idle', []));
    const recorder = new UsageRecorder({
      store: { recordUsage: write, recordResources: write, pruneUsage: () => Promise.resolve() },
      targets,
      log,
      driver: {
        usage: (id) =>
          Promise.resolve(id === 'rep_1' ? { cpuPercent: 30, memoryMb: 100 } : { cpuPercent: 20, memoryMb: 50 }),
      },
      now: () => MS,
    });
    recorder.record(record());
    await recorder.sample();
    await recorder.flush();
    await recorder.flush();
    expect(log.warn).toHaveBeenCalledTimes(1);
    expect(written).toEqual([]);
    isBroken = false;
    await recorder.close();
    expect(written).toMatchObject([
      [{ deploymentId: 'dep_1', requests: 1 }],
      [{ deploymentId: 'dep_s', minute: MINUTE, samples: 1, cpuPercentSum: 50, memoryMbSum: 150 }],
    ]);
  });
});
