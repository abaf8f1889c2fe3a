import { sql } from 'kysely';
import type { Component, OwnerType, Tx } from 'capstan/internal';

/** No other table refers to these tables. */
export const WEBHOOKS: Component = { name: 'webhooks', steps: [createWebhooks, keepOldSecrets] };

export interface WebhookTables {
  webhooks: WebhookRow;
  webhook_deliveries: WebhookDeliveryRow;
  /** One row: `seq` is the last event that was queued. */
  webhook_cursor: { id: 1; seq: number };
}

export interface WebhookRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  url: string;
  /** Encrypted. */
  secret: string;
  /** The previous secret, encrypted. It also signs until `old_secret_until`. */
  old_secret: string | null;
  old_secret_until: number | null;
  /** JSON array of event types, groups or `*`. */
  events: string;
  status: 'active' | 'disabled';
  /** Why the service disabled it. Null if a user did. */
  reason: string | null;
  /** The webhook receives events after this one. */
  after_seq: number;
  /** Time of the first failure since the last delivery. */
  failing_since: number | null;
  /** Events dropped because too many messages were pending. */
  num_dropped: number;
  created_by: string;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface WebhookDeliveryRow {
  id: string;
  webhook_id: string;
  /** Null for a test message, which is attempted once. */
  event_seq: number | null;
  event_type: string;
  /** The request body. */
  payload: string;
  state: 'pending' | 'delivered' | 'failed';
  num_attempts: number;
  /** Time of the next attempt. During an attempt, the end of its lease. */
  next_at: number | null;
  /** JSON array of WebhookAttempt. */
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
    // An event is queued at most once for each webhook.
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
