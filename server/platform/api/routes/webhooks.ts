import { input, page } from '../json-schema';
import { MadeWebhook, NewWebhook, Rotation, Webhook, WebhookDelivery, WebhookEdit } from '../objects';
import { pageOf, pagingById } from '../paging';
import { ApiProblem } from '../problem';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'webhooks';
const PATH = '/api/v1/webhooks';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List your webhooks and those of organizations that you administer',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('whk')),
    responses: { 200: page(Webhook) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOf(await store.listWebhooks(actor), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a webhook for a public URL. The signing secret is shown once',
    tag: TAG,
    auth: 'any',
    body: NewWebhook,
    secrets: ['secret'],
    responses: { 201: MadeWebhook },
    problems: ['quota_exceeded'],
    handle: async (call) => {
      const {
        context: { store },
        actor,
        body,
      } = call;
      // Check the right first, so that strangers learn nothing about the address.
      await store.demandOwner(actor, body.owner ?? { type: 'user', id: actor.userId }, 'webhook.change');
      await senderOf(call).check(body.url);
      const { webhook, secret } = await store.createWebhook(actor, body);
      return { status: 201, body: { ...webhook, secret }, headers: { Location: `${PATH}/${webhook.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get a webhook',
    tag: TAG,
    auth: 'any',
    responses: { 200: Webhook },
    handle: async ({ context: { store }, actor, params: { id } }) => ({
      status: 200,
      body: await store.getWebhook(actor, id),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update, enable or disable a webhook. Events while it is disabled are not sent',
    tag: TAG,
    auth: 'any',
    body: WebhookEdit,
    responses: { 200: Webhook },
    problems: ['stale'],
    handle: async (call) => {
      const {
        context: { store },
        actor,
        params: { id },
        body,
        ifMatch,
      } = call;
      await store.getWebhook(actor, id);
      if (body.url !== undefined) await senderOf(call).check(body.url);
      return { status: 200, body: await store.editWebhook(actor, id, body, ifMatch) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a webhook and its waiting messages',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context: { store }, actor, params: { id } }) => {
      await store.deleteWebhook(actor, id);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/rotate`,
    summary: 'Rotate the secret of a webhook. Messages are signed with both secrets for grace_s',
    tag: TAG,
    auth: 'any',
    body: Rotation,
    isBodyOptional: true,
    secrets: ['secret'],
    responses: { 200: MadeWebhook },
    problems: ['conflict', 'stale'],
    handle: async ({ context: { store }, actor, params: { id }, body, ifMatch }) => {
      const { webhook, secret } = await store.rotateWebhook(actor, id, (body.grace_s ?? 0) * 1000, ifMatch);
      return { status: 200, body: { ...webhook, secret } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/rotate/finish`,
    summary: 'End the grace period of a rotation',
    tag: TAG,
    auth: 'any',
    body: input({}),
    isBodyOptional: true,
    responses: { 200: Webhook },
    problems: ['stale'],
    handle: async ({ context: { store }, actor, params: { id }, ifMatch }) => ({
      status: 200,
      body: await store.finishWebhookRotation(actor, id, ifMatch),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/deliveries/{delivery}/redeliver`,
    summary: 'Send a delivered or failed message again, with the same id',
    tag: TAG,
    auth: 'any',
    body: input({}),
    isBodyOptional: true,
    responses: { 202: WebhookDelivery },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params: { id, delivery } }) => ({
      status: 202,
      body: await store.redeliverWebhook(actor, id, delivery),
    }),
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}/deliveries`,
    summary: 'List the deliveries of a webhook and their outcomes, newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('whd')),
    responses: { 200: page(WebhookDelivery) },
    handle: async ({ context: { store }, actor, params: { id }, query }) => ({
      status: 200,
      body: await store.pageWebhookDeliveries(actor, id, query),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/test`,
    summary: 'Send a webhook.test event now, and return its outcome',
    tag: TAG,
    auth: 'any',
    responses: { 200: WebhookDelivery },
    problems: ['too_many_attempts'],
    handle: async (call) => {
      const {
        context: { store },
        actor,
        params: { id },
        attempts,
      } = call;
      await store.getWebhook(actor, id);
      const sender = senderOf(call);
      // Each test is a request to an address that the user chose.
      attempts.check(`webhook test ${actor.userId}`, 'too many webhook tests within a minute');
      attempts.count(`webhook test ${actor.userId}`);
      const message = await store.createTestDelivery(actor, id);
      await store.endWebhookAttempt(message.id, await sender.attempt(message));
      return { status: 200, body: await store.getWebhookDelivery(actor, message.id) };
    },
  }),
];

function senderOf({ context: { webhooks } }: ApiCall<unknown>) {
  if (webhooks === undefined) throw new ApiProblem('unavailable', 'this process sends no webhooks');
  return webhooks;
}
