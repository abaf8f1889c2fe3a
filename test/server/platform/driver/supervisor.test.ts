/** The helper program alone: what it writes to disk, in what amounts, and after which crashes. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
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
import { generateKey } from '../../../../server/base/key-format';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { isolatedInput } from '../../../../server/platform/driver/process/probe';
import { isAlive, ReplicaFolder } from '../../../../server/platform/driver/process/replica-folder';
import { findSandbox, launch, type SandboxInput } from '../../../../server/platform/driver/process/sandbox';
import { SpoolReader } from '../../../../server/platform/driver/process/spool-reader';

const NODE = process.execPath;
let root: string;
let folder: ReplicaFolder;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'capstan-supervisor-'));
  folder = new ReplicaFolder(root, 'rep_1');
  mkdirSync(folder.path);
});
const writers: ChildProcess[] = [];
afterEach(() => {
  for (const writer of writers.splice(0)) writer.kill('SIGKILL');
  rmSync(root, { recursive: true, force: true });
});

/** Starts a supervisor. Resolves with a function that waits for its end. */
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

test('reports a workload that cannot start', async () => {
  await expect(run([join(root, 'no-such-program')])).rejects.toThrow('No such file');
  await expect(run(['/bin/true'], { cgroup: [join(root, 'no-such-group')] })).rejects.toThrow('control group');
  await expect(run(['/bin/true'], { inner_port: 'x', unheard_of: 1 })).rejects.toThrow();
});

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;
(hasNamespaces ? test : test.skip)('a hidden file among too many others is an error that says what to do', async () => {
  // In memory, because so many files take long on a disk.
  const source = mkdtempSync('/dev/shm/capstan-many-');
  mkdirSync(join(folder.path, 'root'));
  try {
    for (let n = 0; n < 5_002; n++) writeFileSync(join(source, `f${n}`), '');
    const input = { socket: join(root, 's'), input: [`input0=${source}`] };
    await expect(
      run(['/bin/true'], { ...isolatedInput(folder, [join(source, 'f0')], input), cwd: '/' }),
    ).rejects.toThrow(`got more in ${source}: move the hidden files to a separate folder`);
  } finally {
    rmSync(source, { recursive: true });
  }
});

test('refuses a second supervisor while the first one runs', async () => {
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

test('keeps unread lines up to a limit, counts the lines over it, and reports the count later', async () => {
  const script = `const fs = require("fs"), line = "x".repeat(999) + "\\n"; for (let i = 0; i < 14000; i++) process.stdout.write(line); process.stdout.write("", () => { fs.writeFileSync("written", ""); setInterval(() => { if (fs.existsSync("go")) { console.log("after"); process.exit() } }, 20) })`;
  // A spool file may exceed its 4 MiB by one read of a little over 1 MiB: a second file fits, a third never does.
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
  const found = /^(\d+) log lines were lost: the service did not collect them in time$/.exec(
    later.find((text) => text.includes('were lost'))!,
  );
  expect(Number(found?.[1])).toBeGreaterThan(0);
  expect(numKept + Number(found?.[1]) + later.filter((text) => text.startsWith('x')).length).toBe(14_000);
  expect(later.at(-1)).toBe('after');
});

test('continues the numbers of spool files over restarts, so that no file is skipped as already read', async () => {
  await (
    await run(['/bin/echo', 'first'])
  )();
  await (
    await run(['/bin/echo', 'second'])
  )();
  expect(spools()).toEqual(['00000001', '00000002']);
  expect(texts()).toEqual(['first', 'second']);
});

test('writes no key, even where a line is split near one', async () => {
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

test('drops carriage returns at line ends and accepts a last line without an end', async () => {
  await (
    await run(['/usr/bin/printf', 'one\\r\\ntwo\\n\\nthree'])
  )();
  expect(texts()).toEqual(['one', 'two', '', 'three']);
});

test('the death of the supervisor kills all its processes', async () => {
  const marker = `1000.${process.pid}`;
  const left = (): string[] =>
    execFileSync('/bin/ps', ['ax', '-o', 'args='], { encoding: 'utf8' })
      .split('\n')
      .filter((line) => line.startsWith('sleep ') && line.includes(marker));
  // A child, a grandchild, one without a parent in a separate session, and one that ignores SIGTERM.
  await run([
    '/bin/sh',
    '-c',
    `(sleep ${marker}1 & sleep ${marker}2) & (setsid sleep ${marker}3 &) ; (trap "" TERM HUP USR1 USR2; sleep ${marker}4) & sleep ${marker}5; true`,
  ]);
  await until(() => left().length === 5);
  const supervisor = (await folder.supervisor())!;
  process.kill(supervisor.pid, 'SIGKILL');
  await until(() => !isAlive(supervisor));
  await until(() => left().length === 0);
  expect(await folder.exit()).toBeUndefined();
});

/** The processes whose first argument is this. */
const running = (marker: string): string[] =>
  execFileSync('/usr/bin/env', ['ps', 'ax', '-o', 'args='], { encoding: 'utf8' })
    .split('\n')
    .filter((line) => line.split(' ')[1] === marker);

test.each(hasNamespaces ? ['L2', 'L0'] : ['L0'])(
  'a supervisor that is killed at any moment of its start leaves no process at level %s',
  async (level) => {
    const marker = `1000.${process.pid}${level === 'L2' ? 2 : 0}`;
    for (let n = 0; n < 150; n++) {
      const own = new ReplicaFolder(root, `rep_${n}x`);
      mkdirSync(join(own.path, 'root'), { recursive: true });
      const common = { arg: ['/bin/sleep', marker], cwd: '/' };
      const input =
        level === 'L2' ? isolatedInput(own, [], { inner_port: 80, socket: join(own.path, 's'), ...common }) : common;
      const aborting = new AbortController();
      const starting = launch(findSandbox()!, { dir: own.path, ...input }, () => {}, aborting.signal);
      const endMs = performance.now() + (n % 30) * 0.2;
      while (performance.now() < endMs) await new Promise(setImmediate);
      aborting.abort();
      await starting.catch(() => {});
      // The start may have ended first.
      const supervisor = await own.supervisor();
      if (supervisor !== undefined && isAlive(supervisor)) process.kill(supervisor.pid, 'SIGKILL');
    }
    await until(() => running(marker).length === 0);
  },
);

test('output that another program writes without an end does not delay the end of a replica', async () => {
  const ended = await run(['/bin/sh', '-c', 'echo $$ > pid.new; mv pid.new pid; until [ -e go ]; do sleep 0.1; done']);
  await until(() => existsSync(join(root, 'pid')));
  const output = `/proc/${readFileSync(join(root, 'pid'), 'utf8').trim()}/fd/1`;
  // A large pipe, so that it never is empty.
  const flood = `import fcntl, os\nfd = os.open("${output}", os.O_WRONLY)\nfcntl.fcntl(fd, 1031, ${2 ** 20})\nwhile True: os.write(fd, b"x" * 65536 + b"\\n")`;
  for (let n = 0; n < 4; n++) writers.push(spawn('/usr/bin/env', ['python3', '-c', flood], { stdio: 'ignore' }));
  // Now the pipe is always full.
  await until(() => existsSync(folder.spool) && spools().length > 1);
  writeFileSync(join(root, 'go'), '');
  await ended();
  expect(await folder.exit()).toMatchObject({ exitCode: 0 });
});

test('the reader copies each line once, over several files, restarts and a temporarily full disk', async () => {
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
  // Spool files that were read are removed, except the last one: its number continues the sequence.
  expect(spools()).toHaveLength(1);
  await logs.close();
});
