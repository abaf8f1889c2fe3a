/** Hostile start scripts at level L2 that use up memory, processes and the disk, beside a neighbour that serves. */
import { existsSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import { newSpec, node } from '../conformance';
import { describeUsers, makeDataDir, newNeighbour, type Result, runScripts, type User } from './users';

const MB = 2 ** 20;
/** Writes without an end, until the process is killed or a write fails. */
const flood = (file: string): string => `dd if=/dev/zero of=${file} bs=1M 2>&1 | grep -c "No space left"`;

const python = (lines: readonly string[]): string =>
  `python3 -u - <<'END'\n${['import ctypes, os, threading, time', 'libc = ctypes.CDLL(None)', ...lines].join('\n')}\nEND`;
const OPEN_DELETED = ['fd = os.open("x", os.O_RDWR | os.O_CREAT)', 'os.unlink("x")'];
const WRITE = ['for n in range(64): os.write(fd, bytes(1 << 20))', 'time.sleep(600)'];
/** Not by the module mmap, which keeps the file open. */
const MAP_DELETED = [
  ...OPEN_DELETED,
  'os.ftruncate(fd, 64 << 20)',
  'libc.mmap.restype = ctypes.c_void_p',
  'libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]',
  'at = libc.mmap(None, 64 << 20, 3, 1, fd, 0)',
  'os.close(fd)',
  'ctypes.memset(at, 1, 64 << 20)',
  'time.sleep(600)',
];
const CLONE_FILES = 0x400;
const IN_THREAD = [
  'def work():',
  `    libc.unshare(${CLONE_FILES})`,
  ...[...OPEN_DELETED, ...WRITE].map((line) => `    ${line}`),
  'threading.Thread(target=work).start()',
  'time.sleep(600)',
];
const PR_SET_DUMPABLE = 4;
const UNDUMPABLE = [`libc.prctl(${PR_SET_DUMPABLE}, 0, 0, 0, 0)`, ...OPEN_DELETED, ...WRITE];
const FILLS_MEMORY = `${flood('/dev/shm/x')}; for file in /tmp/x /var/tmp/x /run/x; do echo x > $file || echo full; done; du -sm /dev/shm | cut -f1`;
const FILLS_MEMORY_WITH_EMPTY_FILES = node(
  'let n = 0; try { for (;;) require("fs").writeFileSync("/tmp/" + n++, "") } catch (error) { console.log(error.code, n <= 65536) }',
);
/** Perl is small, so its processes start fast. */
const STARTS_PROCESSES = `perl -e '
  my $n = 0;
  while (defined(my $child = fork)) { if ($child == 0) { sleep 1000; exit } $n++ }
  print $! + 0, " ", $n > 100 && $n < 4096 ? "bounded" : $n, "\\n"'`;
const FILLS_DISK: Readonly<Record<string, string>> = {
  'a file': flood('file'),
  'a deleted file that stays open': 'exec 3> file; rm file; dd if=/dev/zero bs=1M >&3',
  'folders inside folders': node(
    'for (let n = 0; n < 3000; n++) { require("fs").mkdirSync("d"); process.chdir("d") } setInterval(() => {}, 1000)',
  ),
  'empty files': node('for (let n = 0; ; n++) require("fs").writeFileSync("f" + n, "")'),
  'a folder that is closed': 'mkdir d; cd d; exec 3> file; chmod 000 .; dd if=/dev/zero bs=1M >&3',
  'a folder that only lists names': 'mkdir d; cd d; exec 3> file; chmod 400 .; dd if=/dev/zero bs=1M >&3',
  'a deleted file that is only mapped': python(MAP_DELETED),
  'a deleted file that a thread alone has open': python(IN_THREAD),
  'a deleted file of a process that may not be looked at': python(UNDUMPABLE),
  'a home that is closed': 'exec 3> file; chmod 000 .; dd if=/dev/zero bs=1M >&3',
};

const KEEPS_SEGMENT = python([
  'libc.shmat.restype = ctypes.c_void_p',
  'libc.shmdt.argtypes = [ctypes.c_void_p]',
  'segment = libc.shmget(0, 1 << 20, 0o1600)',
  'print(libc.shmdt(libc.shmat(segment, None, 0)))',
  'print(libc.shmctl(segment, 0, None))',
]);

const TAKES_KERNEL_OBJECTS = python([
  'n = 0',
  'while libc.inotify_init() >= 0: n += 1',
  'print(n, os.sysconf("SC_OPEN_MAX") <= 65536)',
  'names = ["max_inotify_instances", "max_inotify_watches", "max_fanotify_groups", "max_fanotify_marks"]',
  'for name in names: print(name, open("/proc/sys/user/" + name).read().strip())',
  'try: open("/proc/sys/user/max_inotify_instances", "w").write("1000")',
  'except OSError: print("kept")',
]);
const SHOWS_GROUPS = 'grep ^Groups: /proc/self/status';

describeUsers('a start script of $name', (user: User) => {
  let dataDir: string;
  let remove: () => void;
  const results = new Map<string, Result & { id: string }>();

  // All of them side by side, because each waits for the measurements of its supervisor.
  beforeAll(async () => {
    ({ dataDir, remove } = makeDataDir(user));
    const memory: Readonly<Record<string, number>> = { [FILLS_MEMORY]: 128, [STARTS_PROCESSES]: 4_096 };
    const scripts = [
      FILLS_MEMORY,
      FILLS_MEMORY_WITH_EMPTY_FILES,
      STARTS_PROCESSES,
      KEEPS_SEGMENT,
      TAKES_KERNEL_OBJECTS,
      SHOWS_GROUPS,
      ...Object.values(FILLS_DISK),
    ];
    const specs = scripts.map((startCommand) => newSpec({ startCommand, memoryMb: memory[startCommand] ?? 512 }));
    const ended = await runScripts(user, {
      dataDir,
      hiddenPaths: [],
      replicaDiskBytes: 16 * MB,
      neighbour: newNeighbour(),
      specs,
    });
    scripts.forEach((script, i) => results.set(script, { ...ended[i], id: specs[i].id }));
  });
  afterAll(() => remove());

  test('fills its files in memory together up to half of its memory', () => {
    const { lines } = results.get(FILLS_MEMORY)!;
    expect(lines.filter((line) => !/No space left|I\/O error/.test(line))).toEqual(['1', 'full', 'full', 'full', '64']);
  });

  test('cannot fill the memory with empty files', () =>
    expect(results.get(FILLS_MEMORY_WITH_EMPTY_FILES)!.lines).toEqual(['ENOSPC true']));

  test('keeps no memory in System V segments that no process maps', () =>
    expect(results.get(KEEPS_SEGMENT)!.lines).toEqual(['0', '-1']));

  test('takes a bounded number of files and of objects of the kernel', () =>
    expect(results.get(TAKES_KERNEL_OBJECTS)!.lines).toEqual([
      '32 True',
      'max_inotify_instances 32',
      'max_inotify_watches 32768',
      'max_fanotify_groups 8',
      'max_fanotify_marks 8192',
      'kept',
    ]));

  test('has no groups of the service', () => expect(results.get(SHOWS_GROUPS)!.lines).toEqual(['Groups:\t ']));

  test('starts a bounded number of processes', () =>
    expect(results.get(STARTS_PROCESSES)!.lines).toEqual([`${constants.errno.EAGAIN} bounded`]));

  test.each(Object.keys(FILLS_DISK))('is stopped when it fills its disk with %s, and its home is removed', (what) => {
    const { cause, signal, id } = results.get(FILLS_DISK[what])!;
    expect({ cause, signal }).toEqual({ cause: 'disk_quota_exceeded', signal: 'SIGKILL' });
    expect(existsSync(join(dataDir, 'replicas', id, 'home'))).toBe(false);
  });
});
