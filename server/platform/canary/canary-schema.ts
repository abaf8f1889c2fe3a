import { sql } from 'kysely';
import type { Component, Tx } from 'capstan/internal';

/** Versions that get a share of the traffic before they replace the active one. */
export const CANARY: Component = { name: 'canary', steps: [createCanaries] };

export interface CanaryTables {
  canaries: CanaryRow;
}

/**
 * `promoting` and `rolling_back` are wishes that the controller fulfils. `promoted`, `rolled_back` and `cancelled` are
 * ends.
 */
export const CANARY_STATES = ['running', 'promoting', 'rolling_back', 'promoted', 'rolled_back', 'cancelled'] as const;
export type CanaryState = (typeof CANARY_STATES)[number];

/** The last canary of a deployment. */
export interface CanaryRow {
  deployment_id: string;
  version_id: string;
  version_number: number;
  /** Share of the requests, in percent. */
  percent: number;
  /** `Name: value`. Requests with this header go to the canary. */
  header: string | null;
  /** JSON array of key ids. Requests with these keys go to the canary. */
  keys: string;
  state: CanaryState;
  /** Why it was rolled back. */
  reason: string | null;
  /** JSON of CanaryStats. */
  stats: string;
  started_at: number;
  /** When a user promoted it, or it was rolled back. */
  decided_at: number | null;
}

async function createCanaries(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('canaries')
    .addColumn('deployment_id', 'text', (column) =>
      column.primaryKey().references('deployments.id').onDelete('cascade'),
    )
    .addColumn('version_id', 'text', (column) => column.notNull())
    .addColumn('version_number', 'integer', (column) => column.notNull())
    .addColumn('percent', 'integer', (column) => column.notNull().check(sql`percent between 0 and 100`))
    .addColumn('header', 'text')
    .addColumn('keys', 'text', (column) => column.notNull())
    .addColumn('state', 'text', (column) => column.notNull())
    .addColumn('reason', 'text')
    .addColumn('stats', 'text', (column) => column.notNull())
    .addColumn('started_at', 'bigint', (column) => column.notNull())
    .addColumn('decided_at', 'bigint')
    .execute();
}
