import { newId, type OwnerRef } from 'capstan/internal';
import { newWebhookSecret } from './sign';
import { changeOptions, demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { serviceChange } from '../store/change';
import { controlTransaction } from '../control/control-transaction';
import { ServiceError } from '../store/errors';
import { EVENT_GROUPS, EVENT_TYPES } from './event-types';
import { type OwnerView, ownerViews, viewOf } from '../deployments/owner-views';
import type { Page } from '../store/page';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { rfc3339, rfc3339OrNull } from '../store/times';
import {
  findWebhookRow,
  failPending,
  newTestMessage,
  requeue,
  webhookPurpose,
  type WebhookAttempt,
  type WebhookMessage,
} from './webhook-queue';
import type { WebhookDeliveryRow, WebhookRow } from './webhook-schema';

const MAX_WEBHOOKS = 20;
const KNOWN_EVENTS = new Set(['*', ...EVENT_GROUPS, ...EVENT_TYPES]);

export interface WebhookView {
  id: string;
  url: string;
  events: string[];
  owner: OwnerView;
  state: WebhookRow['status'];
  /** Why the service disabled it. Null if a user did. */
  reason: string | null;
  /** Until then messages are also signed with the previous secret. */
  rotating_until: string | null;
  failing_since: string | null;
  /** The number of pending messages. */
  waiting: number;
  /** The number of events dropped because the queue was full. */
  dropped: number;
  created_at: string;
  updated_at: string;
  rev: number;
}

export interface WebhookDelivery {
  id: string;
  event: string;
  /** Null for a test message. */
  event_seq: number | null;
  state: WebhookDeliveryRow['state'];
  next_at: string | null;
  created_at: string;
  attempts: { at: string; duration_ms: number; status: number | null; error: string | null }[];
}

/** The caller has checked the address of `url` already. */
export interface NewWebhookSpec {
  url: string;
  events: readonly string[];
  owner?: OwnerRef;
}

export interface WebhookChange {
  url?: string;
  events?: readonly string[];
  enabled?: boolean;
}

/**
 * Returns the actor's webhooks and those of organizations where the actor may change webhooks, newest first. Other
 * members do not see them, because a URL may contain a secret.
 */
export async function listWebhooks({ db, now }: StoreContext, actor: ServiceActor): Promise<WebhookView[]> {
  const owners = await visibleOwners(db, actor, 'webhook.change');
  const rows = await db
    .selectFrom('webhooks')
    .selectAll()
    .where(
      'owner_id',
      'in',
      owners.map(({ id }) => id),
    )
    .orderBy('id', 'desc')
    .execute();
  return toWebhooks(db, rows, now());
}

export async function getWebhook(
  { db, now }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
): Promise<WebhookView> {
  return (await toWebhooks(db, [await demandWebhook(db, reading(actor), webhookId)], now()))[0];
}

/** `secret` is returned only here. The receiver verifies signatures with it. */
export async function createWebhook(
  context: StoreContext,
  actor: ServiceActor,
  spec: NewWebhookSpec,
): Promise<{ webhook: WebhookView; secret: string }> {
  const owner = spec.owner ?? { type: 'user' as const, id: actor.userId };
  const events = checkEvents(spec.events);
  const { nowMs, secret, id } = { nowMs: context.now(), secret: newWebhookSecret(), id: newId('whk', context.now()) };
  return serviceChange(context.db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    await demandOwner(tx, actor, owner, 'webhook.change');
    const { count } = await tx
      .selectFrom('webhooks')
      .select((eb) => eb.fn.countAll<number | string>().as('count'))
      .where('owner_id', '=', owner.id)
      .executeTakeFirstOrThrow();
    if (Number(count) >= MAX_WEBHOOKS)
      throw new ServiceError('quota_exceeded', `an owner can have at most ${MAX_WEBHOOKS} webhooks: delete one first`);
    const row: WebhookRow = {
      id,
      owner_type: owner.type,
      owner_id: owner.id,
      url: spec.url,
      secret: context.box.seal(secret, webhookPurpose(id)),
      old_secret: null,
      old_secret_until: null,
      events: JSON.stringify(events),
      status: 'active',
      reason: null,
      after_seq: await lastEvent(tx),
      failing_since: null,
      num_dropped: 0,
      created_by: actor.userId,
      created_at: nowMs,
      updated_at: nowMs,
      rev,
    };
    await tx.insertInto('webhooks').values(row).execute();
    record({ action: 'webhook.created', owner, target: { type: 'webhook', id }, after: auditView(row) });
    return { webhook: (await toWebhooks(tx, [row], nowMs))[0], secret };
  });
}

