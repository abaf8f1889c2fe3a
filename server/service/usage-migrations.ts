import type { Component } from '../access/migrations';
import type { Tx } from '../access/schema';
import { NUM_BUCKETS } from '../gateway/histogram';

/** Counted apart from the rest of the service: nothing refers to these tables, and what is in them goes when it is old. */
export const USAGE: Component = { name: 'usage', steps: [createUsage] };

/** Columns of a histogram, one per bucket. */
export const LATENCY_COLUMNS = bucketColumns('latency');
export const FIRST_BYTE_COLUMNS = bucketColumns('first_byte');
/** What is added up when the same minute is written again; the largest ones of `MAX_COLUMNS` are kept. */
export const SUM_COLUMNS = [
  'requests',
  'told',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'latency_sum_ms',
  'first_byte_sum_ms',
  ...LATENCY_COLUMNS,
  ...FIRST_BYTE_COLUMNS,
];
export const MAX_COLUMNS = ['latency_max_ms', 'first_byte_max_ms'];

function bucketColumns(name: string): string[] {
  return Array.from({ length: NUM_BUCKETS }, (_, i) => `${name}_${i}`);
}

async function createUsage(tx: Tx): Promise<void> {
  const rollups = tx.schema
    .createTable('usage_rollups')
    .addColumn('minute', 'bigint', (column) => column.notNull())
    .addColumn('deployment_id', 'text', (column) => column.notNull())
    // Empty where there was none: a part of a primary key is never null.
    .addColumn('key_id', 'text', (column) => column.notNull())
    .addColumn('status_class', 'smallint', (column) => column.notNull());
  await [...SUM_COLUMNS, ...MAX_COLUMNS]
    .reduce((table, name) => table.addColumn(name as never, 'bigint', (column) => column.notNull()), rollups)
    .addPrimaryKeyConstraint('usage_rollups_pk', ['deployment_id', 'minute', 'key_id', 'status_class'])
    .execute();
  await tx.schema.createIndex('usage_rollups_minute').on('usage_rollups').column('minute').execute();
  await tx.schema
    .createTable('resource_samples')
    .addColumn('deployment_id', 'text', (column) => column.notNull())
    .addColumn('minute', 'bigint', (column) => column.notNull())
    .addColumn('samples', 'integer', (column) => column.notNull())
    .addColumn('cpu_percent_sum', 'double precision', (column) => column.notNull())
    .addColumn('memory_mb_sum', 'double precision', (column) => column.notNull())
    .addPrimaryKeyConstraint('resource_samples_pk', ['deployment_id', 'minute'])
    .execute();
  await tx.schema.createIndex('resource_samples_minute').on('resource_samples').column('minute').execute();
}
