import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
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
    const wrong = { CAPSTAN_TOKEN: 'mt-wrong' };
    expect(await run(['orgs', 'list'], {}, wrong)).toMatchObject({ code: 1, err: expect.stringContaining('401') });
    expect(await run(['orgs', 'list', '--token', service.token], {}, wrong)).toMatchObject({ code: 0 });
    expect(await run(['orgs', 'list'], {}, { CAPSTAN_URL: 'http://127.0.0.1:1', ...wrong })).toMatchObject({
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
});
