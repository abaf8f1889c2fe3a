/** The watches of the helper program: what one replica may take of the disk and, without control groups, of memory. */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isolatedInput } from '../../../../server/platform/driver/process/probe';
import { ReplicaFolder, type ReplicaExit } from '../../../../server/platform/driver/process/replica-folder';
import { findSandbox, launch, type SandboxInput } from '../../../../server/platform/driver/process/sandbox';

const MB = 2 ** 20;
/** More than any disk has free. */
const ALMOST_FULL = 2 ** 60;
const ENV = ['PATH=/usr/local/bin:/usr/bin:/bin'];

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'capstan-watch-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function newFolder(id = 'rep_1'): ReplicaFolder {
  const folder = new ReplicaFolder(root, id);
  for (const path of [folder.path, join(folder.path, 'root'), folder.home]) mkdirSync(path);
  chmodSync(folder.home, 0o777);
  return folder;
}

/** Runs a program of Python. Resolves when it has started, with a function that waits for its end. */
async function start(
  lines: readonly string[],
  more: SandboxInput,
  { folder = newFolder(), level = 'L0' } = {},
): Promise<() => Promise<ReplicaExit | undefined>> {
  const program = ['import ctypes, mmap, os, socket, time', 'libc = ctypes.CDLL(None, use_errno=True)', ...lines];
  const common = { arg: ['/usr/bin/env', 'python3', '-c', program.join('\n')], env: ENV, home: folder.home, ...more };
  const input =
    level === 'L2'
      ? isolatedInput(folder, [], { inner_port: 80, socket: join(root, 's'), cwd: '/platform/home', ...common })
      : { dir: folder.path, cwd: folder.home, ...common };
  let end!: () => void;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  await launch(findSandbox()!, input, end);
  return () => ended.then(() => folder.exit());
}

/** Runs a program of Python until its end. */
async function run(...args: Parameters<typeof start>): Promise<ReplicaExit | undefined> {
  return (await start(...args))();
}

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;

/** Sends a file to a socket, where it is never received, and closes it. */
const SEND = [
  'left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)',
  'def hide(fd):',
  '    socket.send_fds(left, [b"x"], [fd])',
  '    os.close(fd)',
];

describe('the disk', () => {
  test('the home is measured before the workload starts', async () => {
    const exit = await run(['open("x", "wb").write(bytes(32 << 20))', 'time.sleep(600)'], { disk_bytes: 16 * MB });
    expect(exit).toMatchObject({ signal: 'SIGKILL', disk: 'bytes' });
  });

  test('more entries than a measure may have stop the replica, whatever their size', async () => {
    const lines = ['for n in range(3000): open("f" + str(n), "w")', 'time.sleep(600)'];
    expect(await run(lines, { disk_bytes: 2 ** 40, disk_entries: 2_000 })).toMatchObject({ disk: 'entries' });
  });

  test('open files count as entries', async () => {
    const lines = ['all = [os.open("/dev/null", 0) for n in range(900)]', 'time.sleep(600)'];
    expect(await run(lines, { disk_bytes: 2 ** 40, disk_entries: 900 })).toMatchObject({ disk: 'entries' });
  });

  test('a replica does not start when its home has too many entries', async () => {
    const folder = newFolder();
    for (let n = 0; n < 20; n++) writeFileSync(join(folder.home, `f${n}`), '');
    await expect(run([], { disk_bytes: MB, disk_entries: 10 }, { folder })).rejects.toThrow(
      'home: expected at most 10 files and folders, got more',
    );
  });

  test('files that are sent and never received stop a replica only while the disk is almost full', async () => {
    const hide = [...SEND, 'fd = os.open("x", os.O_RDWR | os.O_CREAT)', 'os.unlink("x")', 'hide(fd)'];
    const wait = ['while not os.path.exists("go"): time.sleep(0.1)'];
    const almostFull = { disk_bytes: 2 ** 40, disk_reserve_bytes: ALMOST_FULL };
    const others = [newFolder('rep_2'), newFolder('rep_3')];
    const hidesNothing = await start(wait, almostFull, { folder: others[0] });
    const hasSpace = await start(
      [...hide, ...wait],
      { disk_bytes: 2 ** 40, disk_reserve_bytes: 0 },
      { folder: others[1] },
    );
    expect(await run([...hide, ...wait], almostFull)).toMatchObject({ signal: 'SIGKILL', disk: 'hidden' });
    // They were measured as often, because they started earlier.
    for (const { home } of others) writeFileSync(join(home, 'go'), '');
    for (const ended of [hidesNothing, hasSpace]) expect(await ended()).toMatchObject({ exitCode: 0, disk: undefined });
  });
});

