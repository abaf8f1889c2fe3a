import { newId } from 'capstan/internal';
import { controlTransaction } from '../control/control-transaction';
import { recordEvents } from '../control/control-events';
import { ServiceError } from '../store/errors';
import { matchesEvent } from './event-types';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { rfc3339 } from '../store/times';
import type { WebhookDeliveryRow, WebhookRow } from './webhook-schema';

export interface WebhookMessage {
  id: string;
  webhookId: string;
  url: string;
  /** The signing secrets, newest first. */
  secrets: string[];
  payload: string;
}

/** The outcome of one attempt. The response body is never kept. */
export interface WebhookAttempt {
  at: number;
  durationMs: number;
  status: number | null;
  /** Null if the message was delivered. */
  error: string | null;
}

/** Attempts per message: the first at once, the others after 10 s, 40 s and so on, up to 6 h. */
export const MAX_ATTEMPTS = 8;
const FIRST_DELAY_MS = 10_000;
const LONGEST_DELAY_MS = 6 * 3_600_000;
/** A message that was taken is due again after this time unless its attempt was recorded. */
const LEASE_MS = 60_000;
/** Pending messages per webhook. Further events are dropped and counted. */
export const MAX_WAITING = 1_000;
/** A webhook whose attempts all failed for this long is disabled. */
export const FAILING_MS = 3 * 86_400_000;
/** Events queued in one transaction. */
const EVENTS_PER_TRANSACTION = 500;
const KEEP_MS = 7 * 86_400_000;
/** Finished deliveries kept per webhook. */
const KEEP_DELIVERIES = 1_000;
/** Attempts kept per message, newest last. A message may be redelivered any number of times. */
const KEEP_ATTEMPTS = 20;

/** Queues messages for all events since the last call. */
export async function queueWebhookEvents({ db, now }: StoreContext): Promise<void> {
  while (await hasNewEvents(db)) await controlTransaction(db, (tx) => queueSome(tx, now()));
}

async function hasNewEvents(db: ServiceDb): Promise<boolean> {
  const { seq, event_seq: last } = await db
    .selectFrom('webhook_cursor')
    .innerJoin('auth_state', (join) => join.onTrue())
    .select(['seq', 'event_seq'])
    .executeTakeFirstOrThrow();
  return seq < last;
}

async function queueSome(tx: ServiceTx, nowMs: number): Promise<void> {
  const { seq, event_seq: last } = await tx
    .selectFrom('webhook_cursor')
    .innerJoin('auth_state', (join) => join.onTrue())
    .select(['seq', 'event_seq'])
    .executeTakeFirstOrThrow();
  const hasWebhooks =
    (await tx.selectFrom('webhooks').select('id').where('status', '=', 'active').limit(1).executeTakeFirst()) !==
    undefined;
  const end = hasWebhooks ? Math.min(last, seq + EVENTS_PER_TRANSACTION) : last;
  const rows = !hasWebhooks
    ? []
    : await tx
        .selectFrom('events')
        .innerJoin('webhooks', 'webhooks.owner_id', 'events.owner_id')
        .selectAll('events')
        .select(['webhooks.id', 'webhooks.owner_type', 'webhooks.events as filters'])
        .where('status', '=', 'active')
        .where('seq', '>', seq)
        .where('seq', '<=', end)
        .whereRef('seq', '>', 'after_seq')
        .orderBy('seq')
        .execute();
  const matching = rows.filter(({ filters, type }) => matchesEvent(JSON.parse(filters) as string[], type));
  const waiting = await countWaiting(tx, [...new Set(matching.map(({ id }) => id))]);
  for (const event of matching) {
    const num = waiting.get(event.id) ?? 0;
    if (num >= MAX_WAITING) {
      await tx
        .updateTable('webhooks')
        .set((eb) => ({ num_dropped: eb('num_dropped', '+', 1) }))
        .where('id', '=', event.id)
        .execute();
      continue;
    }
    waiting.set(event.id, num + 1);
    const payload = payloadOf({
      type: event.type,
      at: event.at,
      seq: event.seq,
      owner: { type: event.owner_type, id: event.owner_id },
      target: { type: event.target_type, id: event.target_id },
      data: JSON.parse(event.data) as object,
    });
    await tx
      .insertInto('webhook_deliveries')
      .values(newDelivery({ webhookId: event.id, type: event.type, seq: event.seq, payload, nextAt: nowMs }, nowMs))
      .onConflict((conflict) => conflict.columns(['webhook_id', 'event_seq']).doNothing())
      .execute();
  }
  await tx.updateTable('webhook_cursor').set({ seq: end }).execute();
}

