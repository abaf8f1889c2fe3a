import { sql } from 'kysely';
import { type Histogram, newHistogram, NUM_BUCKETS } from './histogram';
import type { UsageRollup } from './rollups';
import { FIRST_BYTE_COLUMNS, LATENCY_COLUMNS, MAX_COLUMNS, SUM_COLUMNS } from './usage-migrations';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** The resource usage of a deployment's replicas in one minute, summed over the samples. */
export interface ResourceSample {
  minute: number;
  deploymentId: string;
  samples: number;
  /** Percent of one core, summed over the replicas. */
  cpuPercentSum: number;
  memoryMbSum: number;
}

export interface UsageFilter {
  deploymentId: string;
  fromMinute: number;
  /** Exclusive. */
  toMinute: number;
  /** Length of a bucket. Buckets start at multiples of it. */
  stepMinutes: number;
  /** Only requests with this key. */
  keyId?: string;
}

export type UsageTotals = Pick<
  UsageRollup,
  | 'requests'
  | 'requestsWithUsage'
  | 'promptTokens'
  | 'completionTokens'
  | 'cachedTokens'
  | 'latency'
  | 'firstByte'
  | 'statusClass'
>;

/** `bucket` is its first minute divided by `stepMinutes`. */
export interface UsageReport {
  buckets: (UsageTotals & { bucket: number })[];
  resources: { bucket: number; cpuPercent: number; memoryMb: number }[];
  /** Totals by key, most requests first. `name` is null for a deleted key, `keyId` also for requests without a key. */
  keys: {
    keyId: string | null;
    name: string | null;
    display: string | null;
    requests: number;
    errors: number;
    promptTokens: number;
    completionTokens: number;
  }[];
}

export interface UsageStore {
  /** Adds to the rollups in the database. */
  recordUsage(rollups: readonly UsageRollup[]): Promise<void>;
  recordResources(samples: readonly ResourceSample[]): Promise<void>;
  readUsageReport(filter: UsageFilter): Promise<UsageReport>;
  /** Deletes usage before this minute. */
  pruneUsage(beforeMinute: number): Promise<void>;
}

export function usageMethods({ db }: { readonly db: ServiceDb }): UsageStore {
  return {
    recordUsage: (rollups) => recordUsage(db, rollups),
    recordResources: (samples) => recordResources(db, samples),
    readUsageReport: async (filter) => ({
      buckets: await readBuckets(db, filter),
      resources: await readResources(db, filter),
      keys: await readKeys(db, filter),
    }),
    pruneUsage: (beforeMinute) =>
      db.transaction().execute(async (tx) => {
        await sql`delete from usage_rollups where minute < ${sql.lit(beforeMinute)}`.execute(tx);
        await sql`delete from resource_samples where minute < ${sql.lit(beforeMinute)}`.execute(tx);
      }),
  };
}

/** A row has about 65 values, and a statement at most 32,766. */
const ROWS_PER_STATEMENT = 200;
const MAX_KEYS = 100;

const KEY_COLUMNS = ['minute', 'deployment_id', 'key_id', 'status_class'];
const ALL_COLUMNS = [...KEY_COLUMNS, ...SUM_COLUMNS, ...MAX_COLUMNS];

async function recordUsage(db: ServiceDb, rollups: readonly UsageRollup[]): Promise<void> {
  // Sorted, because two gateways that lock rows in different orders would deadlock on PostgreSQL.
  const rows = rollups.map(toRow).sort(byKey);
  await db.transaction().execute(async (tx) => {
    for (let at = 0; at < rows.length; at += ROWS_PER_STATEMENT)
      await addRows(tx, rows.slice(at, at + ROWS_PER_STATEMENT));
  });
}

async function addRows(tx: ServiceTx, rows: readonly (readonly (string | number)[])[]): Promise<void> {
  const columns = sql.join(ALL_COLUMNS.map((name) => sql.ref(name)));
  const values = sql.join(
    rows.map(
      (row) => sql`(${sql.join(row.map((value) => (typeof value === 'number' ? sql.lit(value) : sql.val(value))))})`,
    ),
  );
  const updates = sql.join([
    ...SUM_COLUMNS.map((name) => sql`${sql.ref(name)} = usage_rollups.${sql.ref(name)} + excluded.${sql.ref(name)}`),
    ...MAX_COLUMNS.map(
      (name) =>
        sql`${sql.ref(name)} = case when excluded.${sql.ref(name)} > usage_rollups.${sql.ref(name)} then excluded.${sql.ref(name)} else usage_rollups.${sql.ref(name)} end`,
    ),
  ]);
  await sql`insert into usage_rollups (${columns}) values ${values} on conflict (deployment_id, minute, key_id, status_class) do update set ${updates}`.execute(
    tx,
  );
}

function toRow({
  minute,
  deploymentId,
  keyId,
  statusClass,
  requests,
  requestsWithUsage,
  promptTokens,
  completionTokens,
  cachedTokens,
  latency,
  firstByte,
}: UsageRollup): (string | number)[] {
  return [
    minute,
    deploymentId,
    keyId ?? '',
    statusClass,
    requests,
    requestsWithUsage,
    promptTokens,
    completionTokens,
    cachedTokens,
    Math.round(latency.sumMs),
    Math.round(firstByte.sumMs),
    ...latency.counts,
    ...firstByte.counts,
    Math.ceil(latency.maxMs),
    Math.ceil(firstByte.maxMs),
  ];
}

