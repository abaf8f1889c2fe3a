import { existsSync } from 'node:fs';
import os from 'node:os';
import type { Command } from 'commander';
import { type ApiKey, keyJson, type NewKey } from './api-key';
import type { Actor } from './audit';
import { parseDuration, parseExpiry } from './durations';
import { AccessError } from './errors';
import type { KeyEdit } from './key-changes';
import { describeInLine, renderKeys } from './key-list';
import { KEY_SORTS, type KeySort } from './key-pages';
import { BUDGET_PERIODS, checkType, type KeyBudget, type KeyLimits } from './key-values';
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

/** What the commands need of a store; a running service offers the same over HTTP. */
export type KeysStore = Pick<
  AccessStore,
  | 'createKey'
  | 'editKey'
  | 'setKeyEnabled'
  | 'rotateKey'
  | 'finishRotation'
  | 'deleteKey'
  | 'getKey'
  | 'pageKeys'
  | 'findOwner'
  | 'close'
>;

/** Reaches the keys of a running service. */
export type OpenRemoteKeys = (flags: { url?: string; token?: string }, io: KeysIo) => KeysStore;

interface Flags {
  url?: string;
  token?: string;
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
  allowFrom?: string[];
  budget?: string;
  grace?: string;
  finish?: boolean;
  search?: string;
  sort?: string;
  desc?: boolean;
  limit?: string;
  after?: string;
  yes?: boolean;
  all?: boolean;
}

const PROCESS_IO: KeysIo = {
  env: process.env,
  now: Date.now,
  out: (text) => {
    process.stdout.write(text);
  },
  err: (text) => {
    process.stderr.write(text);
  },
};

const ID_HELP = 'key_…, the public id inside the key, or a name that only one key has';

/** Mounts `capstan keys …`. A wrong value ends as commander's own errors do; anything else is thrown as AccessError. */
export function addKeysCommand(program: Command, io: KeysIo = PROCESS_IO, openRemote?: OpenRemoteKeys): void {
  const keys = program
    .command('keys')
    .description('create and manage access keys; a running server applies changes within two seconds')
    .addHelpText('after', HELP_TAIL);
  const add = (
    spelling: string,
    description: string,
    run: (store: KeysStore, flags: Flags, id: string) => Promise<void>,
    isMaking = false,
  ) => {
    const command = keys
      .command(spelling)
      .description(description)
      .option('--keys-db <file>', 'the key database: a file or a postgres:// address')
      .option('--data-dir <dir>', 'the directory that holds it, as capstan.db')
      .option('--url <url>', 'or a running service (default: CAPSTAN_URL)')
      .option('--token <token>', 'a management token for it; better as CAPSTAN_TOKEN')
      .option('--json', 'print JSON');
    command.action(async (...args: unknown[]) => {
      const flags = command.opts<Flags>();
      await withUsageErrors(command, () =>
        withStore(flags, io, openRemote, isMaking, (store) =>
          run(store, flags, typeof args[0] === 'string' ? args[0] : ''),
        ),
      );
    });
    return command;
  };
  addValues(
    add(
      'create',
      'make a key; its secret is printed once and cannot be had again',
      async (store, flags) => {
        if (flags.name === undefined) throw new AccessError('invalid_argument', '--name: expected what the key is for');
        const made = await store.createKey(
          {
            name: flags.name,
            type: checkType(flags.type ?? (flags.deployment === undefined ? 'user-level' : 'deployment-level')),
            owner: flags.owner === undefined ? DEFAULT_OWNER : parseOwner(flags.owner),
            deployments: deploymentNames(flags),
            ...commonValues(flags, io.now()),
          },
          { actor: commandActor() },
        );
        tellSecret(io, flags, made, 'created');
      },
      true,
    ),
  ).option('--owner <owner>', 'user:NAME or org:NAME (default: user:local)');
  add('list', 'show keys, never their secrets', (store, flags) => list(store, flags, io))
    .option('--owner <owner>', 'keys of user:NAME or org:NAME alone')
    .option('--deployment <name>', 'keys bound to this deployment alone, by its name or id; repeatable', collect)
    .option('--search <text>', 'keys with this in their name')
    .option('--all', 'deleted keys too')
    .option('--sort <order>', `${KEY_SORTS.join(', ')} (default: created)`)
    .option('--desc', 'the other way round')
    .option('--limit <number>', 'one page of up to 100 keys (default: all)')
    .option('--after <cursor>', 'the page after this one: the next of the page before');
  addValues(
    add('edit <id>', `change a key (${ID_HELP}); its secret stays`, async (store, flags, id) => {
      const edit: KeyEdit = {
        ...commonValues(flags, io.now()),
        name: flags.name,
        type: flags.type === undefined ? undefined : checkType(flags.type),
        deployments: deploymentNames(flags),
      };
      if (Object.values(edit).every((value) => value === undefined))
        throw new AccessError(
          'invalid_argument',
          'nothing to change: give --name, --type, --deployment, --expires, --rpm, --tpm, --parallel, --allow-from or --budget',
        );
      tell(io, flags, await store.editKey(id, edit, { actor: commandActor() }), 'changed');
    }),
  );
  add('disable <id>', 'refuse a key until it is enabled again', async (store, flags, id) =>
    tell(io, flags, await store.setKeyEnabled(id, false, { actor: commandActor() }), 'disabled'),
  );
  add('enable <id>', 'accept a disabled key again', async (store, flags, id) =>
    tell(io, flags, await store.setKeyEnabled(id, true, { actor: commandActor() }), 'enabled'),
  );
  add('rotate <id>', 'give a key a new secret, printed once', async (store, flags, id) => {
    if (flags.finish !== true)
      return tellSecret(
        io,
        flags,
        await store.rotateKey(id, parseDuration('--grace', flags.grace ?? '0'), { actor: commandActor() }),
        'rotated',
      );
    if (flags.grace !== undefined)
      throw new AccessError('invalid_argument', '--finish: expected without --grace, for it makes no new secret');
    tell(io, flags, await store.finishRotation(id, { actor: commandActor() }), 'ended the old secret of');
  })
    .option('--grace <duration>', 'how long the old secret passes too, up to 30d (default: 0)')
    .option('--finish', 'no new secret: end the grace of the last rotation now');
  add('delete <id>', 'delete a key for good', async (store, flags, id) => {
    if (flags.yes !== true)
      throw new AccessError(
        'invalid_argument',
        `this cannot be undone, and every application that uses the key loses access: --yes deletes ${describeInLine(await store.getKey(id))}`,
      );
    tell(io, flags, await store.deleteKey(id, { actor: commandActor() }), 'deleted');
  }).option('--yes', 'yes, for good');
}

