import { sql } from 'kysely';
import type { Component } from '../access/migrations';
import type { OwnerType, Tx } from '../access/schema';

/** Nothing else refers to these tables. */
export const WEBHOOKS: Component = { name: 'webhooks', steps: [createWebhooks, keepOldSecrets] };

export interface WebhookTables {
  webhooks: WebhookRow;
  webhook_deliveries: WebhookDeliveryRow;
  /** One row: up to which event everything is queued. */
  webhook_cursor: { id: 1; seq: number };
}

export interface WebhookRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  url: string;
  /** Sealed. */
  secret: string;
  /** That before it, sealed, which signs too until then. */
  old_secret: string | null;
  old_secret_until: number | null;
  /** JSON: types, groups, or `*`. */
  events: string;
  status: 'active' | 'disabled';
  /** Why it is disabled, where nobody did that. */
  reason: string | null;
  /** Events after this one are its. */
  after_seq: number;
  /** Of the first failure since something arrived. */
  failing_since: number | null;
  /** Events that were left out while too many waited. */
  num_dropped: number;
  created_by: string;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface WebhookDeliveryRow {
  id: string;
  webhook_id: string;
  /** Null: a test, which is attempted once. */
  event_seq: number | null;
  event_type: string;
  /** What is sent, word for word. */
  payload: string;
  state: 'pending' | 'delivered' | 'failed';
  num_attempts: number;
  /** Of the next attempt; while one is under way, when it counts as lost. */
  next_at: number | null;
  /** JSON, see WebhookAttempt. */
  attempts: string;
  created_at: number;
  ended_at: number | null;
}

async function createWebhooks(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('webhooks')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(sql`owner_type in ('user', 'org')`))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('url', 'text', (column) => column.notNull())
    .addColumn('secret', 'text', (column) => column.notNull())
    .addColumn('events', 'text', (column) => column.notNull())
    .addColumn('status', 'text', (column) => column.notNull().check(sql`status in ('active', 'disabled')`))
    .addColumn('reason', 'text')
    .addColumn('after_seq', 'bigint', (column) => column.notNull())
    .addColumn('failing_since', 'bigint')
    .addColumn('num_dropped', 'bigint', (column) => column.notNull())
    .addColumn('created_by', 'text', (column) => column.notNull())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema.createIndex('webhooks_owner').on('webhooks').column('owner_id').execute();
  await tx.schema
    .createTable('webhook_deliveries')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('webhook_id', 'text', (column) => column.notNull().references('webhooks.id').onDelete('cascade'))
    .addColumn('event_seq', 'bigint')
    .addColumn('event_type', 'text', (column) => column.notNull())
    .addColumn('payload', 'text', (column) => column.notNull())
    .addColumn('state', 'text', (column) => column.notNull().check(sql`state in ('pending', 'delivered', 'failed')`))
    .addColumn('num_attempts', 'integer', (column) => column.notNull())
    .addColumn('next_at', 'bigint')
    .addColumn('attempts', 'text', (column) => column.notNull())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('ended_at', 'bigint')
    // Whatever happens, an event is queued for a webhook once.
    .addUniqueConstraint('webhook_deliveries_event', ['webhook_id', 'event_seq'])
    .execute();
  await tx.schema
    .createIndex('webhook_deliveries_state')
    .on('webhook_deliveries')
    .columns(['state', 'next_at'])
    .execute();
  await tx.schema
    .createTable('webhook_cursor')
    .addColumn('id', 'smallint', (column) => column.primaryKey())
    .addColumn('seq', 'bigint', (column) => column.notNull())
    .execute();
  await sql`insert into webhook_cursor (id, seq) values (1, 0)`.execute(tx);
}

async function keepOldSecrets(tx: Tx): Promise<void> {
  await tx.schema.alterTable('webhooks').addColumn('old_secret', 'text').execute();
  await tx.schema.alterTable('webhooks').addColumn('old_secret_until', 'bigint').execute();
}
