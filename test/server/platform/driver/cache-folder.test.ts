/** Folders that outlive replicas: who may see one, which user owns it, and what happens when it cannot be used. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../../server/platform/driver/driver';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import { commandOf, layoutOf } from '../../../../server/platform/driver/process/replica-layout';
import { Listener, newSpec } from './conformance';

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;
const isRoot = process.geteuid!() === 0;

let dataDir: string;
let logs: LogStore;
let driver: ProcessDriver;
let listener: Listener;

const folderOf = (name: string): string => join(dataDir, 'caches', name);
const cacheOf = (name: string): NonNullable<ReplicaSpec['cache']> => ({
  folder: folderOf(name),
  maxMb: 64,
  sharedMb: 64,
  maxReplicas: 2,
});

async function open(): Promise<void> {
  logs = new LogStore({ folder: join(dataDir, 'logs'), redact: (text) => text });
  driver = await ProcessDriver.open({ dataDir, logs, level: 'L2', replicaDiskBytes: 2 ** 30 });
  listener = new Listener(driver);
}

async function close(): Promise<void> {
  await driver.detach();
  await logs.close();
}

async function linesOf({ logId }: ReplicaSpec): Promise<string[]> {
  return (await logs.read(logId, { after: 0, limit: 1_000 })).lines.map(({ text }) => text);
}

/** Runs a script to its end. Returns what it wrote. */
async function run(startCommand: string, cache: ReplicaSpec['cache']): Promise<string[]> {
  const spec = newSpec({ startCommand, cache });
  await driver.ensure(spec);
  await listener.next(spec, 'exited');
  return linesOf(spec);
}

/** Starts a script that runs until it is stopped. Resolves when it has written a line. */
async function start(startCommand: string, cache: ReplicaSpec['cache']): Promise<ReplicaSpec> {
  const spec = newSpec({ startCommand: `${startCommand}; echo begun; sleep 1000`, cache });
  await driver.ensure(spec);
  for await (const lines of logs.follow(spec.logId, 0, { text: 'begun' }, AbortSignal.timeout(100_000)))
    if (lines.length > 0) break;
  return spec;
}

test('the built-in runtime gets the folder and its limit, a start script gets no flags', () => {
  const spec = newSpec({
    startCommand: null,
    runtimeArgs: ['demo'],
    cache: { folder: '/data/cache', maxMb: 64, sharedMb: 128, maxReplicas: 2 },
  });
  const flagsAt = (level: 'L2' | 'L0', cache: string | undefined, command: string | null = null): string[] => {
    const address = { type: 'tcp', host: '127.0.0.1', port: 8000 } as const;
    const layout = layoutOf(level, { home: '/home', inputs: '/inputs' }, spec, address, cache);
    return commandOf({ ...spec, startCommand: command }, layout).filter(
      (arg, i, all) => /^--prefix/.test(`${arg} ${all[i - 1]}`) || /^--prefix/.test(all[i - 1] ?? ''),
    );
  };
  const flags = (folder: string) => ['--prefix-cache-dir', folder, '--prefix-cache-disk-size', '64M'];
  expect(flagsAt('L2', '/data/cache')).toEqual(flags('/platform/cache'));
  expect(flagsAt('L0', '/data/cache')).toEqual(flags('/data/cache'));
  expect(flagsAt('L2', undefined)).toEqual([]);
  expect(flagsAt('L2', '/data/cache', 'sleep 1')).toEqual([]);
});

