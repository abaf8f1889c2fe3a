import type { ServiceActor } from './actor';
import type { StoreContext } from './store-context';
import { endWebhookAttempt, pruneWebhookDeliveries, queueWebhookEvents, takeWebhookMessages, type WebhookAttempt } from './webhook-queue';
import { createTestDelivery, createWebhook, deleteWebhook, editWebhook, getDelivery, getWebhook, listWebhooks, type NewWebhookSpec, pageDeliveries, type WebhookChange } from './webhooks';

/** Webhooks: for people, who are looked at, and for the sender, which asks in nobody's name. */
export function webhookMethods(context: StoreContext) {
  const { db } = context;
  return {
    listWebhooks: (actor: ServiceActor) => listWebhooks(db, actor),
    getWebhook: (actor: ServiceActor, id: string) => getWebhook(db, actor, id),
    createWebhook: (actor: ServiceActor, spec: NewWebhookSpec) => createWebhook(context, actor, spec),
    editWebhook: (actor: ServiceActor, id: string, edit: WebhookChange, ifRev?: number) => editWebhook(context, actor, id, edit, ifRev),
    deleteWebhook: (actor: ServiceActor, id: string) => deleteWebhook(context, actor, id),
    pageWebhookDeliveries: (actor: ServiceActor, id: string, paging: { after?: string; limit: number }) => pageDeliveries(db, actor, id, paging),
    createTestDelivery: (actor: ServiceActor, id: string) => createTestDelivery(context, actor, id),
    getWebhookDelivery: (actor: ServiceActor, id: string) => getDelivery(db, actor, id),

    queueWebhookEvents: () => queueWebhookEvents(context),
    takeWebhookMessages: (busy: readonly string[], limit: number) => takeWebhookMessages(context, busy, limit),
    endWebhookAttempt: (deliveryId: string, attempt: WebhookAttempt) => endWebhookAttempt(context, deliveryId, attempt),
    pruneWebhookDeliveries: () => pruneWebhookDeliveries(context),
  };
}

export type WebhookStore = ReturnType<typeof webhookMethods>;