async function countWaiting(tx: ServiceTx, webhookIds: readonly string[]): Promise<Map<string, number>> {
  if (webhookIds.length === 0) return new Map();
  const rows = await tx
    .selectFrom('webhook_deliveries')
    .select((eb) => ['webhook_id', eb.fn.countAll<number | string>().as('num')])
    .where('state', '=', 'pending')
    .where('webhook_id', 'in', webhookIds)
    .groupBy('webhook_id')
    .execute();
  return new Map(rows.map(({ webhook_id: id, num }) => [id, Number(num)]));
}

/** Returns the JSON body of a message. */
function payloadOf({
  type,
  at,
  ...rest
}: {
  type: string;
  at: number;
  seq: number | null;
  owner: object;
  target: object;
  data: object;
}): string {
  return JSON.stringify({ type, timestamp: rfc3339(at), ...rest });
}

function newDelivery(
  {
    webhookId,
    type,
    seq,
    payload,
    nextAt,
  }: { webhookId: string; type: string; seq: number | null; payload: string; nextAt: number },
  nowMs: number,
): WebhookDeliveryRow {
  return {
    id: newId('whd', nowMs),
    webhook_id: webhookId,
    event_seq: seq,
    event_type: type,
    payload,
    state: 'pending',
    num_attempts: 0,
    next_at: nextAt,
    attempts: '[]',
    created_at: nowMs,
    ended_at: null,
  };
}

/**
 * Leases the oldest due message of each webhook that is not in `busy`. A leased message is not due until its lease
 * ends.
 */
export function takeWebhookMessages(
  { db, box, now }: StoreContext,
  busy: readonly string[],
  limit: number,
): Promise<WebhookMessage[]> {
  return controlTransaction(db, async (tx) => {
    const nowMs = now();
    let due = tx
      .selectFrom('webhook_deliveries')
      .innerJoin('webhooks', 'webhooks.id', 'webhook_id')
      .select((eb) => ['webhook_id', eb.fn.min('event_seq').as('seq')])
      .where('state', '=', 'pending')
      .where('next_at', '<=', nowMs)
      .where('webhooks.status', '=', 'active')
      .where('event_seq', 'is not', null)
      .groupBy('webhook_id')
      .orderBy('seq')
      .limit(limit);
    if (busy.length > 0) due = due.where('webhook_id', 'not in', busy);
    const messages: WebhookMessage[] = [];
    for (const { webhook_id: webhookId, seq } of await due.execute()) {
      const row = await tx
        .updateTable('webhook_deliveries')
        .set({ next_at: nowMs + LEASE_MS })
        .where('webhook_id', '=', webhookId)
        .where('event_seq', '=', seq)
        .returning(['id', 'payload'])
        .executeTakeFirstOrThrow();
      const webhook = await tx.selectFrom('webhooks').selectAll().where('id', '=', webhookId).executeTakeFirstOrThrow();
      messages.push({ ...row, webhookId, url: webhook.url, secrets: secretsOf(webhook, box, nowMs) });
    }
    return messages;
  });
}

