import os from 'node:os';
import type { Command } from 'commander';
import { type ApiKey, keyJson, type NewKey } from '../../access/keys/api-key';
import type { Actor } from '../../access/store/audit';
import { parseDuration, parseExpiry } from '../durations';
import { AccessError } from '../../access/errors';
import type { KeyEdit, KeySpec } from '../../access/keys/changes';
import { type CommandIo, PROCESS_IO } from './io';
import { describeKey, renderKeys } from './key-list';
import { collect } from '../flag-values';
import { KEY_SORTS, type KeySort } from '../../access/keys/sorts';
import { anyOf } from '../../base/words';
import { BUDGET_PERIODS, checkType, type KeyBudget, type KeyLimits } from '../../access/keys/values';
import {
  type DatabaseLocation,
  defaultLocation,
  describeLocation,
  ownLocation,
  sharedLocation,
} from '../../access/store/location';
import { readProfile } from '../profile';
import { DEFAULT_OWNER, parseOwner } from '../../access/owner-names';
import type { AccessStore } from '../../access/store/store';

/** The methods of a key store that the commands use. `openRemoteKeys` implements them over HTTP. */
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

/** Returns the keys of a running service as a store. */
export type OpenRemoteKeys = (flags: { url?: string; token?: string }, io: CommandIo) => KeysStore;

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

const ID_HELP = 'key_…, the public ID inside the key, or a unique name';

/**
 * Adds `capstan keys …`. A wrong value becomes a commander error with exit status 2. Other failures are thrown as
 * AccessError.
 */
export function addKeysCommand(program: Command, io: CommandIo = PROCESS_IO, openRemote?: OpenRemoteKeys): void {
  const keys = program
    .command('keys')
    .description('create and manage access keys; a running server applies changes at once')
    .addHelpText('after', HELP_TAIL);
  const add = (
    usage: string,
    description: string,
    run: (store: KeysStore, flags: Flags, id: string) => Promise<void>,
    createsStore = false,
  ) => {
    const command = keys
      .command(usage)
      .description(description)
      .option('--keys-db <file>', 'key database: a file or a postgres:// URL')
      .option('--data-dir <dir>', 'directory of the key database capstan.db')
      .option(
        '--url <url>',
        'URL of a running service, to use its keys instead of a database (default: CAPSTAN_URL, else that of capstan login)',
      )
      .option('--token <token>', 'management token for the service; prefer CAPSTAN_TOKEN or capstan login')
      .option('--json', 'print JSON');
    command.action(async (...args: unknown[]) => {
      const flags = command.opts<Flags>();
      await withUsageErrors(command, () =>
        withStore(flags, io, openRemote, createsStore, (store) =>
          run(store, flags, typeof args[0] === 'string' ? args[0] : ''),
        ),
      );
    });
    return command;
  };
  const creating = addValues(
    add(
      'create',
      'create a key and print its secret once',
      async (store, flags) => {
        if (flags.name === undefined) throw new AccessError('invalid_argument', '--name: expected a name for the key');
        const created = await store.createKey(
          {
            name: flags.name,
            type: checkType(flags.type ?? (flags.deployment === undefined ? 'user-level' : 'deployment-level')),
            owner: flags.owner === undefined ? DEFAULT_OWNER : parseOwner(flags.owner),
            deployments: deploymentNames(flags),
            ...commonValues(flags, io.now()),
          },
          { actor: commandActor() },
        );
        printSecret(io, flags, created, 'created');
        if (await isNameShared(store, created.key))
          io.err(
            `note: another key is called ${JSON.stringify(created.key.name)} too, so commands need the ID of the key\n`,
          );
      },
      true,
    ),
    { isChange: false },
  );
  creating.option('--owner <owner>', 'owner of the key: user:NAME or org:NAME (default: user:local)');
  add('list', 'list keys, without their secrets', (store, flags) => list(store, flags, io))
    .option('--owner <owner>', 'only keys of user:NAME or org:NAME')
    .option('--deployment <name>', 'only keys for this deployment (name or ID); repeatable', collect)
    .option('--search <text>', 'only keys with this text in the name')
    .option('--all', 'include deleted keys')
    .option('--sort <order>', `sort order: ${KEY_SORTS.join(', ')} (default: created)`)
    .option('--desc', 'reverse the order')
    .option('--limit <number>', 'print one page of this many keys, 1 to 100 (default: all keys)')
    .option('--after <cursor>', 'print the page after this cursor, which the previous page prints');
  addValues(
    add('edit <id>', `change a key, but not its secret; ID is ${ID_HELP}`, async (store, flags, id) => {
      const edit: KeyEdit = {
        ...commonValues(flags, io.now()),
        name: flags.name,
        type: flags.type === undefined ? undefined : checkType(flags.type),
        deployments: deploymentNames(flags),
      };
      if (Object.values(edit).every((value) => value === undefined))
        throw new AccessError(
          'invalid_argument',
          'nothing to change: expected --name, --type, --deployment, --expires, --rpm, --tpm, --parallel, --allow-from or --budget',
        );
      printKey(io, flags, await store.editKey(id, edit, { actor: commandActor() }), 'changed');
    }),
    { isChange: true },
  );
  add('disable <id>', 'disable a key; requests with it get 401 until it is enabled again', async (store, flags, id) =>
    printKey(io, flags, await store.setKeyEnabled(id, false, { actor: commandActor() }), 'disabled'),
  );
  add('enable <id>', 'enable a disabled key', async (store, flags, id) =>
    printKey(io, flags, await store.setKeyEnabled(id, true, { actor: commandActor() }), 'enabled'),
  );
  add('rotate <id>', 'give a key a new secret and print it once', async (store, flags, id) => {
    if (flags.finish !== true)
      return printSecret(
        io,
        flags,
        await store.rotateKey(id, parseDuration('--grace', flags.grace ?? '0'), { actor: commandActor() }),
        'rotated',
      );
    if (flags.grace !== undefined) throw new AccessError('invalid_argument', '--finish: cannot be used with --grace');
    printKey(io, flags, await store.finishRotation(id, { actor: commandActor() }), 'ended the grace period of');
  })
    .option('--grace <duration>', 'how long the old secret stays valid, up to 30d (default: 0)')
    .option('--finish', 'end the grace period of the last rotation now, without a new secret');
  add('delete <id>', 'delete a key permanently', async (store, flags, id) => {
    if (flags.yes !== true)
      throw new AccessError(
        'invalid_argument',
        `expected --yes to delete ${describeKey(await store.getKey(id))}. This cannot be undone. Applications that use the key lose access`,
      );
    printKey(io, flags, await store.deleteKey(id, { actor: commandActor() }), 'deleted');
  }).option('--yes', 'confirm the deletion');
}

