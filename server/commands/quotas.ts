import type { Command } from 'commander';
import { parseOwner } from '../access/owners';
import type { Client } from '../api/client';
import type { OwnerQuota } from '../api/objects';
import { UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import type { CommandIo } from './io';
import { type Call, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { plain, renderFields } from './text';

interface SetFlags {
  deployments?: string;
  gpus?: string;
}

/** Mounts `capstan quotas …` and `capstan accounts …`, both for administrators. */
export function addAdministrationCommands(program: Command, io?: CommandIo): void {
  const quotas = program
    .command('quotas')
    .description('how much of the machine accounts and organizations may have (administrators)')
    .addHelpText('after', HELP_TAIL);
  remote<{ match?: string }>(quotas, 'list', 'show them, and what is used', list, io).option(
    '--match <text>',
    'of those alone whose address or slug has this in it',
  );
  remote(quotas, 'get <owner>', 'show those of user:EMAIL or org:SLUG', get, io);
  remote<SetFlags>(
    quotas,
    'set <owner>',
    'change those of user:EMAIL or org:SLUG; what it has beyond them stays',
    set,
    io,
  )
    .option('--deployments <number>', 'so many deployments, or none for no bound')
    .option('--gpus <number>', 'so many GPUs at a time, or none for no bound');
  const accounts = program.command('accounts').description('the accounts of the service (administrators)');
  remote<{ match?: string }>(accounts, 'list', 'show them, and who is an administrator', listAccounts, io).option(
    '--match <text>',
    'those alone whose address has this in it',
  );
  remote(
    accounts,
    'promote <email>',
    'make one an administrator of the installation; it signs in anew',
    (call) => setAdministrator(call, true),
    io,
  );
  remote(
    accounts,
    'demote <email>',
    "take that role away again, but never the last one's",
    (call) => setAdministrator(call, false),
    io,
  );
  remote<{ yes?: boolean }>(
    accounts,
    'delete <email>',
    'delete an account with its keys and tokens; not while it has deployments',
    remove,
    io,
  ).option('--yes', 'yes, for good');
}

async function list({ client, flags, io }: Call<{ match?: string }>): Promise<void> {
  const found = await client.all<OwnerQuota>('/quotas', defined('q', flags.match));
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['OWNER', 'DEPLOYMENTS', 'GPUS', 'ID'],
      found.map(({ owner, ...use }) => [
        nameOf(owner),
        usedOf(use.used_deployments, use.quota_deployments),
        usedOf(use.used_gpu, use.quota_gpu),
        owner.id,
      ]),
    ),
  );
}

async function get({ client, flags, args: [reference], io }: Call<object>): Promise<void> {
  const found = await find(client, reference);
  if (flags.json) return printJson(io, found);
  io.out(renderFields(fieldsOf(found)));
}

async function set({ client, flags, args: [reference], io }: Call<SetFlags>): Promise<void> {
  const edit = {
    ...defined('quota_deployments', parseQuota('--deployments', flags.deployments)),
    ...defined('quota_gpu', parseQuota('--gpus', flags.gpus)),
  };
  if (Object.keys(edit).length === 0) throw new UsageError('expected --deployments or --gpus');
  const { owner } = await find(client, reference);
  const changed = await client.request<OwnerQuota>('PATCH', `/quotas/${owner.id}`, { body: edit });
  if (flags.json) return printJson(io, changed);
  io.out(renderFields(fieldsOf(changed)));
}

async function listAccounts({ client, flags, io }: Call<{ match?: string }>): Promise<void> {
  const found = (await client.all<OwnerQuota>('/quotas', defined('q', flags.match))).filter(
    ({ owner }) => owner.type === 'user',
  );
  const accounts = found.map(({ owner: { id, name: email }, is_admin }) => ({ id, email, is_admin }));
  if (flags.json) return printJson(io, { data: accounts, next: null });
  io.out(
    renderTable(
      ['EMAIL', 'ROLE', 'ID'],
      accounts.map(({ id, email, is_admin: isAdmin }) => [plain(email), isAdmin ? 'administrator' : '-', id]),
    ),
  );
}

async function setAdministrator({ client, flags, args: [email], io }: Call<object>, enabled: boolean): Promise<void> {
  const { owner } = await find(client, `user:${email}`);
  const changed = await client.request<OwnerQuota>('PUT', `/users/${owner.id}/administrator`, { body: { enabled } });
  if (flags.json) return printJson(io, changed);
  io.out(`${plain(owner.name)} is ${enabled ? 'an administrator' : 'no administrator'}\n`);
}

async function remove({ client, flags, args: [email], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { owner } = await find(client, `user:${email}`);
  if (flags.yes !== true)
    throw new UsageError(
      `this cannot be undone: --yes deletes the account ${plain(owner.name)} (${owner.id}) with its keys and tokens`,
    );
  await client.request('DELETE', `/users/${owner.id}`, { query: { confirm: owner.name } });
  if (!flags.json) io.out(`deleted ${plain(owner.name)}\n`);
}

async function find(client: Client, reference: string): Promise<OwnerQuota> {
  const { type, name } = parseOwner(reference);
  const wanted = type === 'user' ? name.normalize('NFC').toLowerCase() : name;
  const found = (await client.all<OwnerQuota>('/quotas', { q: wanted })).find(
    ({ owner }) => owner.type === type && owner.name === wanted,
  );
  if (found === undefined)
    throw Object.assign(new Error(`there is no ${type === 'user' ? 'account' : 'organization'} ${name}`), {
      code: 'not_found',
    });
  return found;
}

/** Null for `none`. */
function parseQuota(flag: string, text: string | undefined): number | null | undefined {
  if (text === undefined) return undefined;
  if (text === 'none') return null;
  if (!/^\d{1,7}$/.test(text) || Number(text) > 1_000_000)
    throw new UsageError(`${flag}: expected a number from 0 to 1000000, or none, got '${text}'`);
  return Number(text);
}

function fieldsOf({ owner, ...use }: OwnerQuota): [string, string][] {
  return [
    ['owner', nameOf(owner)],
    ['id', owner.id],
    ['deployments', usedOf(use.used_deployments, use.quota_deployments)],
    ['GPUs', usedOf(use.used_gpu, use.quota_gpu)],
  ];
}

function nameOf({ type, name }: OwnerQuota['owner']): string {
  return `${type}:${plain(name)}`;
}

function usedOf(used: number, quota: number | null): string {
  return `${used} of ${quota ?? 'any number'}`;
}

const HELP_TAIL = `
Examples:
  capstan quotas list
  capstan quotas set org:lab --deployments 20 --gpus 4
  capstan quotas set user:ada@example.com --gpus none
`;
