import type { Command } from 'commander';
import { anyOf, collect, type CommandIo, parseBoolean, renderTable, UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { IdentityProvider, NewIdentityProvider } from '../api/objects';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined, secretOf, seconds } from './spec-flags';
import { formatTime, plain, renderFields } from './text';

type Mapping = IdentityProvider['mappings'][number];

interface ProviderFlags {
  name?: string;
  issuer?: string;
  clientId?: string;
  clientSecretEnv?: string;
  scope?: string[];
  groupsClaim?: string;
  map?: string[];
  param?: string[];
  emailDomain?: string[];
  requireGroup?: string;
  linkByEmail?: string;
  ownRedirectUri?: string;
  recheck?: string;
}

const ROLES = ['viewer', 'developer', 'admin', 'owner'] as const;
const PATH = '/identity-providers';

/** Adds `capstan identity-providers …`. */
export function addIdentityProvidersCommand(program: Command, io?: CommandIo): void {
  const providers = program
    .command('identity-providers')
    .description('manage the OpenID Connect providers that users sign in with (administrators)')
    .addHelpText('after', HELP_TAIL);
  remote(providers, 'list', 'list the identity providers', list, io);
  remote(providers, 'get <provider>', 'show an identity provider; PROVIDER is its name or ID', get, io);
  withFlags(
    remote<ProviderFlags>(
      providers,
      'create <name>',
      'add an identity provider; the sign-in button shows NAME',
      create,
      io,
    )
      .option('--issuer <url>', 'issuer of the provider, an https:// URL (required)')
      .option('--client-id <id>', 'client ID at the provider (required)'),
    { isChange: false },
  );
  withFlags(
    remote<ProviderFlags>(
      providers,
      'edit <provider>',
      'change an identity provider; lists replace the earlier ones',
      edit,
      io,
    )
      .option('--name <text>', 'new name')
      .option('--client-id <id>', 'new client ID at the provider'),
    { isChange: true },
  );
  remote(
    providers,
    'enable <provider>',
    'allow users to sign in with an identity provider',
    (call) => setEnabled(call, true),
    io,
  );
  remote(
    providers,
    'disable <provider>',
    'refuse the users of an identity provider; their sessions end at once',
    (call) => setEnabled(call, false),
    io,
  );
  remote<{ yes?: boolean }>(
    providers,
    'delete <provider>',
    'delete an identity provider and the memberships that its groups gave; accounts stay',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
}

/** With `isChange`, values without a flag do not change, so the help names no defaults. */
function withFlags(command: Command, { isChange }: { isChange: boolean }): void {
  const byDefault = (value: string) => (isChange ? '' : ` (default: ${value})`);
  command
    .option(
      '--client-secret-env <name>',
      `environment variable with the client secret${isChange ? '' : '; without one the client is public'}`,
    )
    .option('--scope <name>', `scope to request; repeatable${byDefault('openid, profile, email')}`, collect)
    .option('--groups-claim <name>', `claim with the groups of a user${byDefault('groups')}`)
    .option(
      '--map <group=org:role>',
      `members of GROUP have ROLE (${anyOf(ROLES)}) in the organization with the slug ORG; repeatable`,
      collect,
    )
    .option('--param <name=value>', 'additional parameter of the authorization request; repeatable', collect)
    .option(
      '--email-domain <domain>',
      `admit only verified addresses of this domain; repeatable${byDefault('all')}`,
      collect,
    )
    .option('--require-group <on>', `on: admit only users in a mapped group${byDefault('off')}`)
    .option(
      '--link-by-email <on>',
      `on: the first sign-in takes over the account of a verified address${byDefault('off')}`,
    )
    .option(
      '--own-redirect-uri <on>',
      `on: the redirect URI names the provider; off: all such providers share one${byDefault('on')}`,
    )
    .option(
      '--recheck <duration>',
      `how long a sign-in is valid before the provider must confirm it${byDefault('1h')}`,
    );
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<IdentityProvider>(PATH, {});
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0)
    return io.err('No identity providers. Add one with: capstan identity-providers create NAME\n');
  io.out(
    renderTable(
      ['NAME', 'ISSUER', 'STATE', 'USERS', 'ID'],
      found.map(({ name, issuer, enabled, users, id }) => [
        plain(name),
        plain(issuer),
        enabled ? 'on' : 'off',
        String(users),
        id,
      ]),
    ),
  );
}

async function get({ client, flags, args: [reference], io }: Call<object>): Promise<void> {
  const found = await findProvider(client, reference);
  if (flags.json) return printJson(io, found);
  io.out(renderFields(fieldsOf(found)));
}

async function create({ client, flags, args: [name], io }: Call<ProviderFlags>): Promise<void> {
  const { issuer, clientId } = flags;
  if (issuer === undefined) throw new UsageError('--issuer: expected the URL of the provider');
  if (clientId === undefined) throw new UsageError('--client-id: expected the client ID at the provider');
  const body: NewIdentityProvider = { ...toEdit(flags, io), name, issuer, client_id: clientId };
  const made = await client.request<IdentityProvider>('POST', PATH, { body });
  if (flags.json) return printJson(io, made);
  io.out(`created ${made.id}. Register this redirect URI at the provider: ${made.redirect_uri}\n`);
}