/** A change keeps the values that no flag sets, so its help shows no defaults. */
function addValues(command: Command, { isChange }: { isChange: boolean }): Command {
  const byDefault = (value: string): string => (isChange ? '' : ` (default: ${value})`);
  return command
    .option('--name <text>', isChange ? 'new name' : 'name of the key (required)')
    .option(
      '--type <type>',
      `user-level: all deployments of the owner; deployment-level: only those in --deployment${byDefault('deployment-level with --deployment, else user-level')}`,
    )
    .option(
      '--deployment <name>',
      `deployment that the key may use (name or ID); repeatable: --deployment a --deployment b${isChange ? '; replaces all deployments' : ''}`,
      collect,
    )
    .option(
      '--expires <when>',
      `duration such as 30d, time such as 2030-01-31T00:00:00Z, or never${byDefault('never')}`,
    )
    .option('--rpm <number>', `maximum number of requests per minute, or none${byDefault('none')}`)
    .option('--tpm <number>', `maximum number of tokens per minute, or none${byDefault('none')}`)
    .option('--parallel <number>', `maximum number of concurrent requests, or none${byDefault('none')}`)
    .option(
      '--allow-from <network>',
      `address or network that may use the key, for example 10.0.0.0/8, or anywhere; repeatable${isChange ? '; replaces all networks' : ''}${byDefault('anywhere')}`,
      collect,
    )
    .option(
      '--budget <tokens/period>',
      `token budget and its UTC period (${anyOf(BUDGET_PERIODS)}), for example 1000000/day, or none${byDefault('none')}`,
    );
}

