import type { Command } from 'commander';
import { collect, type CommandIo, parseDuration, renderTable, UsageError } from 'capstan/internal/cli';
import type { MadeWebhook, Webhook, WebhookDelivery } from '../api/objects';
import type { Page } from '../api/json-schema';
import type { Client } from '../api/client';
import { findOwner } from './find';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatTime, plain } from './text';

interface WebhookFlags {
  event?: string[];
  owner?: string;
  address?: string;
}

interface RotateFlags {
  grace?: string;
  finish?: boolean;
}

/** Adds `capstan webhooks …`. */
export function addWebhooksCommand(program: Command, io?: CommandIo): void {
  const webhooks = program
    .command('webhooks')
    .description('manage webhooks, which receive the events of the service')
    .addHelpText('after', HELP_TAIL);
  const events = {
    flag: '--event <name>',
    help: 'event to send, for example deployment.running, deployment.*, or * for all events; repeatable',
  };
  remote(webhooks, 'list', 'list your webhooks and those of organizations where you are an admin', list, io);
  remote<WebhookFlags>(
    webhooks,
    'create <address>',
    'create a webhook and print its signing secret once; ADDRESS is the URL that receives the events',
    create,
    io,
  )
    .option(events.flag, `${events.help} (required)`, collect)
    .option('--owner <owner>', 'owner whose events are sent: org:SLUG (default: yourself)');
  remote<WebhookFlags>(webhooks, 'edit <webhook>', 'change a webhook; WEBHOOK is its ID or a unique address', edit, io)
    .option(events.flag, `${events.help}; replaces all events`, collect)
    .option('--address <url>', 'new URL that receives the events');
  remote(
    webhooks,
    'enable <webhook>',
    'enable a webhook; it receives events from now on',
    (call) => setEnabled(call, true),
    io,
  );
  remote(
    webhooks,
    'disable <webhook>',
    'disable a webhook; events that happen while it is disabled are not sent',
    (call) => setEnabled(call, false),
    io,
  );
  remote<RotateFlags>(webhooks, 'rotate <webhook>', 'give a webhook a new secret and print it once', rotate, io)
    .option('--grace <duration>', 'how long messages are also signed with the old secret, up to 30d (default: 0)')
    .option('--finish', 'end the grace period of the last rotation now, without a new secret');
  remote(webhooks, 'test <webhook>', 'send a webhook.test event now and print the result', test, io);
  remote(webhooks, 'deliveries <webhook>', 'list the latest deliveries and their results', deliveries, io);
  remote(
    webhooks,
    'redeliver <webhook> <delivery>',
    'send the message of a delivery again; DELIVERY is the ID in the list of deliveries',
    redeliver,
    io,
  );
  remote<{ yes?: boolean }>(webhooks, 'delete <webhook>', 'delete a webhook permanently', remove, io).option(
    '--yes',
    'confirm the deletion',
  );
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<Webhook>('/webhooks', {});
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0)
    return io.err('No webhooks found. Create one with: capstan webhooks create ADDRESS --event NAME\n');
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
  return since === null ? 'on' : `failing since ${formatTime(since)}`;
}

async function create({ client, flags, args: [url], io }: Call<WebhookFlags>): Promise<void> {
  if (flags.event === undefined) throw new UsageError('--event: expected an event, such as deployment.* or *');
  const created = await client.request<MadeWebhook>('POST', '/webhooks', {
    body: { url, events: flags.event, ...defined('owner', await findOwner(client, flags.owner)) },
  });
  if (flags.json) return printJson(io, created);
  io.err(`created ${created.id}. Store this signing secret now. It is not shown again:\n`);
  io.out(`${created.secret ?? ''}\n`);
}

async function edit({ client, flags, args: [reference], io }: Call<WebhookFlags>): Promise<void> {
  if (flags.event === undefined && flags.address === undefined)
    throw new UsageError('nothing to change: expected --event or --address');
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
  io.out(`${enabled ? 'enabled' : 'disabled'} ${id}\n`);
}

async function rotate({ client, flags, args: [reference], io }: Call<RotateFlags>): Promise<void> {
  if (flags.finish === true && flags.grace !== undefined) throw new UsageError('--finish: cannot be used with --grace');
  const graceMs = parseDuration('--grace', flags.grace ?? '0');
  const { id } = await findWebhook(client, reference);
  if (flags.finish === true) {
    const finished = await client.request<Webhook>('POST', `/webhooks/${id}/rotate/finish`);
    return flags.json ? printJson(io, finished) : io.out(`ended the grace period of ${id}\n`);
  }
  const rotated = await client.request<MadeWebhook>('POST', `/webhooks/${id}/rotate`, {
    body: { grace_s: Math.ceil(graceMs / 1000) },
  });
  if (flags.json) return printJson(io, rotated);
  const grace =
    rotated.rotating_until === null
      ? ''
      : ` Until ${formatTime(rotated.rotating_until)} messages are also signed with the old secret.`;
  io.err(`rotated ${id}.${grace} Store the new secret now. It is not shown again:\n`);
  io.out(`${rotated.secret ?? ''}\n`);
}

async function redeliver({ client, flags, args: [reference, deliveryId], io }: Call<object>): Promise<void> {
  const { id } = await findWebhook(client, reference);
  const delivery = await client.request<WebhookDelivery>(
    'POST',
    `/webhooks/${id}/deliveries/${encodeURIComponent(deliveryId)}/redeliver`,
  );
  if (flags.json) return printJson(io, delivery);
  io.out(`sending ${delivery.id} again\n`);
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
        formatTime(delivery.created_at),
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
  requireYes(flags, `delete ${id} (${plain(url)})`);
  await client.request('DELETE', `/webhooks/${id}`);
  if (!flags.json) io.out(`deleted ${id}\n`);
}

async function findWebhook(client: Client, reference: string): Promise<Webhook> {
  const found = (await client.all<Webhook>('/webhooks', {})).filter(
    ({ id, url }) => id === reference || url === reference,
  );
  if (found.length === 0)
    throw Object.assign(new Error(`no webhook has the ID or address ${reference}`), { code: 'not_found' });
  if (found.length > 1)
    throw new UsageError(
      `several webhooks have the address ${reference}. Use an ID: ${found.map(({ id }) => id).join(', ')}`,
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
