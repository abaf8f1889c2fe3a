import type { Command } from 'commander';
import { type ApiKey, keyJson, type NewKey } from './api-key';
import { parseDuration, parseExpiry } from './durations';
import { AccessError } from './errors';
import type { KeyEdit } from './key-changes';
import { describeInLine, renderKeys } from './key-list';
import { checkType, type KeyLimits } from './key-values';
import { resolveLocation } from './location';
import { DEFAULT_OWNER, parseOwner } from './owners';
import type { AccessStore } from './store';

/** Where commands read and write; for tests. */
export interface KeysIo {
  env: NodeJS.ProcessEnv;
  now: () => number;
  out: (text: string) => void;
  err: (text: string) => void;
}

interface Flags {
  keysDb?: string;
  dataDir?: string;
  json?: boolean;
  name?: string;
  type?: string;
  deployment?: string[];
  owner?: string;
  expires?: string;
  rpm?: string;
  tpm?: string;
  parallel?: string;
  grace?: string;
  yes?: boolean;
  all?: boolean;
}

const PROCESS_IO: KeysIo = {
  env: process.env,
  now: Date.now,
  out: (text) => { process.stdout.write(text); },
  err: (text) => { process.stderr.write(text); },
};

const ID_HELP = 'key_…, the public id inside the key, or a name that only one key has';

/** Mounts `capstan keys …`. A wrong value ends as commander's own errors do; anything else is thrown as AccessError. */
export function addKeysCommand(program: Command, io: KeysIo = PROCESS_IO): void {
  const keys = program.command('keys').description('create and manage access keys; a running server applies changes within two seconds').addHelpText('after', HELP_TAIL);
  const add = (spelling: string, description: string, run: (store: AccessStore, flags: Flags, id: string) => Promise<void>) => {
    const command = keys.command(spelling).description(description)
      .option('--keys-db <file>', 'the key database: a file or a postgres:// address')
      .option('--data-dir <dir>', 'the directory that holds it, as capstan.db')
      .option('--json', 'print JSON');
    command.action(async (...args: unknown[]) => {
      const flags = command.opts<Flags>();
      await withUsageErrors(command, () => withStore(flags, io, (store) => run(store, flags, typeof args[0] === 'string' ? args[0] : '')));
    });
    return command;
  };
  addValues(add('create', 'make a key; its secret is printed once and cannot be had again', async (store, flags) => {
    if (flags.name === undefined) throw new AccessError('invalid_argument', '--name: expected what the key is for');
    const made = await store.createKey({
      name: flags.name,
      type: checkType(flags.type ?? (flags.deployment === undefined ? 'user-level' : 'deployment-level')),
      owner: flags.owner === undefined ? DEFAULT_OWNER : parseOwner(flags.owner),
      deployments: flags.deployment,
      ...commonValues(flags, io.now()),
    });
    tellSecret(io, flags, made, 'created');
  })).option('--owner <owner>', 'user:NAME or org:NAME (default: user:local)');
  add('list', 'show keys, never their secrets', async (store, flags) => {
    const owner = flags.owner === undefined ? undefined : await store.findOwner(parseOwner(flags.owner));
    const found = flags.owner !== undefined && owner === undefined ? [] : await store.listKeys({ ownerId: owner?.id, includeDeleted: flags.all });
    const wanted = found.filter((key) => flags.deployment === undefined || isBoundTo(key, flags.deployment));
    io.out(flags.json ? `${JSON.stringify({ data: wanted.map((key) => keyJson(key)), next: null })}\n` : renderKeys(wanted, io.now()));
  }).option('--owner <owner>', 'keys of user:NAME or org:NAME alone').option('--deployment <name>', 'keys bound to this deployment alone; repeatable', collect)
    .option('--all', 'deleted keys too');
  addValues(add('edit <id>', `change a key (${ID_HELP}); its secret stays`, async (store, flags, id) => {
    const edit: KeyEdit = { ...commonValues(flags, io.now()), name: flags.name, type: flags.type === undefined ? undefined : checkType(flags.type), deployments: flags.deployment };
    if (Object.values(edit).every((value) => value === undefined)) throw new AccessError('invalid_argument', 'nothing to change: give --name, --type, --deployment, --expires, --rpm, --tpm or --parallel');
    tell(io, flags, await store.editKey(id, edit), 'changed');
  }));
  add('disable <id>', 'refuse a key until it is enabled again', async (store, flags, id) => tell(io, flags, await store.setKeyEnabled(id, false), 'disabled'));
  add('enable <id>', 'accept a disabled key again', async (store, flags, id) => tell(io, flags, await store.setKeyEnabled(id, true), 'enabled'));
  add('rotate <id>', 'give a key a new secret, printed once', async (store, flags, id) => {
    tellSecret(io, flags, await store.rotateKey(id, parseDuration('--grace', flags.grace ?? '0')), 'rotated');
  }).option('--grace <duration>', 'how long the old secret passes too, up to 30d (default: 0)');
  add('delete <id>', 'delete a key for good', async (store, flags, id) => {
    if (flags.yes !== true) throw new AccessError('invalid_argument', `this cannot be undone, and every application that uses the key loses access: --yes deletes ${describeInLine(await store.getKey(id))}`);
    tell(io, flags, await store.deleteKey(id), 'deleted');
  }).option('--yes', 'yes, for good');
}