/** Changes a webhook. A webhook that is enabled again receives only events after that. */
export function editWebhook(
  { db, now }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  edit: WebhookChange,
  ifRev?: number,
): Promise<WebhookView> {
  const nowMs = now();
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await demandWebhook(tx, actor, webhookId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', `the webhook has changed: its revision is ${before.rev}, not ${ifRev}`);
    const after: WebhookRow = {
      ...before,
      url: edit.url ?? before.url,
      events: edit.events === undefined ? before.events : JSON.stringify(checkEvents(edit.events)),
      updated_at: nowMs,
      rev,
    };
    if (edit.enabled === true && before.status === 'disabled')
      Object.assign(after, {
        status: 'active',
        reason: null,
        failing_since: null,
        num_dropped: 0,
        after_seq: await lastEvent(tx),
      });
    if (edit.enabled === false && before.status === 'active') {
      Object.assign(after, { status: 'disabled', reason: null, failing_since: null });
      await failPending(tx, webhookId, nowMs);
    }
    // A new URL starts without failures.
    if (after.url !== before.url) after.failing_since = null;
    await tx.updateTable('webhooks').set(after).where('id', '=', webhookId).execute();
    record({
      action: 'webhook.updated',
      owner: ownerOf(before),
      target: { type: 'webhook', id: webhookId },
      before: auditView(before),
      after: auditView(after),
    });
    return (await toWebhooks(tx, [after], nowMs))[0];
  });
}

/**
 * Replaces the secret and returns the new one. The old secret also signs for another `graceMs`, so receivers can
 * switch.
 */
export function rotateWebhook(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  graceMs: number,
  ifRev?: number,
): Promise<{ webhook: WebhookView; secret: string }> {
  const { nowMs, secret } = { nowMs: context.now(), secret: newWebhookSecret() };
  return changeSecrets(context, actor, webhookId, 'webhook.rotated', nowMs, ifRev, (row) => {
    if (graceMs > 0 && isRotating(row, nowMs))
      throw new ServiceError(
        'conflict',
        'the secret is already rotating: wait until its grace period ends, or rotate without a grace period',
      );
    return {
      secret: context.box.seal(secret, webhookPurpose(webhookId)),
      old_secret: graceMs > 0 ? row.secret : null,
      old_secret_until: graceMs > 0 ? nowMs + graceMs : null,
    };
  }).then((webhook) => ({ webhook, secret }));
}

/** Ends the grace period of a rotation now. @throws ServiceError */
export function finishWebhookRotation(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  ifRev?: number,
): Promise<WebhookView> {
  return changeSecrets(context, actor, webhookId, 'webhook.rotation_finished', context.now(), ifRev, () => ({
    old_secret: null,
    old_secret_until: null,
  }));
}

function changeSecrets(
  { db }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  action: string,
  nowMs: number,
  ifRev: number | undefined,
  secretsOf: (row: WebhookRow) => Partial<WebhookRow>,
): Promise<WebhookView> {
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await demandWebhook(tx, actor, webhookId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', `the webhook has changed: its revision is ${before.rev}, not ${ifRev}`);
    const after: WebhookRow = { ...before, ...secretsOf(before), updated_at: nowMs, rev };
    await tx.updateTable('webhooks').set(after).where('id', '=', webhookId).execute();
    record({
      action,
      owner: ownerOf(before),
      target: { type: 'webhook', id: webhookId },
      after: { rotating_until: after.old_secret_until },
    });
    return (await toWebhooks(tx, [after], nowMs))[0];
  });
}

function isRotating({ old_secret_until: until }: WebhookRow, nowMs: number): boolean {
  return until !== null && until > nowMs;
}

export async function deleteWebhook({ db, now }: StoreContext, actor: ServiceActor, webhookId: string): Promise<void> {
  await serviceChange(db, now(), changeOptions(actor), async ({ tx, record }) => {
    const row = await demandWebhook(tx, actor, webhookId);
    await tx.deleteFrom('webhooks').where('id', '=', webhookId).execute();
    record({
      action: 'webhook.deleted',
      owner: ownerOf(row),
      target: { type: 'webhook', id: webhookId },
      before: auditView(row),
    });
  });
}

/** Returns deliveries, newest first. */
export async function pageDeliveries(
  db: ServiceDb,
  actor: ServiceActor,
  webhookId: string,
  { after, limit }: { after?: string; limit: number },
): Promise<Page<WebhookDelivery>> {
  await demandWebhook(db, reading(actor), webhookId);
  let query = db
    .selectFrom('webhook_deliveries')
    .selectAll()
    .where('webhook_id', '=', webhookId)
    .orderBy('id', 'desc')
    .limit(limit + 1);
  if (after !== undefined) query = query.where('id', '<', after);
  const rows = await query.execute();
  return { data: rows.slice(0, limit).map(toDelivery), next: rows.length > limit ? rows[limit - 1].id : null };
}

