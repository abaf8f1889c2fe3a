import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { makeFolder } from '../../access/support';
import { type CommandResult, runCommand, startService, type TestService } from './support';

let service: TestService;
let home: string;
let file: string;

beforeAll(async () => {
  service = await startService();
});
afterAll(async () => {
  await service.close();
});
beforeEach(() => {
  home = makeFolder();
  file = path.join(home, 'capstan/profile.json');
});

/** Runs a command of a user without CAPSTAN_URL and CAPSTAN_TOKEN. */
const run = (line: readonly string[], input: Parameters<typeof runCommand>[2] = {}, env = {}): Promise<CommandResult> =>
  runCommand(line, { XDG_CONFIG_HOME: home, ...env }, input);
const login = () => run(['login', service.url], { stdin: `${service.token}\n` });
const modeOf = (name: string) => statSync(name).mode & 0o777;

describe('login', () => {
  test('keeps the address and the token in a file that only the user can read', async () => {
    const { code, out, err } = await login();
    expect([code, out]).toEqual([0, '']);
    expect(err).toContain(`You are logged in at ${service.url} as ada@example.com. The token is in ${file}.`);
    expect(err).not.toContain(service.token);
    expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ url: service.url, token: service.token });
    expect([modeOf(file), modeOf(path.dirname(file))]).toEqual([0o600, 0o700]);
    expect(await run(['orgs', 'list', '--json'])).toMatchObject({ code: 0, out: '{"data":[],"next":null}\n' });
    expect(await run(['keys', 'create', '--name', 'laptop'])).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^sk-cap1_/),
    });
    expect(await service.run(['keys', 'list', '--json'])).toMatchObject({ out: expect.stringContaining('"laptop"') });
  });

  test('asks for the token on a terminal without showing it', async () => {
    const questions: unknown[] = [];
    const ask = (question: string, options?: object) => {
      questions.push([question, options]);
      return Promise.resolve(` ${service.token} `);
    };
    expect(await run(['login', `${service.url}/`], { ask })).toMatchObject({ code: 0 });
    expect(questions).toEqual([
      [`Create a management token at ${service.url}/account/tokens.\nManagement token: `, { isSecret: true }],
    ]);
    expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ url: service.url, token: service.token });
  });

  test('replaces an earlier profile, narrows the mode of the file and leaves no other file', async () => {
    mkdirSync(path.dirname(file));
    writeFileSync(file, '{}', { mode: 0o644 });
    expect(await login()).toMatchObject({ code: 0 });
    expect(modeOf(file)).toBe(0o600);
  });

  test('a token that the service refuses is not kept, and the earlier profile stays', async () => {
    await login();
    const before = readFileSync(file, 'utf8');
    expect(await run(['login', service.url], { stdin: 'mt-wrong\n' })).toMatchObject({
      code: 1,
      err: expect.stringContaining('401'),
    });
    expect(readFileSync(file, 'utf8')).toBe(before);
  });

  test.each([
    [['login', 'localhost'], 'mt-x', "URL: expected a URL such as http://127.0.0.1:8090, got 'localhost'"],
    [['login', 'http://127.0.0.1:1'], '', 'expected a management token, got nothing'],
    [['login', 'http://u:p@127.0.0.1:1'], 'mt-x', 'URL: expected a URL without a user name and password'],
  ])('refuses %j', async (line, stdin, message) => {
    const { code, err } = await run(line, { stdin });
    expect([code, err]).toEqual([2, expect.stringContaining(message)]);
  });

  test('logout deletes the profile', async () => {
    await login();
    expect(await run(['logout'])).toMatchObject({ code: 0, err: expect.stringContaining(`deleted ${file}`) });
    expect(await run(['orgs', 'list'])).toMatchObject({ code: 2, err: expect.stringContaining('capstan login URL') });
    expect(await run(['logout'])).toMatchObject({ code: 0, err: expect.stringContaining('not logged in') });
  });
});

