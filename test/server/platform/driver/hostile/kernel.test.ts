/** Hostile start scripts at level L2 that call the kernel, look for other processes and use up memory. */
import { newSpec } from '../conformance';
import { describeUsers, makeDataDir, type Result, runScripts, type User } from './users';

/** System calls with arguments that work where the call is allowed: name, number on x64 and arm64, arguments. */
const NEWUSER = 0x1000_0000;
const REFUSED: readonly (readonly [
  name: string,
  x64: number,
  arm64: number,
  args: readonly number[],
  error: string,
])[] = [
  ['unshare', 272, 97, [NEWUSER], 'EPERM'],
  ['unshare with mounts', 272, 97, [NEWUSER | 0x2_0000], 'EPERM'],
  ['clone', 56, 220, [NEWUSER | 17, 0, 0, 0, 0], 'EPERM'],
  ['clone3', 435, 435, [0, 0], 'ENOSYS'],
  ['landlock_create_ruleset', 444, 444, [0, 0, 1], 'ENOSYS'],
  ['mount', 165, 40, [0, 0, 0, 0, 0], 'EPERM'],
  ['umount2', 166, 39, [0, 0], 'EPERM'],
  ['pivot_root', 155, 41, [0, 0], 'EPERM'],
  ['open_tree', 428, 428, [0, 0, 0], 'EPERM'],
  ['move_mount', 429, 429, [0, 0, 0, 0, 0], 'EPERM'],
  ['fsopen', 430, 430, [0, 0], 'EPERM'],
  ['mount_setattr', 442, 442, [0, 0, 0, 0, 0], 'EPERM'],
  ['setns', 308, 268, [0, 0], 'EPERM'],
  ['add_key', 248, 217, [0, 0, 0, 0, 0], 'EPERM'],
  ['request_key', 249, 218, [0, 0, 0, 0], 'EPERM'],
  ['keyctl', 250, 219, [0, -3, 0, 0, 0], 'EPERM'],
  ['bpf', 321, 280, [0, 0, 0], 'EPERM'],
  ['perf_event_open', 298, 241, [0, 0, 0, 0, 0], 'EPERM'],
  ['userfaultfd', 323, 282, [1], 'EPERM'],
  ['kexec_load', 246, 104, [0, 0, 0, 0], 'EPERM'],
  ['kexec_file_load', 320, 294, [0, 0, 0, 0, 0], 'EPERM'],
  ['init_module', 175, 105, [0, 0, 0], 'EPERM'],
  ['finit_module', 313, 273, [0, 0, 0], 'EPERM'],
  ['delete_module', 176, 106, [0, 0], 'EPERM'],
];

/** Makes each call and prints its name and its error. */
function callAll(calls: readonly (readonly [string, number, readonly number[]])[]): string {
  const lines = [
    'import ctypes, errno, os, sys',
    'libc = ctypes.CDLL(None, use_errno=True)',
    `for name, number, args in ${JSON.stringify(calls)}:`,
    '    ctypes.set_errno(0)',
    '    result = libc.syscall(number, *[ctypes.c_long(value) for value in args])',
    '    if name == "clone" and result == 0: os._exit(0)',
    '    print(name, errno.errorcode[ctypes.get_errno()] if result == -1 else "allowed")',
  ];
  return `python3 -u - <<'END'\n${lines.join('\n')}\nEND`;
}

describeUsers('a start script of $name', (user: User) => {
  let dataDir: string;
  let remove: () => void;
  beforeAll(() => {
    ({ dataDir, remove } = makeDataDir(user));
  });
  afterAll(() => remove());

  async function run(script: string, more: Parameters<typeof newSpec>[0] = {}): Promise<Result> {
    const specs = [newSpec({ startCommand: script, ...more })];
    return (await runScripts(user, { dataDir, hiddenPaths: [], specs }))[0];
  }

  test('cannot make system calls that give new rights or reach deep into the kernel', async () => {
    const isArm = process.arch === 'arm64';
    const { lines } = await run(callAll(REFUSED.map(([name, x64, arm64, args]) => [name, isArm ? arm64 : x64, args])));
    expect(lines).toEqual(REFUSED.map(([name, , , , error]) => `${name} ${error}`));
  });

  (process.arch === 'x64' ? test : test.skip)('cannot use the numbers of the x32 interface', async () => {
    const { lines } = await run(callAll([['getpid', 0x4000_0000 | 39, []]]));
    expect(lines).toEqual(['getpid ENOSYS']);
  });

  test('can still start processes and threads', async () => {
    const { lines } = await run(
      `python3 -c 'import threading, subprocess; t = threading.Thread(target=lambda: print("thread", flush=True)); t.start(); t.join(); print(subprocess.run(["echo", "process"], capture_output=True).stdout.decode())'; ${process.execPath} -e 'new (require("worker_threads").Worker)("console.log(1)", { eval: true })'`,
    );
    expect(lines.filter((line) => line !== '')).toEqual(['thread', 'process', '1']);
  });

  test('cannot look into or end the first process of its namespace, and sees no other process', async () => {
    const { lines, exitCode } = await run(
      'for name in environ mem maps fd/0 fd/1 fd/2 fd/3 fd/4 fd/5 fd/6; do cat /proc/1/$name > /dev/null 2>&1 && echo read $name; done; for name in root cwd; do ls /proc/1/$name/ > /dev/null 2>&1 && echo list $name; done; kill -9 1; kill -STOP 1; echo /proc/[0-9]*; exit 3',
    );
    expect(lines.filter((line) => !/not permitted|^$/.test(line))).toEqual([
      expect.stringMatching(/^\/proc\/1 \/proc\/\d+$/),
    ]);
    expect(exitCode).toBe(3);
  });
});
