import type { ServiceActor } from '../accounts/actor';
import type { StoreContext } from './store-context';
import {
  endWebhookAttempt,
  pruneWebhookDeliveries,
  queueWebhookEvents,
  takeWebhookMessages,
  type WebhookAttempt,
} from '../webhooks/webhook-queue';
import {
  createTestDelivery,
  createWebhook,
  deleteWebhook,
  editWebhook,
  finishWebhookRotation,
  getDelivery,
  getWebhook,
  listWebhooks,
  type NewWebhookSpec,
  pageDeliveries,
  redeliver,
  rotateWebhook,
  type WebhookChange,
} from '../webhooks/webhooks';

/** Methods with an actor check its rights. The others are for the sender. */
export function webhookMethods(context: StoreContext) {
  const { db } = context;
  return {
    listWebhooks: (actor: ServiceActor) => listWebhooks(context, actor),
    getWebhook: (actor: ServiceActor, id: string) => getWebhook(context, actor, id),
    createWebhook: (actor: ServiceActor, spec: NewWebhookSpec) => createWebhook(context, actor, spec),
    editWebhook: (actor: ServiceActor, id: string, edit: WebhookChange, ifRev?: number) =>
      editWebhook(context, actor, id, edit, ifRev),
    rotateWebhook: (actor: ServiceActor, id: string, graceMs: number, ifRev?: number) =>
      rotateWebhook(context, actor, id, graceMs, ifRev),
    finishWebhookRotation: (actor: ServiceActor, id: string, ifRev?: number) =>
      finishWebhookRotation(context, actor, id, ifRev),
    deleteWebhook: (actor: ServiceActor, id: string) => deleteWebhook(context, actor, id),
    pageWebhookDeliveries: (actor: ServiceActor, id: string, paging: { after?: string; limit: number }) =>
      pageDeliveries(db, actor, id, paging),
    redeliverWebhook: (actor: ServiceActor, id: string, deliveryId: string) =>
      redeliver(context, actor, id, deliveryId),
    createTestDelivery: (actor: ServiceActor, id: string) => createTestDelivery(context, actor, id),
    getWebhookDelivery: (actor: ServiceActor, id: string) => getDelivery(db, actor, id),

    queueWebhookEvents: () => queueWebhookEvents(context),
    takeWebhookMessages: (busy: readonly string[], limit: number) => takeWebhookMessages(context, busy, limit),
    endWebhookAttempt: (deliveryId: string, attempt: WebhookAttempt) => endWebhookAttempt(context, deliveryId, attempt),
    pruneWebhookDeliveries: () => pruneWebhookDeliveries(context),
  };
}

export type WebhookStore = ReturnType<typeof webhookMethods>;
