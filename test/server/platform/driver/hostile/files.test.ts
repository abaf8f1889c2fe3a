/** Hostile start scripts at level L2 that look for files of the machine, of the service and of its configuration. */
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { newSpec } from '../conformance';
import { describeUsers, makeDataDir, type Result, runScripts, type User } from './users';

/** The files that every deployment gets. Those of the machine appear only where it has them. */
const MADE = ['group', 'host.conf', 'hostname', 'hosts', 'nsswitch.conf', 'passwd', 'resolv.conf'];
const OF_THE_MACHINE = [
  ...['alternatives', 'ca-certificates', 'ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'localtime'],
  ...['mime.types', 'mtab', 'OpenCL', 'os-release', 'pki', 'protocols', 'services', 'ssl', 'static', 'timezone'],
];

const NOT_THERE = /Permission denied|No such file|cannot open|cannot access/;

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
        .filter((name) => ![...MADE, ...OF_THE_MACHINE].includes(name) && !name.startsWith('java-')),
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

  test('/etc has the types of files and the configuration of Java of the machine', async () => {
    const found = readdirSync('/etc').filter((name) => name === 'mime.types' || name.startsWith('java-'));
    const { lines } = await run(`cd /etc; ls -d ${found.join(' ') || 'hosts'}`);
    expect(lines).toEqual(found.length === 0 ? ['hosts'] : found.sort());
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
    expect(lines.filter((line) => !NOT_THERE.test(line))).toEqual(['0']);
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
    expect(lines.filter((line) => !NOT_THERE.test(line))).toEqual(['content', '0']);
  });

  test('a file that replaces a hidden one, or its folder, later is hidden, too', async () => {
    const source = join(dataDir, 'renewed');
    mkdirSync(join(source, 'tls'), { recursive: true });
    for (const name of ['tls/key', 'tls/other', 'model']) writeFileSync(join(source, name), 'old');
    for (const folder of [dataDir, source, join(source, 'tls')]) chmodSync(folder, 0o755);
    mkdirSync(join(source, 'signals'));
    const spec = newSpec({
      startCommand:
        'touch started; until [ -e /platform/input/input0/signals/go ]; do sleep 0.1; done; cd /platform/input/input0; cat model tls/key tls/other; echo; ls tls',
      inputs: [{ mount: 'input0', path: source }],
    });
    const running = runScripts(user, { dataDir, hiddenPaths: [join(source, 'tls', 'key')], specs: [spec] });
    while (!existsSync(join(dataDir, 'replicas', spec.id, 'home', 'started')))
      await new Promise((resolve) => setTimeout(resolve, 20));
    writeFileSync(join(source, 'tls', 'next'), 'secret');
    renameSync(join(source, 'tls', 'next'), join(source, 'tls', 'key'));
    renameSync(join(source, 'tls'), join(source, 'tls.old'));
    mkdirSync(join(source, 'tls'));
    writeFileSync(join(source, 'tls', 'key'), 'secret');
    writeFileSync(join(source, 'signals', 'go'), '');
    const [{ lines }] = await running;
    expect(lines.filter((line) => !NOT_THERE.test(line))).toEqual(['oldold', 'other']);
  });

  test('a data root that is a folder of the system, and a configured file in /etc, are hidden', async () => {
    const { lines } = await run('ls -d /opt /usr; wc -c < /etc/ssl/openssl.cnf', {}, ['/opt', '/etc/ssl/openssl.cnf']);
    expect(lines.filter((line) => !NOT_THERE.test(line))).toEqual(['/usr', '0']);
  });

  test('files of the machine that only the service may read are hidden', async () => {
    const folder = mkdtempSync('/opt/capstan-test-');
    try {
      chmodSync(folder, 0o755);
      for (const name of ['private', 'public', 'closed/file']) {
        mkdirSync(dirname(join(folder, name)), { recursive: true });
        writeFileSync(join(folder, name), 'content');
        chmodSync(join(folder, name), name === 'private' ? 0o600 : 0o644);
        chownSync(join(folder, name), user.uid, user.uid);
      }
      chownSync(join(folder, 'closed'), user.uid, user.uid);
      chmodSync(join(folder, 'closed'), 0o700);
      const { lines } = await run(`cd ${folder}; cat public; echo; cat private; cat closed/file; echo end`);
      expect(lines.filter((line) => !NOT_THERE.test(line))).toEqual(['content', 'end']);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
