import type { Owner, OwnerReference, Webhook, WebhookDelivery } from '../api/objects';
import type { Page } from '../api/json-schema';
import { newId } from '../access/ids';
import { newWebhookSecret } from '../webhooks/sign';
import { changeOptions, demandOwner, type ServiceActor, visibleOwners } from './actor';
import { serviceChange } from './change';
import { controlChange } from './control';
import { ServiceError } from './errors';
import { EVENT_GROUPS, EVENT_TYPES } from './event-types';
import { ownerViews, viewOf } from './owner-views';
import type { ServiceDb, ServiceTx } from './schema';
import type { StoreContext } from './store-context';
import { rfc3339, rfc3339OrNull } from './times';
import {
  findWebhookRow,
  giveUpWaiting,
  newTestMessage,
  queueAgain,
  webhookPurpose,
  type WebhookAttempt,
  type WebhookMessage,
} from './webhook-queue';
import type { WebhookDeliveryRow, WebhookRow } from './webhook-schema';

export const MAX_WEBHOOKS = 20;
const KNOWN_EVENTS = new Set(['*', ...EVENT_GROUPS, ...EVENT_TYPES]);

/** `url` is looked at before: where it leads is not the store's to know. */
export interface NewWebhookSpec {
  url: string;
  events: readonly string[];
  owner?: OwnerReference;
}

export interface WebhookChange {
  url?: string;
  events?: readonly string[];
  enabled?: boolean;
}

/** The newest first: the own, and those of the organizations whose webhooks one may change. An address may be a secret, so nobody else sees them. */
export async function listWebhooks({ db, now }: StoreContext, actor: ServiceActor): Promise<Webhook[]> {
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
  return views(db, rows, now());
}

export async function getWebhook({ db, now }: StoreContext, actor: ServiceActor, webhookId: string): Promise<Webhook> {
  return (await views(db, [await demandWebhook(db, reading(actor), webhookId)], now()))[0];
}

/** `secret` is shown once: by it the receiver knows the sender. */
export async function createWebhook(
  context: StoreContext,
  actor: ServiceActor,
  spec: NewWebhookSpec,
): Promise<{ webhook: Webhook; secret: string }> {
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
      throw new ServiceError('quota_exceeded', `an owner has at most ${MAX_WEBHOOKS} webhooks: delete one first`);
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
    return { webhook: (await views(tx, [row], nowMs))[0], secret };
  });
}

/** Switched on again, it begins with what happens from then on. */
export function editWebhook(
  { db, now }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  edit: WebhookChange,
  ifRev?: number,
): Promise<Webhook> {
  const nowMs = now();
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await demandWebhook(tx, actor, webhookId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', 'the webhook was changed meanwhile');
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
      await giveUpWaiting(tx, webhookId, nowMs);
    }
    // What was wrong with the old address says nothing of a new one.
    if (after.url !== before.url) after.failing_since = null;
    await tx.updateTable('webhooks').set(after).where('id', '=', webhookId).execute();
    record({
      action: 'webhook.updated',
      owner: ownerOf(before),
      target: { type: 'webhook', id: webhookId },
      before: auditView(before),
      after: auditView(after),
    });
    return (await views(tx, [after], nowMs))[0];
  });
}

/** A new secret, shown once; that before it signs too for `graceMs` more, so that receivers may change from one to the other. @throws ServiceError */
export function rotateWebhook(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  graceMs: number,
  ifRev?: number,
): Promise<{ webhook: Webhook; secret: string }> {
  const { nowMs, secret } = { nowMs: context.now(), secret: newWebhookSecret() };
  return changeSecrets(context, actor, webhookId, 'webhook.rotated', nowMs, ifRev, (row) => {
    if (graceMs > 0 && isRotating(row, nowMs))
      throw new ServiceError(
        'conflict',
        'the secret is rotating already: a rotation without grace ends both secrets, or wait until the grace is over',
      );
    return {
      secret: context.box.seal(secret, webhookPurpose(webhookId)),
      old_secret: graceMs > 0 ? row.secret : null,
      old_secret_until: graceMs > 0 ? nowMs + graceMs : null,
    };
  }).then((webhook) => ({ webhook, secret }));
}

