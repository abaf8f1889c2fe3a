import type { Command } from 'commander';
import { parseExpiry } from '../access/durations';
import type { Token } from '../api/objects';
import { parseChoice, UsageError } from '../flag-values';
import type { ServiceActor } from '../service/actor';
import { type CommandIo, PROCESS_IO } from './io';
import { type Call, printJson, remote } from './remote';
import { minute, plain } from './text';
import { renderTable } from '../text-table';

interface CreateFlags {
  dataDir?: string;
  databaseUrl?: string;
  email?: string;
  name?: string;
  rights?: string;
  expires?: string;
  json?: boolean;
}

/** Mounts `capstan tokens …`. */
export function addTokensCommand(program: Command, io: CommandIo = PROCESS_IO): void {
  const tokens = program
    .command('tokens')
    .description('management tokens: what commands and programs sign in with')
    .addHelpText('after', HELP_TAIL);
  const create = tokens
    .command('create')
    .description("make one, on the service's machine, whether the service runs or not; it is printed once")
    .option('--data-dir <dir>', "of the service (default: CAPSTAN_DATA_DIR, else capstan in the user's data directory)")
    .option('--database-url <url>', 'where the service uses PostgreSQL; better as DATABASE_URL')
    .option('--email <address>', 'whose token it is')
    .option('--name <text>', 'what it is for')
    .option('--rights <rights>', 'write or read (default: write)')
    .option(
      '--expires <when>',
      'a duration such as 30d, a time such as 2030-01-31T00:00:00Z, or never (default: never)',
    )
    .option('--json', 'print JSON');
  create.action(() => createToken(create.opts<CreateFlags>(), io));
  remote(tokens, 'list', 'show your tokens, never what they are', list, io);
  remote<{ yes?: boolean }>(
    tokens,
    'delete <id>',
    'end a token for good; ID is its id or a name that one token has',
    remove,
    io,
  ).option('--yes', 'yes, for good');
}

/** Standard output is the token alone, for `CAPSTAN_TOKEN=$(capstan tokens create …)`. */
async function createToken(flags: CreateFlags, io: CommandIo): Promise<void> {
  const { email, name } = flags;
  if (email === undefined) throw new UsageError('--email: expected the address of an account');
  if (name === undefined) throw new UsageError('--name: expected what the token is for');
  const rights = parseChoice(flags.rights ?? 'write', '--rights', ['write', 'read']);
  const expiresAt = flags.expires === undefined ? null : parseExpiry(flags.expires, io.now());
  // Here, so that other commands start without a database library.
  const { withServiceStore } = await import('../up/offline-store.js');
  await withServiceStore(flags, io.env, io.now, async (store) => {
    const user = await store.findOwner({ type: 'user', name: email.trim().normalize('NFC').toLowerCase() });
    if (user === undefined)
      throw new UsageError(
        `--email: there is no account ${email}: the first one is made by the link that capstan up prints, or by --bootstrap-email`,
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
      `created the management token "${plain(made.name)}" (${made.id}) of ${plain(email)}\nKeep it: it is not shown again.\n`,
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
        token.expires_at === null ? 'never' : minute(token.expires_at),
        minute(token.last_used_at),
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
    throw Object.assign(new Error(`there is no management token ${reference}`), { code: 'not_found' });
  if (found.length > 1)
    throw new UsageError(
      `several tokens are called ${reference}: give the id of one: ${found.map(({ id }) => id).join(', ')}`,
    );
  const [token] = found;
  if (flags.yes !== true)
    throw new UsageError(`this cannot be undone: --yes ends "${plain(token.name)}" (${token.id}, ${token.display})`);
  await client.request('DELETE', `/tokens/${token.id}`);
  if (!flags.json) io.out(`deleted "${plain(token.name)}" (${token.id})\n`);
}

const HELP_TAIL = `
Examples:
  export CAPSTAN_TOKEN=$(capstan tokens create --data-dir DIR --email you@example.com --name cli)
  capstan tokens list
  capstan tokens delete cli --yes
`;
