/** Hostile start scripts at level L2 that look for files of the machine, of the service and of its configuration. */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { newSpec } from '../conformance';
import { describeUsers, makeDataDir, type Result, runScripts, type User } from './users';

/** The files that every deployment gets. Those of the machine appear only where it has them. */
const MADE = ['group', 'host.conf', 'hostname', 'hosts', 'nsswitch.conf', 'passwd', 'resolv.conf'];
const OF_THE_MACHINE = [
  ...['alternatives', 'ca-certificates', 'ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'localtime'],
  ...['mtab', 'os-release', 'pki', 'protocols', 'services', 'ssl', 'timezone'],
];

describeUsers('files that a start script of $name sees', (user: User) => {
  let dataDir: string;
  let remove: () => void;
  beforeAll(() => {
    ({ dataDir, remove } = makeDataDir(user));
  });
  afterAll(() => remove());

  async function run(script: string, more: Parameters<typeof newSpec>[0] = {}, hiddenPaths: string[] = []) {
    const [result] = await runScripts(user, {
      dataDir,
      hiddenPaths,
      specs: [newSpec({ startCommand: script, ...more })],
    });
    return result;
  }

  test('/etc is made for the deployment', async () => {
    const { lines } = await run('ls -A /etc; echo --; cat /etc/passwd /etc/group; echo --; cat /etc/hosts; id -un');
    const [names, accounts, rest] = lines.join('\n').split('--\n');
    expect(names.trim().split('\n')).toEqual(expect.arrayContaining(MADE));
    expect(
      names
        .trim()
        .split('\n')
        .filter((name) => ![...MADE, ...OF_THE_MACHINE].includes(name)),
    ).toEqual([]);
    expect(
      accounts
        .trim()
        .split('\n')
        .map((line) => line.split(':')[0]),
    ).toEqual(['root', 'nobody', 'root', 'nogroup']);
    expect(rest).toContain('127.0.0.1');
    expect(rest.trim().split('\n').at(-1)).toBe('root');
  });

  test('/etc has nothing that only the service may read, and cannot be changed', async () => {
    const { lines }: Result = await run(
      'find /etc ! -type l ! -perm -004; ls /etc/ssl/private /etc/shadow 2>/dev/null; echo x > /etc/passwd || echo kept; echo x > /etc/new || echo kept',
    );
    expect(lines.filter((line) => !/Read-only file system/.test(line))).toEqual(['kept', 'kept']);
  });

  test('programs of the machine work without its /etc', async () => {
    const { lines, exitCode } = await run(
      `${process.execPath} -e 'require("dns").lookup("localhost", (error, address) => console.log(error ?? address, require("os").userInfo().username))' && ldconfig -p | head -1 | cut -c1-4; date +%Z`,
    );
    expect([exitCode, lines[0]]).toEqual([0, expect.stringMatching(/^(127\.0\.0\.1|::1) root$/)]);
  });

  test('files and folders that the service was configured with are hidden', async () => {
    const { lines } = await run('wc -c < /usr/bin/env; ls -A /usr/share/zoneinfo | wc -l', {}, [
      '/usr/bin/env',
      '/usr/share/zoneinfo',
      '/no/such/path',
    ]);
    expect(lines.filter((line) => !/Permission denied/.test(line))).toEqual(['0', '0']);
  });

  test('they are hidden inside a data source, too', async () => {
    const source = join(dataDir, 'source');
    mkdirSync(join(source, 'keys'), { recursive: true });
    for (const name of ['model', 'tls.key', 'keys/secret']) writeFileSync(join(source, name), 'content');
    for (const folder of [dataDir, source, join(source, 'keys')]) chmodSync(folder, 0o755);
    const { lines } = await run(
      'cd /platform/input/input0; cat model; echo; wc -c < tls.key; ls -A keys | wc -l',
      { inputs: [{ mount: 'input0', path: source }] },
      [join(source, 'tls.key'), join(source, 'keys')],
    );
    expect(lines.filter((line) => !/Permission denied/.test(line))).toEqual(['content', '0', '0']);
  });
});