function addValues(command: Command): Command {
  return command
    .option('--name <text>', 'what the key is for')
    .option(
      '--type <type>',
      'user-level: all deployments of its owner; deployment-level: those named (default: user-level without --deployment, else deployment-level)',
    )
    .option(
      '--deployment <name>',
      'a deployment that the key reaches, by its name or id; repeatable: --deployment a --deployment b',
      collect,
    )
    .option(
      '--expires <when>',
      'a duration such as 30d, a time such as 2030-01-31T00:00:00Z, or never (default: never)',
    )
    .option('--rpm <number>', 'requests per minute, or none')
    .option('--tpm <number>', 'tokens per minute, or none')
    .option('--parallel <number>', 'requests open at once, or none')
    .option(
      '--allow-from <network>',
      'a network such as 10.0.0.0/8, or an address, that the key may be used from; repeatable; or anywhere (default: anywhere)',
      collect,
    )
    .option(
      '--budget <tokens/period>',
      `tokens per period of UTC, such as 1000000/day (${BUDGET_PERIODS.join(', ')}), or none (default: none)`,
    );
}

async function list(store: KeysStore, flags: Flags, io: KeysIo): Promise<void> {
  const owner = flags.owner === undefined ? undefined : await store.findOwner(parseOwner(flags.owner));
  const sort = parseSort(flags.sort);
  const limit = flags.limit === undefined ? undefined : /^\d{1,3}$/.test(flags.limit) ? Number(flags.limit) : NaN;
  const found: ApiKey[] = [];
  let next = flags.after ?? null;
  if (flags.owner === undefined || owner !== undefined) {
    do {
      const page = await store.pageKeys(
        { ownerId: owner?.id, boundTo: deploymentNames(flags), search: flags.search, includeDeleted: flags.all },
        { sort, descending: flags.desc, limit, after: next ?? undefined },
      );
      found.push(...page.data);
      next = page.next;
    } while (next !== null && limit === undefined);
  }
  if (flags.json) return io.out(`${JSON.stringify({ data: found.map((key) => keyJson(key)), next })}\n`);
  io.out(renderKeys(found, io.now()));
  if (next !== null) io.err(`more: --after ${next}\n`);
}

/** NOTE: a name that is new makes a deployment, so that a list in one text would make a wrong one. */
function deploymentNames({ deployment: names }: Flags): string[] | undefined {
  const several = names?.find((name) => name.includes(','));
  if (several !== undefined)
    throw new AccessError(
      'invalid_argument',
      `--deployment: expected one deployment, and the flag repeated for more (--deployment a --deployment b), got '${several}'; one whose name has a comma is given by its id`,
    );
  return names;
}

function parseSort(text: string | undefined): KeySort | undefined {
  const sort = KEY_SORTS.find((candidate) => candidate === text);
  if (text !== undefined && sort === undefined)
    throw new AccessError('invalid_argument', `--sort: expected ${KEY_SORTS.join(', ')}`);
  return sort;
}

/** For the audit: who ran the command on this machine. */
function commandActor(): Actor {
  let name = 'unknown';
  try {
    name = os.userInfo().username;
  } catch {
    // A user without an entry in the system's list.
  }
  return { type: 'system', id: `cli:${name}` };
}