describe('the profile', () => {
  test('comes after flags and variables', async () => {
    await login();
    const wrong = { CAPSTAN_URL: service.url, CAPSTAN_TOKEN: 'mt-wrong' };
    expect(await run(['orgs', 'list'], {}, wrong)).toMatchObject({ code: 1, err: expect.stringContaining('401') });
    expect(await run(['orgs', 'list', '--token', service.token], {}, wrong)).toMatchObject({ code: 0 });
    expect(await run(['orgs', 'list'], {}, { ...wrong, CAPSTAN_URL: 'http://127.0.0.1:1' })).toMatchObject({
      err: expect.stringContaining('cannot reach http://127.0.0.1:1 '),
    });
  });

  test('its token never goes to another address', async () => {
    await login();
    for (const line of [
      ['orgs', 'list', '--url', 'http://127.0.0.1:1'],
      ['keys', 'list', '--url', 'http://127.0.0.1:1'],
    ])
      expect(await run(line)).toMatchObject({
        code: 2,
        err: expect.stringContaining('expected a management token for http://127.0.0.1:1 '),
      });
  });

  test('its address never gets another token', async () => {
    await login();
    const fetched: string[] = [];
    const fetch = (url: string | URL | Request) => {
      fetched.push(url instanceof Request ? url.url : url.toString());
      return Promise.reject(new Error('no network'));
    };
    for (const [line, env, source] of [
      [['orgs', 'list'], { CAPSTAN_TOKEN: 'mt-other' }, 'CAPSTAN_TOKEN'],
      [['keys', 'list'], { CAPSTAN_TOKEN: 'mt-other' }, 'CAPSTAN_TOKEN'],
      [['orgs', 'list', '--token', 'mt-other'], {}, '--token'],
      [['keys', 'list', '--token', 'mt-other'], {}, '--token'],
    ] as const)
      expect(await run(line, { fetch }, env)).toEqual({
        code: 2,
        out: '',
        err: expect.stringContaining(
          `${source}: expected the URL of its service in --url or CAPSTAN_URL, got none. You are logged in at ${service.url}. `,
        ),
      });
    expect(fetched).toEqual([]);
    await run(['logout']);
    await run(['orgs', 'list'], { fetch }, { CAPSTAN_TOKEN: 'mt-other' });
    expect(fetched).toEqual([expect.stringMatching(/^http:\/\/127\.0\.0\.1:8090\//)]);
  });

  test('comes before DATABASE_URL and after the variables and flags that name a key database', async () => {
    await login();
    const list = async (flags: readonly string[], env = {}) => (await run(['keys', 'list', ...flags], {}, env)).err;
    expect(await list([], { DATABASE_URL: 'postgres://127.0.0.1:1/x' })).toBe('');
    expect(await list([], { CAPSTAN_KEYS_DB: '/nowhere/a.db' })).toContain('/nowhere/a.db does not exist');
    expect(await list([], { CAPSTAN_DATA_DIR: '/nowhere' })).toContain('/nowhere/capstan.db does not exist');
    expect(await list(['--keys-db', '/nowhere/b.db'])).toContain('/nowhere/b.db does not exist');
  });

  test.each([
    ['{', 0o600, 'expected the JSON that capstan login writes'],
    ['{"url":"x"}', 0o600, 'expected the JSON that capstan login writes'],
    ['{"url":"http://x","token":"mt-x"}', 0o644, 'expected mode 600, got 644. Another user may have read the token'],
  ])('is refused when it holds %s with mode %o', async (text, mode, message) => {
    mkdirSync(path.dirname(file));
    writeFileSync(file, text, { mode });
    for (const line of [
      ['orgs', 'list'],
      ['keys', 'list'],
    ]) {
      const { code, err } = await run(line);
      expect([code, err]).toEqual([2, expect.stringContaining(`${file}: ${message}`)]);
      expect(err).not.toContain('mt-x');
    }
    // It is not read when nothing needs it.
    expect(await service.run(['orgs', 'list'], { XDG_CONFIG_HOME: home })).toMatchObject({ code: 0 });
  });

  const PROFILE = '{"url":"http://x","token":"mt-x"}\n';
  test.each<[string, () => void, string]>([
    ['a symbolic link', () => symlinkSync(path.join(home, 'elsewhere'), file), 'a symbolic link'],
    ['a folder', () => mkdirSync(file), 'a folder'],
    ['a FIFO', () => void spawnSync('mkfifo', ['-m', '600', file]), 'another kind of file'],
  ])('is refused and replaced as %s', async (_kind, make, got) => {
    writeFileSync(path.join(home, 'elsewhere'), PROFILE, { mode: 0o600 });
    mkdirSync(path.dirname(file));
    make();
    expect(await run(['orgs', 'list'])).toMatchObject({
      code: 2,
      err: expect.stringContaining(`${file}: expected a regular file, got ${got}. Delete it, then run capstan login`),
    });
    if (lstatSync(file).isDirectory()) return;
    expect(await login()).toMatchObject({ code: 0 });
    expect(lstatSync(file).isFile()).toBe(true);
    expect(readFileSync(path.join(home, 'elsewhere'), 'utf8')).toBe(PROFILE);
  });

  test('is refused when another user owns it', async () => {
    await login();
    const uid = process.getuid?.() ?? 0;
    const getuid = jest.spyOn(process, 'getuid').mockReturnValue(uid + 1);
    const { code, err } = await run(['orgs', 'list']);
    getuid.mockRestore();
    expect([code, err]).toEqual([
      2,
      expect.stringContaining(`${file}: expected a file of this user (uid ${uid + 1}), got one of uid ${uid}. `),
    ]);
  });

  test('is refused when it is far too large', async () => {
    mkdirSync(path.dirname(file));
    writeFileSync(file, ' '.repeat(70_000), { mode: 0o600 });
    expect(await run(['orgs', 'list'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('expected the JSON that capstan login writes'),
    });
  });

  test('may be read-only', async () => {
    await login();
    chmodSync(file, 0o400);
    expect(await run(['orgs', 'list'])).toMatchObject({ code: 0 });
  });

  test('login and logout report a place that they cannot write', async () => {
    mkdirSync(file, { recursive: true });
    expect(await login()).toMatchObject({
      code: 2,
      err: expect.stringContaining(`${file}: cannot save the login (EISDIR)`),
    });
    expect(existsSync(`${file}.${process.pid}`)).toBe(false);
    expect(await run(['logout'])).toMatchObject({
      code: 2,
      err: expect.stringContaining(`${file}: expected a file that capstan login wrote, got a folder`),
    });
  });

  test('logout deletes a link, even one that leads nowhere', async () => {
    mkdirSync(path.dirname(file));
    symlinkSync('/nowhere', file);
    expect(await run(['logout'])).toMatchObject({ code: 0, err: expect.stringContaining(`deleted ${file}`) });
    expect(lstatSync(file, { throwIfNoEntry: false })).toBeUndefined();
  });
});
