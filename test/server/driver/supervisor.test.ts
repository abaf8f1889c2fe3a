/** The helper program by itself: its lines on disk, however much there is of them and whoever is alive. */
import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { generateKey } from '../../../server/access/key-format';
import { LogStore } from '../../../server/driver/logs/log-store';
import { isAlive, ReplicaFolder } from '../../../server/driver/process/replica-folder';
import { findSandbox, launch, type SandboxInput } from '../../../server/driver/process/sandbox';
import { SpoolReader } from '../../../server/driver/process/spool-reader';

const NODE = process.execPath;
let root: string;
let folder: ReplicaFolder;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'capstan-supervisor-'));
  folder = new ReplicaFolder(root, 'rep_1');
  mkdirSync(folder.path);
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** Resolves with what waits for its end. */
async function run(args: string[], more: SandboxInput = {}): Promise<() => Promise<void>> {
  let end!: () => void;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  await launch(findSandbox()!, { dir: folder.path, arg: args, env: ['PATH=/usr/bin:/bin'], cwd: root, ...more }, end);
  return () => ended;
}

const spools = (): string[] => readdirSync(folder.spool).sort();
const records = (): string[] =>
  spools().flatMap((name) => readFileSync(join(folder.spool, name), 'utf8').trimEnd().split('\n'));
const texts = (): string[] => records().map((record) => /^\d+ [oes] (.*)$/.exec(record)![1]);

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
}

test('what cannot be started is said, and nothing runs', async () => {
  await expect(run([join(root, 'no-such-program')])).rejects.toThrow('No such file');
  await expect(run(['/bin/true'], { cgroup: [join(root, 'no-such-group')] })).rejects.toThrow('control group');
  await expect(run(['/bin/true'], { inner_port: 'x', unheard_of: 1 })).rejects.toThrow();
});

test('a replica runs once: a second supervisor is refused as long as the first one lives', async () => {
  const ended = await run(['/bin/sleep', '1000']);
  await expect(run(['/bin/true'])).rejects.toThrow('runs already');
  writeFileSync(folder.stopFile, '0');
  process.kill((await folder.supervisor())!.pid, 'SIGTERM');
  await ended();
  await (
    await run(['/bin/true'])
  )();
  expect((await folder.exit())?.exitCode).toBe(0);
});

test('lines that nobody takes up are kept to a limit; those beyond it are counted, and the count is told once there is room', async () => {
  const script = `const fs = require("fs"), line = "x".repeat(999) + "\\n"; for (let i = 0; i < 14000; i++) process.stdout.write(line); process.stdout.write("", () => { fs.writeFileSync("written", ""); setInterval(() => { if (fs.existsSync("go")) { console.log("after"); process.exit() } }, 20) })`;
  // A file takes what one reading brings, a little more than 1 MiB, beyond its 4 MiB: there is room for a second one, never for a third.
  const ended = await run([NODE, '-e', script], { spool_max_bytes: 6 << 20 });
  await until(
    () =>
      existsSync(join(root, 'written')) &&
      spools().length === 2 &&
      spools().every((name) => statSync(join(folder.spool, name)).size >= 4 << 20),
  );
  const numKept = records().length;
  for (const name of spools()) unlinkSync(join(folder.spool, name));
  writeFileSync(join(root, 'go'), '');
  await ended();
  const later = texts();
  const found = /^(\d+) log lines were lost: the service did not take them up in time$/.exec(
    later.find((text) => text.includes('were lost'))!,
  );
  expect(Number(found?.[1])).toBeGreaterThan(0);
  expect(numKept + Number(found?.[1]) + later.filter((text) => text.startsWith('x')).length).toBe(14_000);
  expect(later.at(-1)).toBe('after');
});

test('the numbers of spool files go on over restarts, so that none is taken for one that was read', async () => {
  await (
    await run(['/bin/echo', 'first'])
  )();
  await (
    await run(['/bin/echo', 'second'])
  )();
  expect(spools()).toEqual(['00000001', '00000002']);
  expect(texts()).toEqual(['first', 'second']);
});

test('no key is written, even where a line is cut near it', async () => {
  const { secret } = generateKey();
  const script = `for (const n of [65478, 65500, 65530, 65535]) process.stdout.write("a".repeat(n) + ${JSON.stringify(secret)} + "b".repeat(100) + "\\n"); console.log("plain " + ${JSON.stringify(secret)})`;
  await (
    await run([NODE, '-e', script])
  )();
  const written = spools()
    .map((name) => readFileSync(join(folder.spool, name), 'utf8'))
    .join('');
  expect(written).not.toContain(secret);
  expect(written.match(/sk-cap1_\w{12}_…\w{4}/g)).toHaveLength(5);
});

test('carriage returns at the ends of lines are left out; a last line needs no end', async () => {
  await (
    await run(['/usr/bin/printf', 'one\\r\\ntwo\\n\\nthree'])
  )();
  expect(texts()).toEqual(['one', 'two', '', 'three']);
});

test('its death is that of all that it runs', async () => {
  const marker = `1000.${process.pid}`;
  await run(['/bin/sh', '-c', `sleep ${marker}; true`]);
  const supervisor = (await folder.supervisor())!;
  const { pid, childPid } = supervisor;
  process.kill(pid, 'SIGKILL');
  await until(() => !isAlive(supervisor));
  await until(
    () =>
      !execFileSync('/bin/ps', ['ax', '-o', 'pid='], { encoding: 'utf8' }).split('\n').map(Number).includes(childPid),
  );
  expect(await folder.exit()).toBeUndefined();
});

test('the reader takes each line once, over files, crashes and a disk that is full for a while', async () => {
  await (
    await run([
      NODE,
      '-e',
      'for (let i = 0; i < 25000; i++) process.stdout.write("line " + i + " " + "x".repeat(400) + "\\n")',
    ])
  )();
  expect(spools().length).toBeGreaterThan(1);
  const logs = new LogStore({ folder: join(root, 'logs'), redact: (text) => text });
  let numAppends = 0;
  const failing = {
    positionOf: logs.positionOf.bind(logs),
    append: (...args: Parameters<LogStore['append']>) =>
      ++numAppends % 20 === 3 ? Promise.reject(new Error('no space left on device')) : logs.append(...args),
  };
  const reader = (): SpoolReader =>
    new SpoolReader({
      folder: folder.spool,
      logs: failing,
      logId: 'ver_1',
      replicaId: 'rep_1',
      ordinal: 0,
      onLine: () => {},
    });
  const first = reader();
  const reading = first.read();
  await until(() => numAppends >= 2);
  await first.close();
  await reading;
  await reader().read();
  const found: string[] = [];
  for (let after: number | undefined = 0; after !== undefined;) {
    const page: Awaited<ReturnType<LogStore['read']>> = await logs.read('ver_1', {
      after,
      limit: 10_000,
      stream: 'stdout',
    });
    found.push(...page.lines.map(({ text }) => text.split(' ')[1]));
    after = page.next;
  }
  expect(found).toEqual(Array.from({ length: 25_000 }, (_, i) => String(i)));
  // What was read is gone, but for the file whose number counts.
  expect(spools()).toHaveLength(1);
  await logs.close();
});