/** Inserts a test message, which belongs to no event and is attempted once. */
export async function newTestMessage(
  { box, now }: StoreContext,
  tx: ServiceTx,
  webhook: WebhookRow,
): Promise<WebhookMessage> {
  const { id: webhookId, owner_type: type, owner_id: ownerId, url } = webhook;
  const nowMs = now();
  const payload = payloadOf({
    type: 'webhook.test',
    at: nowMs,
    seq: null,
    owner: { type, id: ownerId },
    target: { type: 'webhook', id: webhookId },
    data: {},
  });
  const row = newDelivery({ webhookId, type: 'webhook.test', seq: null, payload, nextAt: nowMs + LEASE_MS }, nowMs);
  await tx.insertInto('webhook_deliveries').values(row).execute();
  return { id: row.id, webhookId, url, payload, secrets: secretsOf(webhook, box, nowMs) };
}

/** Returns the valid secrets, newest first. */
function secretsOf(
  { id, secret, old_secret: old, old_secret_until: until }: WebhookRow,
  box: StoreContext['box'],
  nowMs: number,
): string[] {
  const sealed = old !== null && until !== null && until > nowMs ? [secret, old] : [secret];
  return sealed.map((text) => box.open(text, webhookPurpose(id)));
}

/** Queues a finished message again with the same id and a new set of attempts. @throws ServiceError `conflict` */
export async function requeue(
  tx: ServiceTx,
  delivery: WebhookDeliveryRow,
  webhook: WebhookRow,
  nowMs: number,
): Promise<WebhookDeliveryRow> {
  if (delivery.event_seq === null)
    throw new ServiceError('conflict', 'a test message cannot be redelivered: send a new one');
  if (delivery.state === 'pending') throw new ServiceError('conflict', 'this message is still pending');
  if (webhook.status !== 'active') throw new ServiceError('conflict', 'the webhook is disabled: enable it first');
  if (((await countWaiting(tx, [webhook.id])).get(webhook.id) ?? 0) >= MAX_WAITING)
    throw new ServiceError('conflict', `${MAX_WAITING} messages are pending: try again when they are delivered`);
  const change = { state: 'pending', num_attempts: 0, next_at: nowMs, ended_at: null } as const;
  await tx.updateTable('webhook_deliveries').set(change).where('id', '=', delivery.id).execute();
  return { ...delivery, ...change };
}

export function webhookPurpose(webhookId: string): string {
  return `webhook ${webhookId}`;
}

/** Records an attempt and schedules the next one. Returns the reason if this disabled the webhook. */
export function endWebhookAttempt(
  { db, now }: StoreContext,
  deliveryId: string,
  attempt: WebhookAttempt,
): Promise<string | undefined> {
  return controlTransaction(db, async (tx) => {
    const row = await tx.selectFrom('webhook_deliveries').selectAll().where('id', '=', deliveryId).executeTakeFirst();
    // Meanwhile the webhook was deleted, or it was disabled and the message failed.
    if (row?.state !== 'pending') return undefined;
    const nowMs = now();
    const isTest = row.event_seq === null;
    const numAttempts = row.num_attempts + 1;
    const state = stateAfter(attempt, isTest ? 1 : MAX_ATTEMPTS, numAttempts);
    await tx
      .updateTable('webhook_deliveries')
      .set({
        state,
        num_attempts: numAttempts,
        attempts: JSON.stringify([...(JSON.parse(row.attempts) as WebhookAttempt[]), attempt].slice(-KEEP_ATTEMPTS)),
        next_at: state === 'pending' ? nowMs + retryDelayMs(numAttempts) : null,
        ended_at: state === 'pending' ? null : nowMs,
      })
      .where('id', '=', deliveryId)
      .execute();
    return isTest ? undefined : updateHealth(tx, row.webhook_id, attempt, nowMs);
  });
}