async function list(store: KeysStore, flags: Flags, io: CommandIo): Promise<void> {
  const owner = flags.owner === undefined ? undefined : await store.findOwner(parseOwner(flags.owner));
  const sort = parseSort(flags.sort);
  const limit = parseLimit(flags.limit);
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
  if (next !== null) io.err(`There are more keys. Print the next page with: --after ${next}\n`);
}

/** NOTE: an unknown name creates a deployment record, so `a,b` must not be accepted as one name. */
function deploymentNames({ deployment: names }: Flags): string[] | undefined {
  const list = names?.find((name) => name.includes(','));
  if (list !== undefined)
    throw new AccessError(
      'invalid_argument',
      `--deployment: expected one deployment, got '${list}'. Repeat the flag for more: --deployment a --deployment b. If a name has a comma, use the ID`,
    );
  return names;
}

/** Returns NaN for a wrong value, which the store refuses. */
function parseLimit(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  return /^\d{1,3}$/.test(text) ? Number(text) : NaN;
}

function parseSort(text: string | undefined): KeySort | undefined {
  const sort = KEY_SORTS.find((candidate) => candidate === text);
  if (text !== undefined && sort === undefined)
    throw new AccessError('invalid_argument', `--sort: expected ${anyOf(KEY_SORTS)}, got '${text}'`);
  return sort;
}

/** Returns the actor for the audit log: the system user who runs the command. */
function commandActor(): Actor {
  let name = 'unknown';
  try {
    name = os.userInfo().username;
  } catch {
    // The user has no entry in the password database.
  }
  return { type: 'system', id: `cli:${name}` };
}