function commonValues(flags: Flags, nowMs: number): Pick<KeyEdit, 'expiresAt' | 'limits' | 'allowedCidrs' | 'budget'> {
  const limits: Partial<KeyLimits> = {};
  for (const name of ['rpm', 'tpm', 'parallel'] as const) {
    const text = flags[name];
    if (text === undefined) continue;
    if (text !== 'none' && !/^\d{1,10}$/.test(text))
      throw new AccessError('invalid_argument', `--${name}: expected a number of 1 or more, or none`);
    limits[name] = text === 'none' ? null : Number(text);
  }
  return {
    expiresAt: flags.expires === undefined ? undefined : parseExpiry(flags.expires, nowMs),
    limits: Object.keys(limits).length === 0 ? undefined : limits,
    allowedCidrs:
      flags.allowFrom?.includes('anywhere') === true && flags.allowFrom.length === 1 ? null : flags.allowFrom,
    budget: flags.budget === undefined ? undefined : parseBudget(flags.budget),
  };
}

function parseBudget(text: string): KeyBudget | null {
  if (text === 'none') return null;
  const [, tokens, period] = /^(\d{1,15})\/([a-z]+)$/.exec(text) ?? [];
  const known = BUDGET_PERIODS.find((candidate) => candidate === period);
  if (known === undefined)
    throw new AccessError(
      'invalid_argument',
      `--budget: expected tokens per period, such as 1000000/day, with a period of ${BUDGET_PERIODS.join(', ')}; or none`,
    );
  return { tokens: Number(tokens), period: known };
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

async function withStore(
  flags: Flags,
  io: KeysIo,
  openRemote: OpenRemoteKeys | undefined,
  isMaking: boolean,
  run: (store: KeysStore) => Promise<void>,
): Promise<void> {
  const store =
    openRemote !== undefined && isRemote(flags, io.env) ? openRemote(flags, io) : await openLocal(flags, io, isMaking);
  try {
    await run(store);
  } finally {
    await store.close();
  }
}

/** The command line goes before the environment. @throws AccessError where it names both. */
function isRemote(
  { url, token, keysDb, dataDir }: Flags,
  { CAPSTAN_URL: urlVariable = '', CAPSTAN_TOKEN: tokenVariable = '' }: NodeJS.ProcessEnv,
): boolean {
  const isLocal = (keysDb ?? dataDir) !== undefined;
  if ((url ?? token) === undefined) return !isLocal && (urlVariable !== '' || tokenVariable !== '');
  if (isLocal)
    throw new AccessError(
      'invalid_argument',
      '--url: expected without --keys-db and --data-dir, which name a database',
    );
  return true;
}

/** A database that is not there is made for the first key alone: whoever mistypes where it is hears of it. */
async function openLocal(flags: Flags, { env, now }: KeysIo, isMaking: boolean): Promise<KeysStore> {
  const location = resolveLocation({ keysDb: flags.keysDb, dataDir: flags.dataDir }, env);
  if (!isMaking && location.kind === 'file' && !existsSync(location.file))
    throw new AccessError(
      'not_found',
      `no such file: ${location.file}: expected the key database, which capstan keys create makes`,
    );
  // Here, so that other commands start without a database library.
  const { openStore } = await import('./store.js');
  return isMaking ? storeOfOneKey(() => openStore(location, now), now) : openStore(location, now);
}

/** Opened for a key that nothing is wrong with: one that is refused makes no database. */
async function storeOfOneKey(open: () => Promise<KeysStore>, now: () => number): Promise<KeysStore> {
  const { checkSpec } = await import('./key-changes.js');
  let opened: KeysStore | undefined;
  const createKey: KeysStore['createKey'] = async (spec, options) => {
    checkSpec(spec, now());
    opened = await open();
    return opened.createKey(spec, options);
  };
  return { createKey, close: async () => opened?.close() } satisfies Partial<KeysStore> as unknown as KeysStore;
}

async function withUsageErrors(command: Command, run: () => Promise<void>): Promise<void> {
  try {
    await run();
  } catch (error) {
    if (error instanceof AccessError && error.code === 'invalid_argument')
      command.error(`error: ${error.message}`, { exitCode: 2, code: 'capstan.invalidArgument' });
    throw error;
  }
}

function collect(value: string, previous: string[] = []): string[] {
  return [...previous, value];
}

const HELP_TAIL = `
An ID is ${ID_HELP}.
With --url (or CAPSTAN_URL, CAPSTAN_TOKEN) they are the keys of a running service, where the owner is yourself or org:SLUG. Else the
database is --keys-db (or CAPSTAN_KEYS_DB), else capstan.db in --data-dir (or CAPSTAN_DATA_DIR), else DATABASE_URL, else capstan/capstan.db in the user's data directory.

Examples:
  capstan keys create --name laptop                                   reaches all deployments of user:local
  KEY=$(capstan keys create --name ci --deployment chat --expires 30d --rpm 60)
  capstan keys rotate ci --grace 24h
  capstan keys delete ci --yes
`;
