import { existsSync } from 'node:fs';
import path from 'node:path';
import { Command, CommanderError } from 'commander';
import type { CommandIo } from '../../../../server/cli/commands/io';
import { addKeysCommand, type KeysStore, type OpenRemoteKeys } from '../../../../server/cli/commands/keys';
import { parseDuration, parseExpiry } from '../../../../server/cli/durations';
import { parseKey } from '../../../../server/base/key-format';
import { databaseExists } from '../../../../server/access/store/database';
import { makeFolder, overBackends, removeFolders } from '../../access/support';

const NOW_MS = Date.UTC(2030, 0, 1);
let keysDb: string;

/** Runs `capstan keys …` in this process, with `--keys-db` unless the arguments name another database. */
function keys(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const isNamed = args.includes('--data-dir') || args.includes('--help') || args.length === 0;
  return keysWith({}, ...args, ...(isNamed ? [] : ['--keys-db', keysDb]));
}

async function keysWith(
  { env = {}, ask, remote }: { env?: NodeJS.ProcessEnv; ask?: CommandIo['ask']; remote?: OpenRemoteKeys },
  ...args: string[]
): Promise<{ code: number; out: string; err: string }> {
  const result = { code: 0, out: '', err: '' };
  const err = (text: string) => {
    result.err += text;
  };
  const program = new Command('capstan').exitOverride().configureOutput({
    writeErr: err,
    writeOut: (text) => {
      result.out += text;
    },
  });
  const io: CommandIo = {
    env: { CAPSTAN: '1', HOME: '/nowhere', ...env },
    ask,
    now: () => NOW_MS,
    out: (text) => {
      result.out += text;
    },
    err,
  };
  addKeysCommand(program, io, remote);
  try {
    await program.parseAsync(['keys', ...args], { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) err(`error: ${(error as Error).message}\n`);
    result.code = error instanceof CommanderError ? error.exitCode : 1;
  }
  return result;
}

const json = async (...args: string[]) => JSON.parse((await keys(...args, '--json')).out);

beforeEach(() => {
  keysDb = path.join(makeFolder(), 'keys.db');
});
afterAll(removeFolders);

test('creates, lists, edits, disables, rotates and deletes a key', async () => {
  const created = await keys(
    'create',
    '--name',
    'ci',
    '--deployment',
    'chat',
    '--deployment',
    'search',
    '--expires',
    '30d',
    '--rpm',
    '60',
  );
  expect(created).toMatchObject({
    code: 0,
    err: expect.stringMatching(
      /^created the key database \S+\ncreated "ci" \(key_\w{26}, deployment-level, user:local\): chat, search\nStore the secret/,
    ) as string,
  });
  // Standard output has only the secret.
  expect(created.out).toMatch(/^\S+\n$/);
  const publicId = parseKey(created.out.trim());
  expect(publicId).toBeDefined();
  expect(created.err).not.toContain(created.out.trim());

  const {
    data: [listed],
  } = await json('list');
  expect(Object.keys(listed)).toEqual([
    'id',
    'public_id',
    'name',
    'type',
    'owner',
    'deployments',
    'display',
    'state',
    'expires_at',
    'rotating_until',
    'limits',
    'allowed_cidrs',
    'budget',
    'created_by',
    'created_at',
    'updated_at',
    'last_used_at',
    'last_used_ip',
    'rev',
  ]);
  expect(listed).toMatchObject({
    public_id: publicId,
    name: 'ci',
    type: 'deployment-level',
    owner: { type: 'user', name: 'local' },
    state: 'active',
    expires_at: '2030-01-31T00:00:00.000Z',
    limits: { rpm: 60, tpm: null, parallel: null },
    created_at: '2030-01-01T00:00:00.000Z',
    last_used_at: null,
  });
  const table = (await keys('list')).out;
  expect(table.split('\n')[1]).toMatch(
    /^key_\w{26} {2}ci {4}sk-cap1_\w{12}_….{4} {2}deployment-level {2}user:local {2}chat, search {2}active {2}2030-01-31 00:00Z {2}never {6}60 rpm$/,
  );
  expect(table).not.toContain(created.out.trim());

  expect(
    await json('edit', 'ci', '--name', 'robots', '--rpm', 'none', '--parallel', '2', '--expires', 'never'),
  ).toMatchObject({ name: 'robots', limits: { rpm: null, parallel: 2 }, expires_at: null });
  expect(await json('edit', listed.id, '--type', 'user-level')).toMatchObject({ type: 'user-level', deployments: [] });
  expect((await keys('disable', 'robots')).out).toMatch(/^disabled "robots"/);
  expect(await json('list')).toMatchObject({ data: [{ state: 'disabled' }], next: null });
  expect((await keys('enable', publicId as string)).out).toMatch(/^enabled "robots"/);
  const rotated = await json('rotate', 'robots', '--grace', '24h');
  expect(rotated).toMatchObject({
    state: 'rotating',
    rotating_until: '2030-01-02T00:00:00.000Z',
    secret: expect.stringMatching(new RegExp(`^sk-cap1_${publicId}_`)) as string,
  });
  expect((await keys('rotate', 'robots')).out).toMatch(/^sk-cap1_\w+\n$/);
  const unconfirmed = await keys('delete', 'robots');
  expect(unconfirmed).toMatchObject({
    code: 2,
    out: '',
    err: expect.stringContaining('--yes to delete "robots"') as string,
  });
  expect((await keys('delete', 'robots', '--yes')).out).toMatch(/^deleted "robots"/);
  expect((await keys('list')).out).toBe('No keys found. Create one with: capstan keys create --name NAME\n');
  expect((await keys('list', '--all')).out).toContain('deleted');
});

test('list filters by owner and deployment', async () => {
  await keys('create', '--name', 'a');
  await keys('create', '--name', 'b', '--owner', 'org:lab', '--deployment', 'chat');
  const names = async (...args: string[]) =>
    (await json('list', ...args)).data.map(({ name }: { name: string }) => name).sort();
  expect(await names()).toEqual(['a', 'b']);
  expect(await names('--owner', 'org:lab')).toEqual(['b']);
  expect(await names('--owner', 'org:unknown')).toEqual([]);
  expect(await names('--deployment', 'chat')).toEqual(['b']);
});

test('sets allowed networks and budgets, and ends a grace period', async () => {
  await keys('create', '--name', 'k', '--allow-from', '10.0.0.0/8', '--allow-from', '::1', '--budget', '1000/month');
  expect(await json('list')).toMatchObject({
    data: [
      {
        allowed_cidrs: ['10.0.0.0/8', '::1'],
        budget: { tokens: 1000, period: 'month', used: 0, resets_at: '2030-02-01T00:00:00.000Z' },
      },
    ],
  });
  expect((await keys('list')).out).toContain('0 of 1000 tokens/month, from 10.0.0.0/8 ::1');
  expect(await json('edit', 'k', '--allow-from', '192.0.2.1')).toMatchObject({
    allowed_cidrs: ['192.0.2.1'],
    budget: { tokens: 1000 },
  });
  expect(await json('edit', 'k', '--allow-from', 'anywhere', '--budget', 'none')).toMatchObject({
    allowed_cidrs: null,
    budget: null,
  });
  await keys('rotate', 'k', '--grace', '1d');
  expect(await json('rotate', 'k', '--finish')).toMatchObject({ state: 'active', rotating_until: null });
  const finished = await keys('rotate', 'k', '--finish');
  expect(finished).toMatchObject({ code: 0, out: expect.stringMatching(/^ended the grace period of "k"/) as string });
});

test('list sorts, searches and pages', async () => {
  for (const name of ['delta', 'alpha', 'charlie', 'bravo']) await keys('create', '--name', name);
  const names = ({ data }: { data: { name: string }[] }) => data.map(({ name }) => name);
  expect(names(await json('list', '--sort', 'name'))).toEqual(['alpha', 'bravo', 'charlie', 'delta']);
  const first = await json('list', '--sort', 'name', '--desc', '--limit', '3');
  expect(names(first)).toEqual(['delta', 'charlie', 'bravo']);
  expect(await json('list', '--sort', 'name', '--desc', '--limit', '3', '--after', first.next as string)).toMatchObject(
    { data: [{ name: 'alpha' }], next: null },
  );
  expect(await keys('list', '--limit', '3')).toMatchObject({
    err: expect.stringMatching(/^There are more keys\. Print the next page with: --after \S+\n$/) as string,
  });
  expect(names(await json('list', '--search', 'LPH'))).toEqual(['alpha']);
});

test('every command has help for its flags', async () => {
  expect((await keys('--help')).out).toMatch(
    /create[\s\S]*list[\s\S]*edit[\s\S]*disable[\s\S]*enable[\s\S]*rotate[\s\S]*delete[\s\S]*Examples:/,
  );
  for (const command of ['create', 'list', 'edit', 'disable', 'enable', 'rotate', 'delete']) {
    const { out, code } = await keys(command, '--help');
    expect([command, code]).toEqual([command, 0]);
    expect(out).toMatch(new RegExp(`Usage: capstan keys ${command}[\\s\\S]*--keys-db <file>[\\s\\S]*--json`));
  }
  expect((await keys('create', '--help')).out).toMatch(
    /--allow-from <network>[\s\S]*--budget <tokens\/period>[\s\S]*1000000\/day/,
  );
});

test('--data-dir is another way to name the database', async () => {
  const folder = makeFolder();
  await keys('create', '--name', 'a', '--data-dir', folder);
  keysDb = path.join(folder, 'capstan.db');
  expect((await json('list')).data).toHaveLength(1);
});

test('only create makes a database', async () => {
  for (const args of [['list'], ['disable', 'x'], ['rotate', 'x'], ['delete', 'x', '--yes']]) {
    expect([args, await keys(...args)]).toMatchObject([
      args,
      {
        code: 1,
        out: '',
        err: `error: the key database ${keysDb} does not exist. Create one with: capstan keys create --name NAME\n`,
      },
    ]);
    expect(existsSync(keysDb)).toBe(false);
  }
  await keys('create', '--name', 'a');
  expect((await json('list')).data).toHaveLength(1);
});

test.each<[string[], string]>([
  [[], '--name: expected a name for the key'],
  [['--name', ' '], 'name: expected 1 to 100 printable characters'],
  [['--name', 'k', '--type', 'deployment-level'], 'deployments: a deployment-level key needs one or more'],
  [['--name', 'k', '--type', 'admin'], 'type: expected user-level or deployment-level'],
  [['--name', 'k', '--allow-from', '10.0.0.1/8'], 'allowed_cidrs: 10.0.0.1/8 has bits set after its prefix'],
  [['--name', 'k', '--expires', '2000-01-31T00:00:00Z'], 'expires'],
  [['--name', 'k', '--deployment', ' '], 'deployment: expected 1 to 100 printable characters'],
  [['--name', 'k', '--deployment', 'chat', '--deployment', 'x'.repeat(101)], 'deployment: expected 1 to 100'],
])('a refused key creates no database: %j', async (args, message) => {
  expect(await keys('create', ...args)).toMatchObject({
    code: 2,
    out: '',
    err: expect.stringContaining(message) as string,
  });
  expect(existsSync(keysDb)).toBe(false);
});

test('a key for an unknown deployment ID creates no database', async () => {
  expect(await keys('create', '--name', 'k', '--deployment', 'dep_1')).toMatchObject({
    code: 1,
    out: '',
    err: expect.stringContaining(`deployment: dep_1 not found: the key database ${keysDb} does not exist`) as string,
  });
  expect(existsSync(keysDb)).toBe(false);
});

describe('without a service and a named database', () => {
  const COMMANDS = [['create', '--name', 'a'], ['list'], ['disable', 'x'], ['delete', 'x', '--yes']];
  let file: string;
  let env: NodeJS.ProcessEnv;
  beforeEach(() => {
    const folder = makeFolder();
    file = path.join(folder, 'capstan/capstan.db');
    env = { XDG_DATA_HOME: folder };
  });

  test('every command fails without a terminal, names the database and makes none', async () => {
    for (const args of COMMANDS)
      expect([args, await keysWith({ env }, ...args)]).toMatchObject([
        args,
        {
          code: 2,
          out: '',
          err: expect.stringContaining(
            `expected a service or a key database, got neither. Use a service with capstan login URL or --url, or a database with --keys-db ${file}`,
          ) as string,
        },
      ]);
    expect(existsSync(path.dirname(file))).toBe(false);
  });

  test('a terminal is asked, and only yes goes on', async () => {
    const questions: string[] = [];
    const answering = (answer: string) => (question: string) => {
      questions.push(question);
      return Promise.resolve(answer);
    };
    for (const answer of ['', 'n', 'yesterday'])
      expect(await keysWith({ env, ask: answering(answer) }, 'create', '--name', 'a')).toMatchObject({ code: 2 });
    expect(existsSync(path.dirname(file))).toBe(false);
    expect(questions[0]).toBe(`No service and no key database is named. Use the key database ${file}? [y/N] `);
    expect(await keysWith({ env, ask: answering('y') }, 'create', '--name', 'a')).toMatchObject({
      code: 0,
      err: expect.stringContaining(`created the key database ${file}\n`) as string,
    });
    expect((await keysWith({ env, ask: answering('YES') }, 'list')).out).toContain('user:local');
    expect(questions).toHaveLength(5);
  });

  test('a database that a flag or a variable names needs no question', async () => {
    const ask = () => Promise.reject(new Error('asked'));
    expect(await keysWith({ env: { CAPSTAN_KEYS_DB: keysDb }, ask }, 'create', '--name', 'a')).toMatchObject({
      code: 0,
      err: expect.stringContaining(`created the key database ${keysDb}\n`) as string,
    });
    expect(await keysWith({ env, ask }, 'list', '--keys-db', keysDb)).toMatchObject({ code: 0 });
    expect((await keysWith({ env, ask }, 'create', '--name', 'b', '--keys-db', keysDb)).err).not.toContain('database');
  });
});

overBackends((make) => {
  test('a command that only reads makes no tables, and create says that it makes them', async () => {
    const location = await make();
    const name = location.kind === 'file' ? location.file : location.url;
    expect(await keys('list', '--data-dir', 'x', '--keys-db', name)).toMatchObject({
      code: 1,
      err: expect.stringMatching(/^error: the key database .* does not exist/) as string,
    });
    expect(await databaseExists(location)).toBe(false);
    const created = await keysWith({}, 'create', '--name', 'a', '--keys-db', name);
    expect([created.code, created.err]).toEqual([0, expect.stringMatching(/^created the key database /)]);
    expect(await databaseExists(location)).toBe(true);
  });
});

test('a wrong value is a usage error with the expected value', async () => {
  await keys('create', '--name', 'k');
  const cases: [string[], RegExp][] = [
    [['create'], /--name: expected a name for the key/],
    [['create', '--name', 'x', '--type', 'admin'], /type: expected user-level or deployment-level/],
    [['create', '--name', 'x', '--type', 'deployment-level'], /one or more/],
    [['create', '--name', 'x', '--type', 'user-level', '--deployment', 'chat'], /deployments: .*user-level key/],
    [
      ['create', '--name', 'x', '--deployment', 'a,b'],
      /--deployment: expected one deployment, got 'a,b'\. Repeat the flag for more: --deployment a --deployment b\./,
    ],
    [['create', '--name', 'x', '--expires', 'tomorrow'], /--expires: expected a duration such as 30d/],
    [['create', '--name', 'x', '--expires', '2029-12-31T00:00:00Z'], /a time in the future/],
    [['create', '--name', 'x', '--rpm', '0'], /rpm: expected an integer from 1/],
    [['create', '--name', 'x', '--tpm', '-5'], /--tpm: expected a whole number/],
    [['create', '--name', 'x', '--owner', 'me'], /owner: expected user:NAME or org:NAME/],
    [
      ['create', '--name', 'x', '--allow-from', '10.0.0.1/8'],
      /allowed_cidrs: 10.0.0.1\/8 has bits set after its prefix/,
    ],
    [['create', '--name', 'x', '--allow-from', 'home'], /expected networks such as 10.0.0.0\/8/],
    [
      ['create', '--name', 'x', '--budget', '100'],
      /--budget: expected tokens and a period \(day, week, month or total\), such as 1000000\/day/,
    ],
    [['create', '--name', 'x', '--budget', '0/day'], /a whole number of tokens, 1 or more/],
    [['list', '--deployment', 'a,b'], /--deployment: expected one deployment/],
    [['edit', 'x', '--deployment', 'a,b'], /--deployment: expected one deployment/],
    [['list', '--sort', 'size'], /--sort: expected created, name, last-used or expires, got 'size'/],
    [['list', '--limit', '1000'], /limit: expected an integer from 1 to 100/],
    [['list', '--after', 'x'], /after: expected the next value of a page/],
    [['rotate', 'x', '--finish', '--grace', '1d'], /--finish: cannot be used with --grace/],
    [['edit', 'x'], /nothing to change/],
    [['rotate', 'x', '--grace', '31d'], /grace: expected 0 to 30 days/],
    [['rotate', 'x', '--grace', '5'], /--grace: expected a duration/],
  ];
  for (const [args, message] of cases)
    expect([args, await keys(...args)]).toMatchObject([
      args,
      { code: 2, out: '', err: expect.stringMatching(message) as string },
    ]);
  expect(await keys('disable', 'unknown')).toMatchObject({
    code: 1,
    err: 'error: no key has this ID or name: see capstan keys list\n',
  });
  expect((await keys('crate')).code).toBe(1);
  expect((await keys('list', '--bogus')).err).toContain('unknown option');
});

test('a second key of one name says that commands need an ID', async () => {
  const first = await keys('create', '--name', 'twin');
  expect(first.err).not.toContain('note:');
  const { code, err } = await keys('create', '--name', 'twin');
  expect([code, err]).toEqual([0, expect.stringContaining('note: another key is called "twin" too')]);
});

test('a failure of the look for a second key of the name is none of the command', async () => {
  const created = JSON.parse((await keys('create', '--name', 'a', '--json')).out) as { key: string };
  const store = {
    createKey: () => Promise.resolve({ key: { ...created, limits: {} }, secret: 'cpk_secret' }),
    pageKeys: () => Promise.reject(new Error('the connection broke')),
    close: () => Promise.resolve(),
  } as unknown as KeysStore;
  const { code, out, err } = await keysWith({ remote: () => store }, 'create', '--name', 'a', '--url', 'http://x');
  expect({ code, out }).toEqual({ code: 0, out: 'cpk_secret\n' });
  expect(err).not.toContain('error:');
});

test.each([
  ['0', 0],
  ['90s', 90_000],
  ['30m', 1_800_000],
  ['24h', 86_400_000],
  ['2w', 1_209_600_000],
])('%s is %d ms', (text, ms) => expect(parseDuration('x', text)).toBe(ms));

test.each(['', '5', '-1h', '1.5h', '1y', '1h30m', '9999999999d'])('refuses %j as a duration', (text) =>
  expect(() => parseDuration('x', text)).toThrow('expected a duration'),
);

test('an expiry is a time, a duration or never', () => {
  expect(parseExpiry('2030-01-31T01:00:00+01:00', 0)).toBe(Date.UTC(2030, 0, 31));
  expect(parseExpiry('1h', 5)).toBe(3_600_005);
  expect(parseExpiry('never', 5)).toBeNull();
  for (const text of ['2030-01-31', '2030-13-31T00:00:00Z', '2030-01-31T00:00:00'])
    expect(() => parseExpiry(text, 0)).toThrow('--expires');
});