const MMAP = [
  'libc.mmap.restype = ctypes.c_void_p',
  'libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]',
];
const HALF = 96 * MB;
const MEMFD = ['fd = os.memfd_create("x")', `for n in range(${HALF / MB}): os.write(fd, bytes(${MB}))`];
/** Each takes 96 MiB twice. */
const MEMORY: readonly (readonly [what: string, lines: readonly string[]])[] = [
  ['private memory', [`all = [bytearray(b"x" * ${MB}) for n in range(${(2 * HALF) / MB})]`]],
  [
    'shared anonymous memory of two processes',
    [
      ...MMAP,
      `def take(): ctypes.memset(libc.mmap(None, ${HALF}, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0), 1, ${HALF})`,
      'os.fork()',
      'take()',
    ],
  ],
  ['files in memory that are open', [...MEMFD, ...MEMFD.map((line) => line.replace('fd', 'other'))]],
  [
    'files in memory that are only mapped',
    [
      ...MMAP,
      ...[0, 1].flatMap(() => [
        ...MEMFD,
        `ctypes.memset(libc.mmap(None, ${HALF}, 3, 1, fd, 0), 1, ${HALF})`,
        'os.close(fd)',
      ]),
    ],
  ],
  [
    'a System V segment',
    [
      'libc.shmat.restype = ctypes.c_void_p',
      `segment = libc.shmget(0, ${2 * HALF}, 0o1600)`,
      `ctypes.memset(libc.shmat(segment, None, 0), 1, ${2 * HALF})`,
      'libc.shmctl(segment, 0, None)',
    ],
  ],
];

describe.each(hasNamespaces ? ['L2', 'L0'] : ['L0'])('memory without control groups at level %s', (level) => {
  test.each(MEMORY)('%s counts', async (_what, lines) => {
    const limit = { memory_bytes: 128 * MB, scratch_bytes: 64 * MB };
    expect(await run([...lines, 'time.sleep(600)'], limit, { level })).toMatchObject({
      signal: 'SIGKILL',
      memory: 'watch',
    });
  });

  test('memory that several processes share counts once, and pages of files on the disk do not count', async () => {
    const lines = [
      ...MMAP,
      `all = bytearray(b"x" * ${64 * MB})`,
      `os.ftruncate(fd := os.memfd_create("x"), ${16 * MB})`,
      `ctypes.memset(libc.mmap(None, ${16 * MB}, 3, 1, fd, 0), 1, ${16 * MB})`,
      `open("file", "wb").write(bytes(${64 * MB}))`,
      'file = mmap.mmap(os.open("file", os.O_RDWR), 0)',
      `sum(file[n] for n in range(0, ${64 * MB}, 4096))`,
      'for n in range(3): os.fork()',
      'while not os.path.exists("go"): time.sleep(0.1)',
    ];
    const [small, large] = [newFolder('rep_2'), newFolder('rep_3')];
    const ended = await start(lines, { memory_bytes: 160 * MB }, { folder: small, level });
    // It was measured as often, because it started earlier.
    await run(
      [`all = bytearray(b"x" * ${256 * MB})`, 'time.sleep(600)'],
      { memory_bytes: 160 * MB },
      { folder: large },
    );
    writeFileSync(join(small.home, 'go'), '');
    expect(await ended()).toMatchObject({ exitCode: 0, memory: undefined });
  });
});

test('files in memory that are sent and never received stop a replica only while the machine has no memory left', async () => {
  const hide = [...SEND, ...MEMFD, 'hide(fd)', 'while not os.path.exists("go"): time.sleep(0.1)'];
  const other = newFolder('rep_2');
  // The limit is below what the machine shares, so that the exact measure runs.
  const limit = { memory_bytes: 64 * MB };
  const ended = await start(hide, { ...limit, memory_reserve_bytes: 0 }, { folder: other });
  expect(await run(hide, { ...limit, memory_reserve_bytes: 2 ** 60 })).toMatchObject({ memory: 'watch' });
  writeFileSync(join(other.home, 'go'), '');
  expect(await ended()).toMatchObject({ exitCode: 0 });
});
