/** The commands for deployments, versions, logs, containers, images and data sources. Nothing runs. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { plain } from '../../../../server/platform/cli/text';
import { makeFolder } from '../../access/support';
import { startService, type TestService } from './support';

let service: TestService;
beforeAll(async () => {
  service = await startService();
});
afterAll(async () => {
  await service.close();
});

const run = (...line: string[]) => service.run(line);
const json = async (...line: string[]) => JSON.parse((await service.run([...line, '--json'])).out);

describe('deployments', () => {
  test('deploy needs only a name and shows the deployment', async () => {
    const created = await run('deploy', 'chat');
    expect(created).toMatchObject({
      code: 0,
      out: expect.stringMatching(/name +chat\nid +dep_\S+\nstate +pending\nurl +\/d\/\S+\naccess +public\n/),
    });
    expect((await run('deployments', 'list')).out).toMatch(/chat +pending +public +0\/1 +1 +user:ada@example.com/);
    expect((await run('versions', 'get', 'chat', '1')).out).toMatch(
      /\ncreated +\S+ \S+Z by ada@example.com\n.*\nimage +capstan:\S+\ncompute +1 core, 1 GiB\nruns +capstan serve demo\n/,
    );
    expect((await run('versions', 'list', 'chat')).out).toMatch(/\n1 +queued +yes/);
  });

  test('aliases are set, replaced, shown and removed', async () => {
    const created = await run('deploy', 'aliased', '--alias', 'gpt-4o', '--alias', 'Qwen/Qwen3');
    expect(created.out).toMatch(/\naliases +gpt-4o, Qwen\/Qwen3\n/);
    expect((await run('deploy', 'clash', '--alias', 'gpt-4o')).err).toContain(
      'aliases: another deployment of the owner has the name gpt-4o',
    );
    await run('deployments', 'edit', 'aliased', '--alias', 'fast');
    expect((await json('deployments', 'get', 'aliased')).aliases).toEqual(['fast']);
    expect((await run('deployments', 'edit', 'aliased', '--alias', 'x', '--remove-aliases')).code).toBe(2);
    await run('deployments', 'edit', 'aliased', '--remove-aliases');
    expect((await run('deployments', 'get', 'aliased')).out).not.toContain('aliases');
  });

  test('fallbacks are set, shown and removed, and must be other deployments of the owner', async () => {
    await run('deploy', 'spare');
    const created = await run('deploy', 'first', '--fallback', 'spare', '--fallback-after', '20s');
    expect(created.out).toMatch(/\nfallbacks +spare, after 20 s without a first byte\n/);
    expect((await run('deployments', 'edit', 'first', '--fallback', 'first')).err).toContain(
      'fallbacks: expected other deployments of the same owner, got first',
    );
    await run('deployments', 'edit', 'first', '--fallback-after', 'never');
    expect(await json('deployments', 'get', 'first')).toMatchObject({ fallbacks: ['spare'], fallback_after_s: null });
    await run('deployments', 'edit', 'first', '--remove-fallbacks');
    expect((await json('deployments', 'get', 'first')).fallbacks).toEqual([]);
    expect((await run('deployments', 'edit', 'first', '--fallback-after', '2h')).code).toBe(2);
  });

  test('flags set what a deployment runs and its scale', async () => {
    const { out, err, code } = await service.run(
      [
        'deploy',
        'script',
        '--start',
        'exec serve --port 80',
        '--env',
        'A=1=2',
        '--secret-env',
        'HF_TOKEN',
        '--cpus',
        '0.5',
        '--memory',
        '1.5G',
        '--replicas',
        '2',
        '--health-path',
        '/health',
        '--start-deadline',
        '90s',
        '--access-control',
        '--json',
      ],
      { HF_TOKEN: 'hush' },
    );
    expect([code, err]).toEqual([0, '']);
    expect(JSON.parse(out)).toMatchObject({ min_replicas: 2, max_replicas: 2, access_control: true });
    const version = await json('versions', 'get', 'script', '1');
    expect(version.spec).toMatchObject({
      start_command: 'exec serve --port 80',
      env: { A: '1=2', HF_TOKEN: null },
      compute: { cpu_millis: 500, memory_mb: 1536 },
      health_path: '/health',
      start_deadline_s: 90,
    });
    expect(JSON.stringify(version)).not.toContain('hush');
    expect((await run('versions', 'get', 'script', '1')).out).toContain('HF_TOKEN=(secret)');
  });

  test.each([
    [
      ['deploy', 'x', '--model', '/models/qwen'],
      "--model: expected demo, a data source or a path below /platform, got '/models/qwen'",
    ],
    [['deploy', 'x', '--cpus', 'two'], "--cpus: expected a number such as 2 or 0.5, got 'two'"],
    [['deploy', 'x', '--env', 'A'], "--env: expected NAME=VALUE, got 'A'"],
    [
      ['deploy', 'x', '--secret-env', 'NOT_SET=value'],
      "--secret-env: expected the name of a variable in this command's environment, got 'NOT_SET', which is not set",
    ],
    [
      ['deploy', 'x', '--replicas', '2', '--min-replicas', '1'],
      '--replicas: cannot be used with --min-replicas or --max-replicas',
    ],
    [['deploy', 'x', '--strategy', 'blue'], "--strategy: expected auto, surge or replace, got 'blue'"],
    [['deploy', 'x', '--start', 'a', '--start-file', 'b'], '--start and --start-file: expected one, got both'],
    [['deploy', 'x', '--owner', 'lab'], "--owner: expected org:SLUG, or user for yourself, got 'lab'"],
    [['deployments', 'edit', 'chat'], 'nothing to change: expected --name'],
    [['deployments', 'delete', 'chat'], '--yes to delete chat (dep_'],
    [['versions', 'get', 'chat', 'first'], "version: expected a number, got 'first'"],
    [['access', 'chat', 'maybe'], "access: expected on or off, got 'maybe'"],
    [['logs', 'chat', '-n', 'many'], "--lines: expected a whole number or all, got 'many'"],
    [['logs', 'chat', '--since', 'yesterday'], '--since: expected a duration'],
  ])('refuses %j as a wrong command line', async (line, message) => {
    expect(await service.run(line)).toMatchObject({ code: 2, out: '', err: expect.stringContaining(message) });
  });

  test.each([
    [['deploy', 'chat'], /already has a deployment with this name: choose another.*\(409 conflict\)$/],
    [['deployments', 'get', 'chart'], /^no deployment is called chart\. Found script, first, spare, aliased, chat$/],
    [
      ['deploy', 'x', '--model', 'nothing'],
      /^no data source is called nothing\. Expected demo, a data source \(.*\) or a model from the hub such as/,
    ],
    [['deploy', 'x', '--image', 'other:9'], /^no image is called other/],
    [['versions', 'get', 'chat', '7'], /\(404 not_found\)$/],
    [['deployments', 'get', 'dep_00000000000000000000000000'], /\(404 not_found\)$/],
  ])('reports the failure of %j in one line', async (line, message) => {
    const { code, out, err } = await service.run(line);
    expect([code, out]).toEqual([1, '']);
    expect(err).toMatch(message);
    expect(err).not.toContain('\n');
  });

  test('a value that the service refuses exits with 2 and is reported once', async () => {
    expect(await run('deploy', '')).toMatchObject({
      code: 2,
      out: '',
      err: '/name: expected a string of 1 to 100 characters, got a string of 0 characters (400 invalid_request)',
    });
    expect(await run('deploy', 'x', '--env', 'A B=1')).toMatchObject({
      code: 2,
      err: expect.stringMatching(/^\/env\/A B: expected a name that matches /),
    });
    expect(await run('deploy', 'x', '--replicas', '65')).toMatchObject({
      code: 2,
      err: expect.stringContaining("--replicas: expected a whole number up to 64, got '65'"),
    });
    expect(await run('deploy', 'big', '--cpus', '64')).toMatchObject({
      code: 2,
      out: '',
      err: expect.stringMatching(/^compute.*\(422 invalid_argument\)$/),
    });
  });

  test('changes access, name and scale, and stops and deletes by name, slug or ID', async () => {
    expect(await run('access', 'chat', 'on')).toMatchObject({
      code: 0,
      out: 'access control of chat is on (applied by 1 of 1 gateway)\n',
      err: expect.stringMatching(/no access key exists for this deployment.* keys create --deployment chat\n$/),
    });
    expect(
      await json(
        'deployments',
        'edit',
        'chat',
        '--name',
        'talk',
        '--min-replicas',
        '0',
        '--max-replicas',
        '3',
        '--idle-timeout',
        '15m',
      ),
    ).toMatchObject({ name: 'talk', min_replicas: 0, max_replicas: 3, idle_timeout_s: 900, access_control: true });
    const { slug, id } = await json('deployments', 'get', 'talk');
    expect((await json('deployments', 'get', slug)).id).toBe(id);
    expect((await run('deployments', 'stop', id)).code).toBe(0);
    expect(await run('deployments', 'delete', 'talk', '--yes')).toMatchObject({
      code: 0,
      out: expect.stringContaining('is being deleted'),
    });
    expect(
      (await json('deployments', 'list')).data.find(({ name }: { name: string }) => name === 'talk'),
    ).toMatchObject({ state: 'deleting' });
  });

  test('lists only the deployments of the owner that --owner names, also for me', async () => {
    const { code } = await run('orgs', 'create', 'ours');
    expect(code).toBe(0);
    await run('deploy', 'mine');
    await run('deploy', 'shared', '--owner', 'org:ours');
    const names = async (...flags: string[]) =>
      ((await json('deployments', 'list', ...flags)) as { data: { name: string }[] }).data
        .map(({ name }) => name)
        .filter((name) => name === 'mine' || name === 'shared')
        .sort();
    expect(await names()).toEqual(['mine', 'shared']);
    expect(await names('--owner', 'me')).toEqual(['mine']);
    expect(await names('--owner', 'user')).toEqual(['mine']);
    expect(await names('--owner', 'org:ours')).toEqual(['shared']);
  });

  test('events are printed in order', async () => {
    const types = (await json('events', 'script')).data.map(({ type }: { type: string }) => type);
    expect(types.slice(0, 2)).toEqual(['deployment.created', 'version.queued']);
    expect((await run('events', 'script')).out.split('\n')[0]).toMatch(/^\S+ {2}deployment\.created {2}\{/);
  });
});

describe('help', () => {
  const help = async (...line: string[]) => (await run(...line, '--help')).out.replace(/\s+/g, ' ');

  test('shows defaults only where a flag is not a change', async () => {
    expect(await help('deploy')).toContain(
      '--min-replicas <number> minimum number of replicas, 0 to 64; 0 allows scaling',
    );
    expect(await help('deploy')).toContain(
      '--cpus <number> number of cores per replica, for example 2 or 0.5 (default: 1)',
    );
    expect(await help('versions', 'create')).toContain('per replica, for example 2 or 0.5 --memory');
    expect(await help('deployments', 'edit')).not.toContain('(default: 1)');
    expect(await help('keys', 'edit', 'x')).not.toContain('(default: none)');
  });

  test('offers flags for readiness only to deployments', async () => {
    expect(await help('versions', 'create')).toContain('--health-path');
    expect(await help('containers', 'create')).not.toMatch(/--health-path|--start-deadline|--grace/);
    expect(await help('containers', 'create')).toContain('it must serve on port 8080');
  });

  test('says what a restart does and what --wait waits for', async () => {
    expect(await help('deployments')).toContain('stop all replicas of a deployment, then start new ones');
    expect(await help('deployments', 'restart')).toContain('wait until the deployment serves');
    expect(await help('deployments', 'stop')).toContain('wait until all replicas have ended');
    expect(await help('containers', 'start')).toContain('wait until the container runs');
  });
});

describe('logs', () => {
  test('prints the end of a log, or all of it, filtered, without terminal control characters', async () => {
    const { id } = await json('versions', 'get', 'script', '1');
    await service.logs.append(
      id,
      Array.from({ length: 5 }, (_unused, i) => ({
        at: Date.UTC(2030, 0, 1),
        stream: i === 3 ? ('stderr' as const) : ('stdout' as const),
        replica: 0,
        text: i === 4 ? '\x1b[31mred\u202e' : `line ${i}`,
      })),
    );
    expect((await run('logs', 'script', '-n', '2')).out).toBe('line 3\n\\x1b[31mred\\x202e\n');
    expect((await run('logs', 'script', '-n', 'all', '--stream', 'stderr', '--times')).out).toBe(
      '2030-01-01T00:00:00.000Z 0 stderr line 3\n',
    );
    expect((await run('logs', 'script', '--level', 'error')).out).toBe('');
    expect((await run('logs', 'script', '--level', 'unknown', '-n', '1')).out).toContain('red');
    expect((await run('logs', 'script', '--level', 'loud')).err).toContain(
      '--level: expected error, warn, info, debug or unknown',
    );
    expect((await run('logs', 'script', '--search', 'LINE 1', '--json')).out).toMatch(
      /^\{"seq":2,[^\n]*"text":"line 1"\}\n$/,
    );
    expect((await run('logs', 'script', '--version', '9')).err).toContain('(404 not_found)');
  });

  test('escapes terminal control characters in text', () => {
    expect(plain('a\tb\x07\x1b]0;x\x07\u2066')).toBe('a\tb\\x07\\x1b]0;x\\x07\\x2066');
  });
});

describe('images, data sources and containers', () => {
  test('lists images, data and the machine, and creates, mounts and deletes a data source', async () => {
    expect((await run('images', 'list')).out).toMatch(/capstan:1\.2\.3 +builtin-runtime/);
    expect((await run('compute')).out).toMatch(/cores +8, shared by all deployments\n/);
    expect((await run('data', 'list')).err).toContain('No data sources found');
    const folder = makeFolder();
    mkdirSync(join(folder, 'weights'));
    expect(await run('data', 'create', 'weights', '--path', join(folder, 'weights'))).toMatchObject({
      code: 0,
      out: expect.stringContaining('created weights'),
    });
    expect(await run('data', 'create', 'etc', '--path', '/etc')).toMatchObject({
      code: 2,
      err: expect.stringContaining('(422 invalid_argument)'),
    });
    await run('deploy', 'weighted', '--model', 'weights', '--task', 'embed');
    expect(await run('deploy', 'other', '--task', 'sing')).toMatchObject({
      code: 2,
      err: "--task: expected generate, embed or score, got 'sing'",
    });
    expect((await json('versions', 'get', 'weighted', '1')).spec).toMatchObject({
      bindings: [{ mount: 'input0', source_name: 'weights', mode: 'ro' }],
      runtime: { model: '/platform/input/input0', task: 'embed' },
    });
    await service.measurer.settled();
    expect(await run('data', 'edit', 'weights', '--description', 'small ones', '--visibility', 'public')).toMatchObject(
      { code: 0, out: expect.stringContaining('changed weights') },
    );
    expect(await run('data', 'edit', 'weights', '--path', folder)).toMatchObject({
      code: 1,
      err: expect.stringContaining('cannot change the folder'),
    });
    expect(await run('data', 'edit', 'weights')).toMatchObject({
      code: 2,
      err: 'nothing to change: expected --name, --description, --visibility or --path',
    });
    expect((await run('data', 'get', 'weights')).out).toMatch(
      /description +small ones\n[^]*folder +\/[^\n]*\/weights\nsize +0 MiB\nfiles +0\ndigest +sha256:[0-9a-f]{64}\nused by +deployment weighted version 1 \(input0\)\n/,
    );
    expect(await run('data', 'measure', 'weights')).toMatchObject({
      code: 0,
      out: 'the measurement of weights is pending\n',
    });
    await service.measurer.settled();
    expect(await run('data', 'measure', 'weights', '--cancel')).toMatchObject({
      code: 1,
      err: expect.stringContaining('not being measured'),
    });
    expect(await run('data', 'delete', 'weights', '--yes')).toMatchObject({
      code: 1,
      err: expect.stringContaining('delete the container or version that uses it first'),
    });
    expect(await run('images', 'create', 'tools')).toMatchObject({
      code: 2,
      err: "image: expected NAME:VERSION, got 'tools'",
    });
    expect((await run('images', 'create', 'tools:1')).code).toBe(0);
    expect(await run('images', 'delete', 'tools:1', '--yes')).toMatchObject({ code: 0, out: 'deleted tools:1\n' });
  });

  test('a container is created, previewed, deployed and deleted', async () => {
    expect((await run('containers', 'create', 'lab', '--cpus', '2', '--memory', '2G')).out).toMatch(/state +stopped\n/);
    expect((await run('containers', 'list')).out).toMatch(/lab +stopped/);
    expect((await run('containers', 'preview', 'lab')).out).toMatch(
      /compute +2 cores, 2 GiB\nruns +capstan serve demo/,
    );
    expect(await run('containers', 'create', 'x', '--health-path', '/')).toMatchObject({
      code: 2,
      err: '--health-path, --start-deadline and --grace are only for deployments',
    });
    expect((await json('deploy', 'of-lab', '--container', 'lab')).source_container_id).toMatch(/^con_/);
    expect((await run('containers', 'edit', 'lab', '--memory', '3G')).out).toContain('3 GiB');
    expect((await run('containers', 'delete', 'lab', '--yes')).out).toMatch(/^deleted lab/);
  });
});