function addValues(command: Command): Command {
  return command
    .option('--name <text>', 'what the key is for')
    .option('--type <type>', 'user-level: all deployments of its owner; deployment-level: those named (default: user-level without --deployment, else deployment-level)')
    .option('--deployment <name>', 'a deployment that the key reaches; repeatable', collect)
    .option('--expires <when>', 'a duration such as 30d, a time such as 2030-01-31T00:00:00Z, or never (default: never)')
    .option('--rpm <number>', 'requests per minute, or none')
    .option('--tpm <number>', 'tokens per minute, or none')
    .option('--parallel <number>', 'requests open at once, or none');
}

function commonValues(flags: Flags, nowMs: number): Pick<KeyEdit, 'expiresAt' | 'limits'> {
  const limits: Partial<KeyLimits> = {};
  for (const name of ['rpm', 'tpm', 'parallel'] as const) {
    const text = flags[name];
    if (text === undefined) continue;
    if (text !== 'none' && !/^\d{1,10}$/.test(text)) throw new AccessError('invalid_argument', `--${name}: expected a number of 1 or more, or none`);
    limits[name] = text === 'none' ? null : Number(text);
  }
  return {
    expiresAt: flags.expires === undefined ? undefined : parseExpiry(flags.expires, nowMs),
    limits: Object.keys(limits).length === 0 ? undefined : limits,
  };
}

/** Standard output is the secret alone, for `KEY=$(capstan keys create …)`. */
function tellSecret(io: KeysIo, flags: Flags, { key, secret }: NewKey, done: string): void {
  if (flags.json) return io.out(`${JSON.stringify(keyJson(key, secret))}\n`);
  io.err(`${done} ${describeInLine(key)}\nKeep the secret: it is not shown again.\n`);
  io.out(`${secret}\n`);
}

function tell(io: KeysIo, flags: Flags, key: ApiKey, done: string): void {
  io.out(flags.json ? `${JSON.stringify(keyJson(key))}\n` : `${done} ${describeInLine(key)}\n`);
}

async function withStore(flags: Flags, io: KeysIo, run: (store: AccessStore) => Promise<void>): Promise<void> {
  const location = resolveLocation({ keysDb: flags.keysDb, dataDir: flags.dataDir }, io.env);
  // Here, so that other commands start without a database library.
  const { openStore } = await import('./store.js');
  const store = await openStore(location, io.now);
  try {
    await run(store);
  } finally {
    await store.close();
  }
}

async function withUsageErrors(command: Command, run: () => Promise<void>): Promise<void> {
  try {
    await run();
  } catch (error) {
    if (error instanceof AccessError && error.code === 'invalid_argument') command.error(`error: ${error.message}`, { exitCode: 2, code: 'capstan.invalidArgument' });
    throw error;
  }
}

function isBoundTo({ deployments }: ApiKey, wanted: readonly string[]): boolean {
  return deployments.some(({ id, name }) => wanted.includes(id) || wanted.includes(name));
}

function collect(value: string, previous: string[] = []): string[] {
  return [...previous, value];
}

const HELP_TAIL = `
An ID is ${ID_HELP}.
The database is --keys-db, else capstan.db in --data-dir, else DATABASE_URL, else capstan/capstan.db in the user's data directory.

Examples:
  capstan keys create --name laptop                                   reaches all deployments of user:local
  KEY=$(capstan keys create --name ci --deployment chat --expires 30d --rpm 60)
  capstan keys rotate ci --grace 24h
  capstan keys delete ci --yes
`;