(hasNamespaces ? describe : describe.skip)('replicas with namespaces', () => {
  beforeEach(async () => {
    dataDir = mkdtempSync(join(tmpdir(), 'capstan-cache-'));
    await open();
  });
  afterEach(async () => {
    for (const id of await driver.list()) await driver.stop(id, 0);
    await close();
    rmSync(dataDir, { recursive: true, force: true });
  });

  test('a folder survives its replicas, and only those of its deployment can see it', async () => {
    expect(await run('echo kept > /platform/cache/file; ls -ld /platform/cache', cacheOf('dep_a'))).toEqual([
      expect.stringMatching(/^drwx------ \d+ root /),
      'Ended with exit code 0',
    ]);
    expect(await run('cat /platform/cache/file', cacheOf('dep_a'))).toContain('kept');
    expect(await run('ls -A /platform/cache', cacheOf('dep_b'))).toEqual(['Ended with exit code 0']);
    const search = `ls -A /platform; cat ${dataDir}/caches/dep_a/file; find / -name file -path "*cache*" 2>/dev/null`;
    expect(await run(search, null)).toEqual([
      'home',
      'input',
      expect.stringContaining('No such file or directory'),
      expect.stringMatching(/^Ended with exit code/),
    ]);
    expect(readFileSync(join(folderOf('dep_a'), 'file'), 'utf8')).toBe('kept\n');
    expect(statSync(join(dataDir, 'caches')).mode & 0o077).toBe(0);
  });

  test('replicas of one deployment share the folder, also with one of an earlier service', async () => {
    const cache = cacheOf('dep_a');
    const first = await start('echo first > /platform/cache/first', cache);
    await close();
    await open();
    const second = await start('cp /platform/cache/first /platform/cache/second', cache);
    const other = await start('true', cacheOf('dep_b'));
    expect(readdirSync(cache.folder).sort()).toEqual(['first', 'second']);
    const userOf = ({ id }: ReplicaSpec): number => statSync(join(dataDir, 'replicas', id, 'home')).uid;
    expect(userOf(second)).toBe(userOf(first));
    if (isRoot) expect(userOf(other)).not.toBe(userOf(first));
    expect(statSync(cache.folder).uid).toBe(userOf(first));
  });

  test('a link in the path of the folder leads to another disk', async () => {
    mkdirSync(join(dataDir, 'elsewhere'));
    symlinkSync('elsewhere', join(dataDir, 'caches'));
    await run('echo kept > /platform/cache/file', cacheOf('dep_a'));
    expect(readFileSync(join(dataDir, 'elsewhere', 'dep_a', 'file'), 'utf8')).toBe('kept\n');
  });

  test('eight replicas that start together share it', async () => {
    const cache = cacheOf('dep_a');
    await Promise.all(Array.from({ length: 8 }, (_, i) => start(`echo ${i} > /platform/cache/${i}`, cache)));
    expect(readdirSync(cache.folder)).toHaveLength(8);
  });

  (isRoot ? test : test.skip)('a folder of another user is emptied, and so is a file in its place', async () => {
    mkdirSync(folderOf('dep_a'), { recursive: true });
    writeFileSync(join(folderOf('dep_a'), 'old'), '');
    writeFileSync(folderOf('dep_b'), '');
    for (const name of ['dep_a', 'dep_b'])
      expect(await run('ls -A /platform/cache; echo new > /platform/cache/new', cacheOf(name))).toEqual([
        'Ended with exit code 0',
      ]);
    expect(readdirSync(folderOf('dep_a'))).toEqual(['new']);
  });

  test('a folder that cannot be made is one line of the log, and the replica runs without it', async () => {
    writeFileSync(join(dataDir, 'caches'), '');
    expect(await run('ls -A /platform; echo runs', cacheOf('dep_a'))).toEqual([
      expect.stringMatching(/^The prefix cache is not kept on the disk: /),
      'home',
      'input',
      'runs',
      'Ended with exit code 0',
    ]);
  });

  test('a replica that fills the folder beyond its limit is stopped, and the folder is removed', async () => {
    const cache = { folder: folderOf('dep_a'), maxMb: 1, sharedMb: 1, maxReplicas: 2 };
    // More than twice the limit and 1 GiB. It is reserved, not written.
    const fill = 'echo begun; fallocate -l 1100M /platform/cache/large; sleep 1000';
    const spec = newSpec({ startCommand: fill, cache });
    await driver.ensure(spec);
    expect(await listener.next(spec, 'exited')).toMatchObject({
      cause: 'disk_quota_exceeded',
      message: expect.stringContaining('prefix cache'),
    });
    while (existsSync(cache.folder)) await new Promise((resolve) => setTimeout(resolve, 20));
    // The next replica has an empty one.
    expect(await run('ls -A /platform/cache', cache)).toEqual(['Ended with exit code 0']);
  });

  test('a replica may start with more than its limit, which an earlier one left, but may not add to it', async () => {
    const large = { maxMb: 200, sharedMb: 200, maxReplicas: 2 };
    const small = { maxMb: 1, sharedMb: 1, maxReplicas: 2 };
    const fill = 'fallocate -l 1100M /platform/cache/large';
    for (const name of ['dep_a', 'dep_b']) await run(fill, { ...large, folder: folderOf(name) });
    const keeping = await start('true', { ...small, folder: folderOf('dep_a') });
    const adding = newSpec({
      startCommand: `sleep 2; fallocate -l 100M /platform/cache/more; sleep 1000`,
      cache: { ...small, folder: folderOf('dep_b') },
    });
    await driver.ensure(adding);
    expect(await listener.next(adding, 'exited')).toMatchObject({ cause: 'disk_quota_exceeded' });
    // It was measured before the other one.
    expect(await driver.list()).toEqual([keeping.id]);
  });

  test('versions with different limits share the folder up to the larger one', async () => {
    const small = { folder: folderOf('dep_a'), maxMb: 1, sharedMb: 1, maxReplicas: 2 };
    const first = await start('true', small);
    const { reference } = await driver.ensure(first);
    // Another version starts, with a larger limit. The service starts again, and the version gets a replica more.
    await close();
    await open();
    expect(await driver.adopt(reference, first)).toBeDefined();
    const second = await start('true', { ...small, maxMb: 200, sharedMb: 200 });
    const third = await start('fallocate -l 1100M /platform/cache/large', { ...small, sharedMb: 200 });
    // Measured later than the others.
    const alone = newSpec({
      startCommand: 'fallocate -l 1100M /platform/cache/large; sleep 1000',
      cache: { ...small, folder: folderOf('dep_b') },
    });
    await driver.ensure(alone);
    expect(await listener.next(alone, 'exited')).toMatchObject({ cause: 'disk_quota_exceeded' });
    expect((await driver.list()).sort()).toEqual([first.id, second.id, third.id].sort());
  });
});
