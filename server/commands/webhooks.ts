import type { Command } from 'commander';
import { parseDuration } from '../access/durations';
import type { MadeWebhook, Webhook, WebhookDelivery } from '../api/objects';
import type { Page } from '../api/json-schema';
import type { Client } from '../api/client';
import { UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import { findOwner } from './find';
import type { CommandIo } from './io';
import { type Call, collect, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { minute, plain } from './text';

interface WebhookFlags {
  event?: string[];
  owner?: string;
  address?: string;
}

interface RotateFlags {
  grace?: string;
  finish?: boolean;
}

/** Mounts `capstan webhooks …`. */
export function addWebhooksCommand(program: Command, io?: CommandIo): void {
  const webhooks = program
    .command('webhooks')
    .description('where the service sends what happens')
    .addHelpText('after', HELP_TAIL);
  const events = [
    '--event <name>',
    'deployment.running and the like, deployment.* for all of deployments, or * for everything; repeatable',
  ] as const;
  remote(webhooks, 'list', 'show your webhooks, and those of the organizations that you are an admin of', list, io);
  remote<WebhookFlags>(
    webhooks,
    'create <address>',
    'have events sent to an address; the secret that signs them is printed once',
    create,
    io,
  )
    .option(...events, collect)
    .option('--owner <owner>', 'org:SLUG: what happens to the organization (default: to yourself)');
  remote<WebhookFlags>(
    webhooks,
    'edit <webhook>',
    'change one; WEBHOOK is its id, or an address that one webhook has',
    edit,
    io,
  )
    .option(...events, collect)
    .option('--address <url>', 'send to this address');
  remote(
    webhooks,
    'enable <webhook>',
    'switch one on: it hears what happens from then on',
    (call) => setEnabled(call, true),
    io,
  );
  remote(webhooks, 'disable <webhook>', 'switch one off', (call) => setEnabled(call, false), io);
  remote<RotateFlags>(webhooks, 'rotate <webhook>', 'give one a new secret, printed once', rotate, io)
    .option('--grace <duration>', 'how long messages are signed with the old secret too, up to 30d (default: 0)')
    .option('--finish', 'no new secret: end the grace of the last rotation now');
  remote(webhooks, 'test <webhook>', 'send a webhook.test event now', test, io);
  remote(webhooks, 'deliveries <webhook>', 'show the last messages, and what became of them', deliveries, io);
  remote(
    webhooks,
    'redeliver <webhook> <delivery>',
    'send a message once more; DELIVERY is its id, as deliveries shows it',
    redeliver,
    io,
  );
  remote<{ yes?: boolean }>(webhooks, 'delete <webhook>', 'delete one', remove, io).option('--yes', 'yes, for good');
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<Webhook>('/webhooks', {});
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0) return io.err('No webhooks yet: capstan webhooks create ADDRESS --event NAME makes one.\n');
  io.out(
    renderTable(
      ['ADDRESS', 'EVENTS', 'STATE', 'WAITING', 'OWNER', 'ID'],
      found.map((webhook) => [
        plain(webhook.url),
        webhook.events.join(' '),
        stateOf(webhook),
        String(webhook.waiting),
        `${webhook.owner.type}:${plain(webhook.owner.name)}`,
        webhook.id,
      ]),
    ),
  );
}

function stateOf({ state, reason, failing_since: since }: Webhook): string {
  if (state === 'disabled') return reason === null ? 'off' : `off: ${plain(reason)}`;
  return since === null ? 'on' : `failing since ${minute(since)}`;
}

async function create({ client, flags, args: [url], io }: Call<WebhookFlags>): Promise<void> {
  if (flags.event === undefined) throw new UsageError('--event: expected what to send, such as deployment.* or *');
  const made = await client.request<MadeWebhook>('POST', '/webhooks', {
    body: { url, events: flags.event, ...defined('owner', await findOwner(client, flags.owner)) },
  });
  if (flags.json) return printJson(io, made);
  io.err(`created ${made.id}; this secret signs what is sent, and is not shown again:\n`);
  io.out(`${made.secret ?? ''}\n`);
}

async function edit({ client, flags, args: [reference], io }: Call<WebhookFlags>): Promise<void> {
  if (flags.event === undefined && flags.address === undefined) throw new UsageError('expected --event or --address');
  const { id } = await findWebhook(client, reference);
  const changed = await client.request<Webhook>('PATCH', `/webhooks/${id}`, {
    body: { ...defined('events', flags.event), ...defined('url', flags.address) },
  });
  if (flags.json) return printJson(io, changed);
  io.out(`changed ${id}\n`);
}

async function setEnabled({ client, flags, args: [reference], io }: Call<object>, enabled: boolean): Promise<void> {
  const { id } = await findWebhook(client, reference);
  const changed = await client.request<Webhook>('PATCH', `/webhooks/${id}`, { body: { enabled } });
  if (flags.json) return printJson(io, changed);
  io.out(`switched ${id} ${enabled ? 'on' : 'off'}\n`);
}

async function rotate({ client, flags, args: [reference], io }: Call<RotateFlags>): Promise<void> {
  if (flags.finish === true && flags.grace !== undefined)
    throw new UsageError('--finish: expected without --grace, for it makes no new secret');
  const graceMs = parseDuration('--grace', flags.grace ?? '0');
  const { id } = await findWebhook(client, reference);
  if (flags.finish === true) {
    const finished = await client.request<Webhook>('POST', `/webhooks/${id}/rotate/finish`);
    return flags.json ? printJson(io, finished) : io.out(`ended the old secret of ${id}\n`);
  }
  const made = await client.request<MadeWebhook>('POST', `/webhooks/${id}/rotate`, {
    body: { grace_s: Math.ceil(graceMs / 1000) },
  });
  if (flags.json) return printJson(io, made);
  io.err(
    `rotated ${id}${made.rotating_until === null ? '' : `; the old secret signs too until ${minute(made.rotating_until)}`}; this one is not shown again:\n`,
  );
  io.out(`${made.secret ?? ''}\n`);
}

async function redeliver({ client, flags, args: [reference, deliveryId], io }: Call<object>): Promise<void> {
  const { id } = await findWebhook(client, reference);
  const delivery = await client.request<WebhookDelivery>(
    'POST',
    `/webhooks/${id}/deliveries/${encodeURIComponent(deliveryId)}/redeliver`,
  );
  if (flags.json) return printJson(io, delivery);
  io.out(`${delivery.id} is sent once more\n`);
}

async function test({ client, flags, args: [reference], io }: Call<object>): Promise<void> {
  const { id, url } = await findWebhook(client, reference);
  const delivery = await client.request<WebhookDelivery>('POST', `/webhooks/${id}/test`);
  if (flags.json) printJson(io, delivery);
  const [attempt] = delivery.attempts;
  if (attempt.error !== null)
    throw Object.assign(new Error(`${plain(url)}: ${plain(attempt.error)}`), { code: 'webhook_failed' });
  if (!flags.json) io.out(`${plain(url)}: ${attempt.status} after ${attempt.duration_ms} ms\n`);
}

async function deliveries({ client, flags, args: [reference], io }: Call<object>): Promise<void> {
  const { id } = await findWebhook(client, reference);
  const page = await client.request<Page<WebhookDelivery>>('GET', `/webhooks/${id}/deliveries`);
  if (flags.json) return printJson(io, page);
  io.out(
    renderTable(
      ['AT', 'EVENT', 'STATE', 'ATTEMPTS', 'LAST', 'ID'],
      page.data.map((delivery) => [
        minute(delivery.created_at),
        plain(delivery.event),
        delivery.state,
        String(delivery.attempts.length),
        lastOf(delivery),
        delivery.id,
      ]),
    ),
  );
}

function lastOf({ attempts }: WebhookDelivery): string {
  const last = attempts.at(-1);
  return last === undefined ? '-' : `${plain(last.error ?? String(last.status))} after ${last.duration_ms} ms`;
}

async function remove({ client, flags, args: [reference], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { id, url } = await findWebhook(client, reference);
  if (flags.yes !== true) throw new UsageError(`this cannot be undone: --yes deletes ${id} (${plain(url)})`);
  await client.request('DELETE', `/webhooks/${id}`);
  if (!flags.json) io.out(`deleted ${id}\n`);
}

async function findWebhook(client: Client, reference: string): Promise<Webhook> {
  const found = (await client.all<Webhook>('/webhooks', {})).filter(
    ({ id, url }) => id === reference || url === reference,
  );
  if (found.length === 0) throw Object.assign(new Error(`there is no webhook ${reference}`), { code: 'not_found' });
  if (found.length > 1)
    throw new UsageError(
      `several webhooks have the address ${reference}: give the id of one: ${found.map(({ id }) => id).join(', ')}`,
    );
  return found[0];
}

const HELP_TAIL = `
Examples:
  capstan webhooks create https://hooks.example.com/capstan --event 'deployment.*' --event version.error
  capstan webhooks test https://hooks.example.com/capstan
  capstan webhooks deliveries whk_…
  capstan webhooks redeliver whk_… whd_…
  capstan webhooks rotate whk_… --grace 24h
`;
