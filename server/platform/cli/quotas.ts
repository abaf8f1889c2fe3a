import type { Command } from 'commander';
import { type CommandIo, parseBytes, parseOwner, renderTable, UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { MadePasswordReset, OwnerQuota } from '../api/objects';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatMemory, formatTime, plain, renderFields } from './text';

interface SetFlags {
  deployments?: string;
  versions?: string;
  gpus?: string;
  cpus?: string;
  memory?: string;
  disk?: string;
}

/** Adds `capstan quotas …` and `capstan accounts …`, both for administrators. */
export function addAdministrationCommands(program: Command, io?: CommandIo): void {
  const quotas = program
    .command('quotas')
    .description('show and change the quotas of accounts and organizations (administrators)')
    .addHelpText('after', HELP_TAIL);
  remote<{ match?: string }>(quotas, 'list', 'list the quotas and the usage of all owners', list, io).option(
    '--match <text>',
    'only owners with this text in the email address or slug',
  );
  remote(quotas, 'get <owner>', 'show the quota and the usage of user:EMAIL or org:SLUG', get, io);
  remote<SetFlags>(
    quotas,
    'set <owner>',
    'change the quota of user:EMAIL or org:SLUG; existing resources over the quota are kept',
    set,
    io,
  )
    .option('--deployments <number>', 'maximum number of deployments, or none for no limit')
    .option('--versions <number>', 'maximum number of versions of all deployments together, or none')
    .option('--gpus <number>', 'maximum number of GPUs in use, or none')
    .option('--cpus <number>', 'maximum CPU cores of running replicas, for example 16 or 0.5, or none')
    .option('--memory <size>', 'maximum memory of running replicas, for example 64GiB, or none')
    .option('--disk <size>', 'maximum size of data sources and copied home folders, for example 500GiB, or none');
  const accounts = program
    .command('accounts')
    .description('manage the accounts of the service (administrators)')
    .addHelpText('after', ACCOUNTS_TAIL);
  remote<{ match?: string }>(accounts, 'list', 'list accounts, with their roles', listAccounts, io).option(
    '--match <text>',
    'only accounts with this text in the email address',
  );
  remote(
    accounts,
    'promote <email>',
    'make a user an administrator; the user must sign in again',
    (call) => setAdministrator(call, true),
    io,
  );
  remote(
    accounts,
    'demote <email>',
    'remove the administrator role of a user; refused for the last administrator',
    (call) => setAdministrator(call, false),
    io,
  );
  remote(
    accounts,
    'reset-password <email>',
    'print a link that sets a new password; it works once and expires in 24 hours',
    resetPassword,
    io,
  );
  remote<{ yes?: boolean }>(
    accounts,
    'delete <email>',
    'delete an account with its keys and tokens; delete its deployments and containers first',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
}

async function list({ client, flags, io }: Call<{ match?: string }>): Promise<void> {
  const found = await client.all<OwnerQuota>('/quotas', defined('q', flags.match));
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['OWNER', ...KINDS.map(({ name }) => name.toUpperCase()), 'ID'],
      found.map((owner) => [nameOf(owner.owner), ...KINDS.map(({ use }) => use(owner)), owner.owner.id]),
    ),
  );
}

async function get({ client, flags, args: [reference], io }: Call<object>): Promise<void> {
  const found = await findQuota(client, reference);
  if (flags.json) return printJson(io, found);
  io.out(renderFields(fieldsOf(found)));
}

async function set({ client, flags, args: [reference], io }: Call<SetFlags>): Promise<void> {
  const edit = {
    ...defined(
      'quota_deployments',
      parseQuota(flags.deployments, (text) => count('--deployments', text)),
    ),
    ...defined(
      'quota_versions',
      parseQuota(flags.versions, (text) => count('--versions', text)),
    ),
    ...defined(
      'quota_gpu',
      parseQuota(flags.gpus, (text) => count('--gpus', text)),
    ),
    ...defined('quota_cpu_millis', parseQuota(flags.cpus, parseCores)),
    ...defined(
      'quota_memory_mb',
      parseQuota(flags.memory, (text) => megabytes('--memory', text)),
    ),
    ...defined(
      'quota_disk_mb',
      parseQuota(flags.disk, (text) => megabytes('--disk', text)),
    ),
  };
  if (Object.keys(edit).length === 0)
    throw new UsageError('nothing to change: expected --deployments, --versions, --gpus, --cpus, --memory or --disk');
  const { owner } = await findQuota(client, reference);
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
  const { owner } = await findQuota(client, `user:${email}`);
  const changed = await client.request<OwnerQuota>('PUT', `/users/${owner.id}/administrator`, { body: { enabled } });
  if (flags.json) return printJson(io, changed);
  io.out(`${plain(owner.name)} is ${enabled ? 'now an administrator' : 'no longer an administrator'}\n`);
}