function stateAfter({ error }: WebhookAttempt, maxAttempts: number, numAttempts: number): WebhookDeliveryRow['state'] {
  if (error === null) return 'delivered';
  return numAttempts >= maxAttempts ? 'failed' : 'pending';
}

function retryDelayMs(numAttempts: number): number {
  return Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 4 ** (numAttempts - 1));
}

async function updateHealth(
  tx: ServiceTx,
  webhookId: string,
  { error }: WebhookAttempt,
  nowMs: number,
): Promise<string | undefined> {
  const webhook = await tx.selectFrom('webhooks').selectAll().where('id', '=', webhookId).executeTakeFirstOrThrow();
  const failingSince = error === null ? null : (webhook.failing_since ?? nowMs);
  if (failingSince !== webhook.failing_since)
    await tx.updateTable('webhooks').set({ failing_since: failingSince }).where('id', '=', webhookId).execute();
  if (failingSince === null || nowMs - failingSince < FAILING_MS || webhook.status !== 'active') return undefined;
  const reason = `no message was delivered since ${rfc3339(failingSince)}; last error: ${error}`;
  await tx
    .updateTable('webhooks')
    .set((eb) => ({ status: 'disabled', reason, updated_at: nowMs, rev: eb('rev', '+', 1) }))
    .where('id', '=', webhookId)
    .execute();
  await failPending(tx, webhookId, nowMs);
  await recordEvents(
    tx,
    { type: webhook.owner_type, id: webhook.owner_id },
    { type: 'webhook', id: webhookId },
    [{ type: 'webhook.disabled', data: { reason } }],
    nowMs,
  );
  return reason;
}

/** Fails the pending messages of a disabled webhook. */
export async function failPending(tx: ServiceTx, webhookId: string, nowMs: number): Promise<void> {
  await tx
    .updateTable('webhook_deliveries')
    .set({ state: 'failed', next_at: null, ended_at: nowMs })
    .where('webhook_id', '=', webhookId)
    .where('state', '=', 'pending')
    .execute();
}

/** Deletes old deliveries and expired secrets, and fails test messages whose attempt was interrupted. */
export async function pruneWebhookDeliveries({ db, now }: StoreContext): Promise<void> {
  const nowMs = now();
  await db
    .updateTable('webhook_deliveries')
    .set({ state: 'failed', next_at: null, ended_at: nowMs })
    .where('event_seq', 'is', null)
    .where('state', '=', 'pending')
    .where('next_at', '<', nowMs)
    .execute();
  await db
    .updateTable('webhooks')
    .set({ old_secret: null, old_secret_until: null })
    .where('old_secret_until', '<=', nowMs)
    .execute();
  await db
    .deleteFrom('webhook_deliveries')
    .where('state', '!=', 'pending')
    .where('ended_at', '<', nowMs - KEEP_MS)
    .execute();
  const many = await db
    .selectFrom('webhook_deliveries')
    .select('webhook_id')
    .where('state', '!=', 'pending')
    .groupBy('webhook_id')
    .having((eb) => eb.fn.countAll(), '>', KEEP_DELIVERIES)
    .execute();
  for (const { webhook_id: webhookId } of many) {
    const { id } = await db
      .selectFrom('webhook_deliveries')
      .select('id')
      .where('webhook_id', '=', webhookId)
      .where('state', '!=', 'pending')
      .orderBy('id', 'desc')
      .offset(KEEP_DELIVERIES - 1)
      .limit(1)
      .executeTakeFirstOrThrow();
    await db
      .deleteFrom('webhook_deliveries')
      .where('webhook_id', '=', webhookId)
      .where('state', '!=', 'pending')
      .where('id', '<', id)
      .execute();
  }
}

/** @throws ServiceError `not_found` */
export async function findWebhookRow(tx: ServiceDb | ServiceTx, webhookId: string): Promise<WebhookRow> {
  const row = await tx.selectFrom('webhooks').selectAll().where('id', '=', webhookId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'webhook not found');
  return row;
}