async function edit({ client, flags, args: [reference], io }: Call<ProviderFlags>): Promise<void> {
  const body = toEdit(flags, io);
  if (Object.keys(body).length === 0) throw new UsageError('nothing to change: expected one of the flags of --help');
  const { id } = await findProvider(client, reference);
  const changed = await client.request<IdentityProvider>('PATCH', `${PATH}/${id}`, { body });
  if (flags.json) return printJson(io, changed);
  io.out(renderFields(fieldsOf(changed)));
}

async function setEnabled({ client, flags, args: [reference], io }: Call<object>, enabled: boolean): Promise<void> {
  const { id, name } = await findProvider(client, reference);
  const changed = await client.request<IdentityProvider>('PATCH', `${PATH}/${id}`, { body: { enabled } });
  if (flags.json) return printJson(io, changed);
  io.out(`${enabled ? 'enabled' : 'disabled'} ${plain(name)}\n`);
}

async function remove({ client, flags, args: [reference], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { id, name, users } = await findProvider(client, reference);
  requireYes(flags, `delete ${plain(name)} (${id}), with which ${users} users sign in`);
  await client.request('DELETE', `${PATH}/${id}`, { query: { confirm: name } });
  if (!flags.json) io.out(`deleted ${plain(name)}\n`);
}

function toEdit(flags: ProviderFlags, io: CommandIo) {
  return {
    ...defined('name', flags.name),
    ...defined('client_id', flags.clientId),
    ...defined(
      'client_secret',
      flags.clientSecretEnv === undefined ? undefined : secretOf(flags.clientSecretEnv, io.env, '--client-secret-env'),
    ),
    ...defined('scopes', flags.scope),
    ...defined('groups_claim', flags.groupsClaim),
    ...defined('mappings', flags.map?.map(toMapping)),
    ...defined('authorization_params', flags.param && Object.fromEntries(flags.param.map(toParam))),
    ...defined('email_domains', flags.emailDomain),
    ...defined('requires_group', toBoolean('--require-group', flags.requireGroup)),
    ...defined('links_by_email', toBoolean('--link-by-email', flags.linkByEmail)),
    ...defined('own_redirect_uri', toBoolean('--own-redirect-uri', flags.ownRedirectUri)),
    ...defined('recheck_s', seconds('--recheck', flags.recheck)),
  };
}

/** A name of a group may contain any character, so the last `=` and `:` count. */
function toMapping(text: string): Mapping {
  const [, group, org, role] = /^(.+)=([^=:]+):([a-z]+)$/.exec(text) ?? [];
  const known = ROLES.find((candidate) => candidate === role);
  if (known === undefined)
    throw new UsageError(`--map: expected GROUP=ORG:ROLE with the role ${anyOf(ROLES)}, got '${text}'`);
  return { group, org, role: known };
}

function toParam(text: string): [string, string] {
  const at = text.indexOf('=');
  if (at < 1) throw new UsageError(`--param: expected NAME=VALUE, got '${text}'`);
  return [text.slice(0, at), text.slice(at + 1)];
}

function toBoolean(flag: string, text: string | undefined): boolean | undefined {
  return text === undefined ? undefined : parseBoolean(text, flag);
}

async function findProvider(client: Client, reference: string): Promise<IdentityProvider> {
  const found = (await client.all<IdentityProvider>(PATH, {})).find(
    ({ id, name }) => id === reference || name === reference,
  );
  if (found === undefined)
    throw Object.assign(new Error(`no identity provider has the name or ID ${reference}`), { code: 'not_found' });
  return found;
}

function fieldsOf(of: IdentityProvider): [string, string | undefined][] {
  return [
    ['name', plain(of.name)],
    ['id', of.id],
    ['state', of.enabled ? 'on' : 'off'],
    ['issuer', plain(of.issuer)],
    ['client ID', plain(of.client_id)],
    ['client secret', of.has_client_secret ? 'stored' : 'none'],
    ['redirect URI', of.redirect_uri],
    ['scopes', plain(of.scopes.join(' '))],
    ['groups claim', plain(of.groups_claim)],
    ...of.mappings.map(({ group, org, role }): [string, string] => ['group', plain(`${group}=${org}:${role}`)]),
    ...Object.entries(of.authorization_params).map(([name, value]): [string, string] => [
      'parameter',
      plain(`${name}=${value}`),
    ]),
    ['email domains', of.email_domains.length === 0 ? 'all' : plain(of.email_domains.join(' '))],
    ['requires group', of.requires_group ? 'on' : 'off'],
    ['links by email', of.links_by_email ? 'on' : 'off'],
    ['recheck', `${of.recheck_s} s`],
    ['users', String(of.users)],
    ['changed', formatTime(of.updated_at)],
  ];
}

const HELP_TAIL = `
Examples:
  CLIENT_SECRET=… capstan identity-providers create Example --issuer https://login.example.com \\
    --client-id capstan --client-secret-env CLIENT_SECRET --scope profile --scope email --scope groups \\
    --map ml-engineers=lab:developer --map ml-leads=lab:admin --require-group on
  capstan identity-providers edit Example --recheck 15m
  capstan identity-providers disable Example
`;