/** Creates a test message. The caller sends it at once. */
export async function createTestDelivery(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
): Promise<WebhookMessage> {
  return context.db
    .transaction()
    .execute(async (tx) => newTestMessage(context, tx, await demandWebhook(tx, actor, webhookId)));
}

/** Queues a finished delivery again. @throws ServiceError */
export function redeliver(
  { db, now }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  deliveryId: string,
): Promise<WebhookDelivery> {
  return controlTransaction(db, async (tx) => {
    const webhook = await demandWebhook(tx, actor, webhookId);
    const delivery = await tx
      .selectFrom('webhook_deliveries')
      .selectAll()
      .where('id', '=', deliveryId)
      .where('webhook_id', '=', webhookId)
      .executeTakeFirst();
    if (delivery === undefined) throw new ServiceError('not_found', 'delivery not found');
    return toDelivery(await requeue(tx, delivery, webhook, now()));
  });
}

export async function getDelivery(db: ServiceDb, actor: ServiceActor, deliveryId: string): Promise<WebhookDelivery> {
  const row = await db.selectFrom('webhook_deliveries').selectAll().where('id', '=', deliveryId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'delivery not found');
  await demandWebhook(db, reading(actor), row.webhook_id);
  return toDelivery(row);
}

/** Webhooks need the right to change them even for reading. This lets read-only management tokens read them. */
function reading(actor: ServiceActor): ServiceActor {
  return { ...actor, canWrite: true };
}

/** @throws ServiceError */
async function demandWebhook(tx: ServiceDb | ServiceTx, actor: ServiceActor, webhookId: string): Promise<WebhookRow> {
  const row = await findWebhookRow(tx, webhookId);
  await demandOwner(tx, actor, ownerOf(row), 'webhook.change').catch((error: ServiceError) => {
    throw error.code === 'not_found' ? new ServiceError('not_found', 'webhook not found') : error;
  });
  return row;
}

function checkEvents(events: readonly string[]): string[] {
  const unknown = events.find((name) => !KNOWN_EVENTS.has(name));
  if (unknown !== undefined)
    throw new ServiceError(
      'invalid_argument',
      `events: unknown event ${unknown}: expected *, one of ${EVENT_GROUPS.join(', ')}, or a type such as deployment.running`,
    );
  return [...new Set(events)];
}

async function lastEvent(tx: ServiceTx): Promise<number> {
  return (await tx.selectFrom('auth_state').select('event_seq').executeTakeFirstOrThrow()).event_seq;
}

function ownerOf({ owner_type: type, owner_id: id }: WebhookRow) {
  return { type, id };
}

/** Records only the origin of the URL, because the path and query may contain a secret. */
function auditView({ url, events, status }: WebhookRow): object {
  return { url: new URL(url).origin, events: JSON.parse(events) as string[], enabled: status === 'active' };
}

async function toWebhooks(
  db: ServiceDb | ServiceTx,
  rows: readonly WebhookRow[],
  nowMs: number,
): Promise<WebhookView[]> {
  if (rows.length === 0) return [];
  const owners = await ownerViews(db, rows.map(ownerOf));
  const counts = await db
    .selectFrom('webhook_deliveries')
    .select((eb) => ['webhook_id', eb.fn.countAll<number | string>().as('num')])
    .where('state', '=', 'pending')
    .where(
      'webhook_id',
      'in',
      rows.map(({ id }) => id),
    )
    .groupBy('webhook_id')
    .execute();
  return rows.map((row) =>
    toWebhook(
      row,
      viewOf(owners, row.owner_id),
      Number(counts.find(({ webhook_id: id }) => id === row.id)?.num ?? 0),
      nowMs,
    ),
  );
}

function toWebhook(row: WebhookRow, owner: OwnerView, numWaiting: number, nowMs: number): WebhookView {
  return {
    id: row.id,
    url: row.url,
    events: JSON.parse(row.events) as string[],
    owner,
    state: row.status,
    reason: row.reason,
    failing_since: rfc3339OrNull(row.failing_since),
    rotating_until: isRotating(row, nowMs) ? rfc3339OrNull(row.old_secret_until) : null,
    waiting: numWaiting,
    dropped: row.num_dropped,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    rev: row.rev,
  };
}

function toDelivery(row: WebhookDeliveryRow): WebhookDelivery {
  const attempts = JSON.parse(row.attempts) as WebhookAttempt[];
  return {
    id: row.id,
    event: row.event_type,
    event_seq: row.event_seq,
    state: row.state,
    next_at: row.state === 'pending' ? rfc3339OrNull(row.next_at) : null,
    created_at: rfc3339(row.created_at),
    attempts: attempts.map(({ at, durationMs, status, error }) => ({
      at: rfc3339(at),
      duration_ms: durationMs,
      status,
      error,
    })),
  };
}