/** Prints only the link to standard output. */
async function resetPassword({ client, flags, args: [email], io }: Call<object>): Promise<void> {
  const { owner } = await findQuota(client, `user:${email}`);
  const made = await client.request<MadePasswordReset>('POST', `/users/${owner.id}/password-reset`);
  if (flags.json) return printJson(io, made);
  io.err(
    `Send this link to ${plain(made.email)}. It works once, expires at ${formatTime(made.expires_at)} and is not shown again:\n`,
  );
  io.out(`${client.url}/reset#${made.token ?? ''}\n`);
}

async function remove({ client, flags, args: [email], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { owner } = await findQuota(client, `user:${email}`);
  requireYes(flags, `delete the account ${plain(owner.name)} (${owner.id}) with its keys and tokens`);
  await client.request('DELETE', `/users/${owner.id}`, { query: { confirm: owner.name } });
  if (!flags.json) io.out(`deleted ${plain(owner.name)}\n`);
}

async function findQuota(client: Client, reference: string): Promise<OwnerQuota> {
  const { type, name } = parseOwner(reference);
  const normalized = type === 'user' ? name.normalize('NFC').toLowerCase() : name;
  const found = (await client.all<OwnerQuota>('/quotas', { q: normalized })).find(
    ({ owner }) => owner.type === type && owner.name === normalized,
  );
  if (found === undefined)
    throw Object.assign(
      new Error(type === 'user' ? `no account has the email address ${name}` : `no organization has the slug ${name}`),
      { code: 'not_found' },
    );
  return found;
}

/** Returns null for `none`. */
function parseQuota(text: string | undefined, parse: (text: string) => number): number | null | undefined {
  if (text === undefined) return undefined;
  return text === 'none' ? null : parse(text);
}

function count(flag: string, text: string): number {
  if (!/^\d{1,7}$/.test(text) || Number(text) > 1_000_000)
    throw new UsageError(`${flag}: expected a number from 0 to 1000000, or none, got '${text}'`);
  return Number(text);
}

function parseCores(text: string): number {
  if (!/^\d{1,6}(\.\d{1,3})?$/.test(text))
    throw new UsageError(`--cpus: expected a number such as 16 or 0.5, or none, got '${text}'`);
  return Math.round(Number(text) * 1000);
}

/** Rounds down, so that the quota is never larger than the flag says. */
function megabytes(flag: string, text: string): number {
  return Math.floor(parseBytes(text, flag) / 2 ** 20);
}

const plainNumber = (value: number) => String(value);

/** The quotas in the order of the tables. */
const KINDS: readonly { name: string; use: (of: OwnerQuota) => string }[] = [
  { name: 'deployments', use: (of) => usedOf(of.used_deployments, of.quota_deployments, plainNumber) },
  { name: 'versions', use: (of) => usedOf(of.used_versions, of.quota_versions, plainNumber) },
  { name: 'GPUs', use: (of) => usedOf(of.used_gpu, of.quota_gpu, plainNumber) },
  { name: 'CPUs', use: (of) => usedOf(of.used_cpu_millis, of.quota_cpu_millis, (millis) => String(millis / 1000)) },
  { name: 'memory', use: (of) => usedOf(of.used_memory_mb, of.quota_memory_mb, formatMemory) },
  { name: 'disk', use: (of) => usedOf(of.used_disk_mb, of.quota_disk_mb, formatMemory) },
];

function fieldsOf(of: OwnerQuota): [string, string][] {
  return [
    ['owner', nameOf(of.owner)],
    ['id', of.owner.id],
    ...KINDS.map(({ name, use }): [string, string] => [name, use(of)]),
  ];
}

function nameOf({ type, name }: OwnerQuota['owner']): string {
  return `${type}:${plain(name)}`;
}

function usedOf(used: number, quota: number | null, format: (value: number) => string): string {
  return quota === null ? `${format(used)} (no limit)` : `${format(used)} of ${format(quota)}`;
}

const ACCOUNTS_TAIL = `
Examples:
  capstan accounts list --match example.com
  capstan accounts promote ada@example.com
  capstan accounts reset-password bob@example.com
`;

const HELP_TAIL = `
Examples:
  capstan quotas list
  capstan quotas set org:lab --deployments 20 --gpus 4 --cpus 32 --memory 256GiB --disk 1TiB
  capstan quotas set user:ada@example.com --gpus none
`;