/** Ends the grace of a rotation now. @throws ServiceError */
export function finishWebhookRotation(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  ifRev?: number,
): Promise<Webhook> {
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
): Promise<Webhook> {
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await demandWebhook(tx, actor, webhookId);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', 'the webhook was changed meanwhile');
    const after: WebhookRow = { ...before, ...secretsOf(before), updated_at: nowMs, rev };
    await tx.updateTable('webhooks').set(after).where('id', '=', webhookId).execute();
    record({
      action,
      owner: ownerOf(before),
      target: { type: 'webhook', id: webhookId },
      after: { rotating_until: after.old_secret_until },
    });
    return (await views(tx, [after], nowMs))[0];
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

/** The newest first. */
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

/** For whoever sends it at once. */
export async function createTestDelivery(
  context: StoreContext,
  actor: ServiceActor,
  webhookId: string,
): Promise<WebhookMessage> {
  return context.db
    .transaction()
    .execute(async (tx) => newTestMessage(context, tx, await demandWebhook(tx, actor, webhookId)));
}

/** Has it sent once more, soon. @throws ServiceError */
export function redeliver(
  { db, now }: StoreContext,
  actor: ServiceActor,
  webhookId: string,
  deliveryId: string,
): Promise<WebhookDelivery> {
  return controlChange(db, async (tx) => {
    const webhook = await demandWebhook(tx, actor, webhookId);
    const delivery = await tx
      .selectFrom('webhook_deliveries')
      .selectAll()
      .where('id', '=', deliveryId)
      .where('webhook_id', '=', webhookId)
      .executeTakeFirst();
    if (delivery === undefined) throw new ServiceError('not_found', 'there is no such delivery');
    return toDelivery(await queueAgain(tx, delivery, webhook, now()));
  });
}

export async function getDelivery(db: ServiceDb, actor: ServiceActor, deliveryId: string): Promise<WebhookDelivery> {
  const row = await db.selectFrom('webhook_deliveries').selectAll().where('id', '=', deliveryId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'there is no such delivery');
  await demandWebhook(db, reading(actor), row.webhook_id);
  return toDelivery(row);
}

/** What a management token that may only read may ask for too. */
function reading(actor: ServiceActor): ServiceActor {
  return { ...actor, canWrite: true };
}

/** @throws ServiceError */
async function demandWebhook(tx: ServiceDb | ServiceTx, actor: ServiceActor, webhookId: string): Promise<WebhookRow> {
  const row = await findWebhookRow(tx, webhookId);
  await demandOwner(tx, actor, ownerOf(row), 'webhook.change').catch((error: ServiceError) => {
    throw error.code === 'not_found' ? new ServiceError('not_found', 'there is no such webhook') : error;
  });
  return row;
}

function checkEvents(events: readonly string[]): string[] {
  const unknown = events.find((name) => !KNOWN_EVENTS.has(name));
  if (unknown !== undefined)
    throw new ServiceError(
      'invalid_argument',
      `events: there is no ${unknown}: expected *, one of ${EVENT_GROUPS.join(', ')}, or a type such as deployment.running`,
    );
  return [...new Set(events)];
}

async function lastEvent(tx: ServiceTx): Promise<number> {
  return (await tx.selectFrom('auth_state').select('event_seq').executeTakeFirstOrThrow()).event_seq;
}

function ownerOf({ owner_type: type, owner_id: id }: WebhookRow) {
  return { type, id };
}

/** Of the address its origin alone: the rest may be a secret. */
function auditView({ url, events, status }: WebhookRow): object {
  return { url: new URL(url).origin, events: JSON.parse(events) as string[], enabled: status === 'active' };
}

async function views(db: ServiceDb | ServiceTx, rows: readonly WebhookRow[], nowMs: number): Promise<Webhook[]> {
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

function toWebhook(row: WebhookRow, owner: Owner, numWaiting: number, nowMs: number): Webhook {
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
