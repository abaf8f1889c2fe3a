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

/** Writes `size` bytes to a file, sends the file to a socket that nobody reads, and forgets it. */
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