function commonValues(flags: Flags, nowMs: number): Pick<KeyEdit, 'expiresAt' | 'limits' | 'allowedCidrs' | 'budget'> {
  const limits: Partial<KeyLimits> = {};
  for (const name of ['rpm', 'tpm', 'parallel'] as const) {
    const text = flags[name];
    if (text === undefined) continue;
    if (text !== 'none' && !/^\d{1,10}$/.test(text))
      throw new AccessError('invalid_argument', `--${name}: expected a whole number of 1 or more, or none`);
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
  const [, tokens, periodName] = /^(\d{1,15})\/([a-z]+)$/.exec(text) ?? [];
  const period = BUDGET_PERIODS.find((candidate) => candidate === periodName);
  if (period === undefined)
    throw new AccessError(
      'invalid_argument',
      `--budget: expected tokens and a period (${anyOf(BUDGET_PERIODS)}), such as 1000000/day, or none`,
    );
  return { tokens: Number(tokens), period };
}

/** Prints only the secret to standard output, for `KEY=$(capstan keys create …)`. */
function printSecret(io: CommandIo, flags: Flags, { key, secret }: NewKey, verb: string): void {
  if (flags.json) return io.out(`${JSON.stringify(keyJson(key, secret))}\n`);
  io.err(`${verb} ${describeKey(key)}\nStore the secret now. It is not shown again.\n`);
  io.out(`${secret}\n`);
}

async function isNameShared(store: KeysStore, { id, name }: ApiKey): Promise<boolean> {
  // The secret is printed, so a failure of the look-up must not look like one of the command.
  const page = await store.pageKeys({ search: name }, { limit: 100 }).catch(() => undefined);
  return page?.data.some((key) => key.name === name && key.id !== id) === true;
}

function printKey(io: CommandIo, flags: Flags, key: ApiKey, verb: string): void {
  io.out(flags.json ? `${JSON.stringify(keyJson(key))}\n` : `${verb} ${describeKey(key)}\n`);
}

async function withStore(
  flags: Flags,
  io: CommandIo,
  openRemote: OpenRemoteKeys | undefined,
  createsStore: boolean,
  run: (store: KeysStore) => Promise<void>,
): Promise<void> {
  const store =
    openRemote !== undefined && isRemote(flags, io.env)
      ? openRemote(flags, io)
      : await openLocal(await chooseLocation(flags, io), io, createsStore);
  try {
    await run(store);
  } finally {
    await store.close();
  }
}

/**
 * Flags override variables, variables override the login, and the login overrides DATABASE_URL.
 * @throws AccessError if the flags name both a service and a database
 */
function isRemote({ url, token, keysDb, dataDir }: Flags, env: NodeJS.ProcessEnv): boolean {
  const { CAPSTAN_URL: urlVariable = '', CAPSTAN_TOKEN: tokenVariable = '' } = env;
  const isLocal = (keysDb ?? dataDir) !== undefined;
  if ((url ?? token) !== undefined && isLocal)
    throw new AccessError('invalid_argument', '--url and --token: cannot be used with --keys-db or --data-dir');
  if (isLocal) return false;
  if ((url ?? token) !== undefined || urlVariable !== '' || tokenVariable !== '') return true;
  return ownLocation({}, env) === undefined && readProfile(env) !== undefined;
}

/** Asks before it uses a database that neither a flag nor a variable names. @throws AccessError without a terminal */
async function chooseLocation({ keysDb, dataDir }: Flags, { env, ask }: CommandIo): Promise<DatabaseLocation> {
  const named = ownLocation({ keysDb, dataDir }, env) ?? sharedLocation(env);
  if (named !== undefined) return named;
  const location = defaultLocation(env);
  const file = describeLocation(location);
  const answer = await ask?.(`No service and no key database is named. Use the key database ${file}? [y/N] `);
  if (answer !== undefined && /^y(es)?$/i.test(answer.trim())) return location;
  throw new AccessError(
    'invalid_argument',
    `expected a service or a key database, got neither. Use a service with capstan login URL or --url, or a database with --keys-db ${file}`,
  );
}

/** Opens the database. Only `create` may create one, so that a mistyped location is reported. */
async function openLocal(location: DatabaseLocation, io: CommandIo, createsStore: boolean): Promise<KeysStore> {
  // Imported on demand: other commands do not load a database library.
  const [{ openStore }, { databaseExists }] = await Promise.all([
    import('../../access/store/store.js'),
    import('../../access/store/database.js'),
  ]);
  const exists = await databaseExists(location);
  if (createsStore) return openForCreate(() => openStore(location, io.now), location, exists, io);
  if (!exists)
    throw new AccessError(
      'not_found',
      `the key database ${describeLocation(location)} does not exist. Create one with: capstan keys create --name NAME`,
    );
  return openStore(location, io.now);
}

/** Returns a store that opens the database once a key is valid, so that a refused key creates no database. */
async function openForCreate(
  open: () => Promise<KeysStore>,
  location: DatabaseLocation,
  exists: boolean,
  io: CommandIo,
): Promise<KeysStore> {
  const { checkSpec } = await import('../../access/keys/changes.js');
  let opened: KeysStore | undefined;
  const createKey: KeysStore['createKey'] = async (spec, options) => {
    checkSpec(spec, io.now());
    if (!exists) checkNewDatabase(spec, location);
    opened = await open();
    if (!exists) io.err(`created the key database ${describeLocation(location)}\n`);
    return opened.createKey(spec, options);
  };
  const pageKeys: KeysStore['pageKeys'] = (filter, paging) => opened!.pageKeys(filter, paging);
  return {
    createKey,
    pageKeys,
    close: async () => opened?.close(),
  } satisfies Partial<KeysStore> as unknown as KeysStore;
}

/** A new database has no deployments, so an ID cannot name one. */
function checkNewDatabase({ deployments = [] }: KeySpec, location: DatabaseLocation): void {
  const id = deployments.find((reference) => reference.startsWith('dep_'));
  if (id !== undefined)
    throw new AccessError(
      'not_found',
      `deployment: ${id} not found: the key database ${describeLocation(location)} does not exist`,
    );
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

const HELP_TAIL = `
An ID is ${ID_HELP}.

The first of these decides whose keys the commands manage:

  --url, --token                     the keys of a running service
  --keys-db, --data-dir              a key database
  CAPSTAN_URL, CAPSTAN_TOKEN         the keys of a running service
  CAPSTAN_KEYS_DB, CAPSTAN_DATA_DIR  a key database
  capstan login                      the keys of a running service
  DATABASE_URL                       a key database

Without any of them, a command asks whether to use capstan/capstan.db in the
user's data directory. Without a terminal it fails.

In a running service, the owner of a key is you (the default) or org:SLUG.

Examples:
  capstan keys create --name laptop                                   for all deployments of user:local
  KEY=$(capstan keys create --name ci --deployment chat --expires 30d --rpm 60)
  capstan keys rotate ci --grace 24h
  capstan keys delete ci --yes
`;