function byKey(a: readonly (string | number)[], b: readonly (string | number)[]): number {
  for (let i = 0; i < KEY_COLUMNS.length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

type SumRow = Record<string, number>;

async function readBuckets(
  db: ServiceDb,
  { deploymentId, fromMinute, toMinute, stepMinutes, keyId }: UsageFilter,
): Promise<UsageReport['buckets']> {
  // NOTE: the step is a literal. The embedded database binds numbers as floats and would not divide integers.
  const bucket = sql`minute / ${sql.lit(stepMinutes)}`;
  const sums = sql.join([
    ...SUM_COLUMNS.map((name) => sql`cast(sum(${sql.ref(name)}) as bigint) as ${sql.ref(name)}`),
    ...MAX_COLUMNS.map((name) => sql`max(${sql.ref(name)}) as ${sql.ref(name)}`),
  ]);
  const { rows } = await sql<SumRow>`select ${bucket} as bucket, status_class, ${sums} from usage_rollups
    where deployment_id = ${deploymentId} and minute >= ${sql.lit(fromMinute)} and minute < ${sql.lit(toMinute)} ${keyId === undefined ? sql`` : sql`and key_id = ${keyId}`}
    group by ${bucket}, status_class order by 1, 2`.execute(db);
  return rows.map((row) => ({
    bucket: Number(row.bucket),
    statusClass: row.status_class,
    requests: row.requests,
    requestsWithUsage: row.told,
    promptTokens: row.prompt_tokens,
    completionTokens: row.completion_tokens,
    cachedTokens: row.cached_tokens,
    latency: toHistogram(row, LATENCY_COLUMNS, 'latency'),
    firstByte: toHistogram(row, FIRST_BYTE_COLUMNS, 'first_byte'),
  }));
}

function toHistogram(row: SumRow, columns: readonly string[], name: string): Histogram {
  const histogram = newHistogram();
  for (let i = 0; i < NUM_BUCKETS; i++) histogram.counts[i] = row[columns[i]];
  histogram.sumMs = row[`${name}_sum_ms`];
  histogram.maxMs = row[`${name}_max_ms`];
  return histogram;
}

async function readKeys(
  db: ServiceDb,
  { deploymentId, fromMinute, toMinute, keyId }: UsageFilter,
): Promise<UsageReport['keys']> {
  const { rows } = await sql<{
    key_id: string;
    name: string | null;
    display: string | null;
    requests: number;
    errors: number;
    prompt_tokens: number;
    completion_tokens: number;
  }>`
    select used.key_id, api_keys.name, api_keys.display, used.requests, used.errors, used.prompt_tokens, used.completion_tokens from (
      select key_id, cast(sum(requests) as bigint) as requests, cast(sum(case when status_class >= 4 then requests else 0 end) as bigint) as errors,
        cast(sum(prompt_tokens) as bigint) as prompt_tokens, cast(sum(completion_tokens) as bigint) as completion_tokens
      from usage_rollups where deployment_id = ${deploymentId} and minute >= ${sql.lit(fromMinute)} and minute < ${sql.lit(toMinute)} ${keyId === undefined ? sql`` : sql`and key_id = ${keyId}`}
      group by key_id order by 2 desc, 1 limit ${sql.lit(MAX_KEYS)}
    ) as used left join api_keys on api_keys.id = used.key_id order by used.requests desc, used.key_id`.execute(db);
  return rows.map((row) => ({
    keyId: row.key_id === '' ? null : row.key_id,
    name: row.name,
    display: row.display,
    requests: row.requests,
    errors: row.errors,
    promptTokens: row.prompt_tokens,
    completionTokens: row.completion_tokens,
  }));
}

async function recordResources(db: ServiceDb, samples: readonly ResourceSample[]): Promise<void> {
  await db.transaction().execute(async (tx) => {
    for (const { deploymentId, minute, samples: count, cpuPercentSum, memoryMbSum } of samples) {
      await sql`insert into resource_samples (deployment_id, minute, samples, cpu_percent_sum, memory_mb_sum) values (${deploymentId}, ${sql.lit(minute)}, ${sql.lit(count)}, ${cpuPercentSum}, ${memoryMbSum})
        on conflict (deployment_id, minute) do update set samples = resource_samples.samples + excluded.samples,
          cpu_percent_sum = resource_samples.cpu_percent_sum + excluded.cpu_percent_sum, memory_mb_sum = resource_samples.memory_mb_sum + excluded.memory_mb_sum`.execute(
        tx,
      );
    }
  });
}

async function readResources(
  db: ServiceDb,
  { deploymentId, fromMinute, toMinute, stepMinutes }: UsageFilter,
): Promise<UsageReport['resources']> {
  const bucket = sql`minute / ${sql.lit(stepMinutes)}`;
  const { rows } = await sql<{
    bucket: number;
    cpu: number;
    memory: number;
  }>`select ${bucket} as bucket, sum(cpu_percent_sum) / sum(samples) as cpu, sum(memory_mb_sum) / sum(samples) as memory from resource_samples
    where deployment_id = ${deploymentId} and minute >= ${sql.lit(fromMinute)} and minute < ${sql.lit(toMinute)} group by ${bucket} order by 1`.execute(
    db,
  );
  return rows.map((row) => ({ bucket: Number(row.bucket), cpuPercent: row.cpu, memoryMb: row.memory }));
}
