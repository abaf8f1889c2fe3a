import type { Component, Tx } from 'capstan/internal';
import { NUM_BUCKETS } from './histogram';

/** No other table refers to these tables. Old rows are pruned. */
export const USAGE: Component = { name: 'usage', steps: [createUsage] };

/** One column per histogram bucket. */
export const LATENCY_COLUMNS = bucketColumns('latency');
export const FIRST_BYTE_COLUMNS = bucketColumns('first_byte');
/** Writing a rollup again adds these columns and keeps the maximum of `MAX_COLUMNS`. */
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
    // Empty without a key, because columns of a primary key cannot be null.
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
