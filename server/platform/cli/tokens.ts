import type { Command } from 'commander';
import { type CommandIo, parseChoice, parseExpiry, PROCESS_IO, renderTable, UsageError } from 'capstan/internal/cli';
import type { Token } from '../api/objects';
import type { ServiceActor } from '../accounts/actor';
import { type Call, printJson, remote, requireYes } from './remote';
import { formatTime, plain } from './text';

interface CreateFlags {
  dataDir?: string;
  databaseUrl?: string;
  email?: string;
  name?: string;
  rights?: string;
  expires?: string;
  json?: boolean;
}

/** Adds `capstan tokens …`. */
export function addTokensCommand(program: Command, io: CommandIo = PROCESS_IO): void {
  const tokens = program
    .command('tokens')
    .description('manage management tokens, which authenticate commands and programs at the management API')
    .addHelpText('after', HELP_TAIL);
  const create = tokens
    .command('create')
    .description("create a token on the service's machine and print it once; the service may be stopped")
    .option(
      '--data-dir <dir>',
      "data directory of the service (default: CAPSTAN_DATA_DIR, else capstan in the user's data directory)",
    )
    .option('--database-url <url>', 'postgres:// URL of the database of the service; prefer DATABASE_URL')
    .option('--email <address>', 'email address of the account (required)')
    .option('--name <text>', 'name of the token (required)')
    .option('--rights <rights>', 'rights of the token: write or read (default: write)')
    .option('--expires <when>', 'duration such as 30d, time such as 2030-01-31T00:00:00Z, or never (default: never)')
    .option('--json', 'print JSON');
  create.action(() => createToken(create.opts<CreateFlags>(), io));
  remote(tokens, 'list', 'list your tokens, without their secrets', list, io);
  remote<{ yes?: boolean }>(
    tokens,
    'delete <id>',
    'delete a token permanently; ID is its ID or a unique name',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
}

/** Prints only the token to standard output, for `CAPSTAN_TOKEN=$(capstan tokens create …)`. */
async function createToken(flags: CreateFlags, io: CommandIo): Promise<void> {
  const { email, name } = flags;
  if (email === undefined) throw new UsageError('--email: expected the email address of an account');
  if (name === undefined) throw new UsageError('--name: expected a name for the token');
  const rights = parseChoice(flags.rights ?? 'write', '--rights', ['write', 'read']);
  const expiresAt = flags.expires === undefined ? null : parseExpiry(flags.expires, io.now());
  // Imported on demand: other commands do not load a database library.
  const { withServiceStore } = await import('../up/offline-store.js');
  await withServiceStore(flags, io.env, io.now, async (store) => {
    const user = await store.findOwner({ type: 'user', name: email.trim().normalize('NFC').toLowerCase() });
    if (user === undefined)
      throw new UsageError(
        `--email: no account has the address ${email}. Create the first one with the link that capstan up prints, or with --bootstrap-email`,
      );
    const { isAdmin } = await store.findAccount(user.id);
    const actor: ServiceActor = {
      userId: user.id,
      isAdmin,
      via: 'session',
      canWrite: true,
      ip: null,
      userAgent: 'capstan tokens create',
    };
    const { made, token } = await store.createToken(actor, { name, rights, expiresAt });
    if (flags.json)
      return printJson(io, {
        id: made.id,
        name: made.name,
        rights: made.rights,
        display: made.display,
        expires_at: made.expiresAt === null ? null : new Date(made.expiresAt).toISOString(),
        token,
      });
    io.err(
      `created the management token "${plain(made.name)}" (${made.id}) of ${plain(email)}\nStore it now. It is not shown again.\n`,
    );
    io.out(`${token}\n`);
  });
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<Token>('/tokens', {});
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['NAME', 'TOKEN', 'RIGHTS', 'EXPIRES', 'LAST USED', 'ID'],
      found.map((token) => [
        plain(token.name),
        token.display,
        token.rights,
        token.expires_at === null ? 'never' : formatTime(token.expires_at),
        formatTime(token.last_used_at),
        token.id,
      ]),
    ),
  );
}

async function remove({ client, flags, args: [reference], io }: Call<{ yes?: boolean }>): Promise<void> {
  const found = (await client.all<Token>('/tokens', {})).filter(
    ({ id, name }) => id === reference || name === reference,
  );
  if (found.length === 0)
    throw Object.assign(new Error('no management token has this ID or name'), { code: 'not_found' });
  if (found.length > 1)
    throw new UsageError(
      `several management tokens are called ${reference}. Use an ID: ${found.map(({ id }) => id).join(', ')}`,
    );
  const [token] = found;
  requireYes(flags, `delete "${plain(token.name)}" (${token.id}, ${token.display})`);
  await client.request('DELETE', `/tokens/${token.id}`);
  if (!flags.json) io.out(`deleted "${plain(token.name)}" (${token.id})\n`);
}

const HELP_TAIL = `
Examples:
  export CAPSTAN_TOKEN=$(capstan tokens create --data-dir DIR --email you@example.com --name cli)
  capstan tokens list
  capstan tokens delete cli --yes
`;
