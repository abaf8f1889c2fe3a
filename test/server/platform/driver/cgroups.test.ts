/** Control groups on a tree of plain files that imitates the kernel's rules. */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { type CgroupFiles, type Cgroups, openCgroups } from '../../../../server/platform/driver/process/cgroups';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'capstan-cgroups-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

let problems: string[];
beforeEach(() => {
  problems = [];
});
const report = (problem: string): void => void problems.push(problem);
const LIMITS = { cpuMillis: 1_500, memoryMb: 64 };
const own = String(process.pid);
const read = (...path: string[]): string => readFileSync(join(root, ...path), 'utf8');

function open(
  membership: string,
  write: CgroupFiles['write'] = writeFileSync,
  isSystemdService = false,
): Cgroups | undefined {
  writeFileSync(join(root, 'membership'), `${membership}\n`);
  return openCgroups({ root, membership: join(root, 'membership'), write, isSystemdService });
}

function group(path: string, files: Record<string, string>): void {
  mkdirSync(join(root, path), { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(root, path, name), text);
}

/** Kernel rules: a group with processes cannot enable controllers for subgroups, and a process is in one group. */
function kernel(file: string, text: string): void {
  if (basename(file) === 'cgroup.subtree_control' && readFileSync(join(dirname(file), 'cgroup.procs'), 'utf8') !== '')
    throw Object.assign(new Error('EBUSY'), { code: 'EBUSY' });
  writeFileSync(file, text);
  if (basename(file) === 'cgroup.procs') writeFileSync(join(dirname(file), '..', 'cgroup.procs'), '');
}

describe('version 2', () => {
  const SERVICE = 'system.slice/capstan.service';
  beforeEach(() => group('.', { 'cgroup.controllers': 'cpu memory pids' }));

  const expectGroup = (groups: Cgroups | undefined, folder: string): void => {
    expect(groups?.create('capstan_rep_1', LIMITS, report)).toEqual([join(root, folder, 'capstan_rep_1')]);
    const limits = ['memory.max', 'cpu.max', 'pids.max', 'memory.oom.group', 'memory.swap.max'].map((name) =>
      read(folder, 'capstan_rep_1', name),
    );
    expect(limits).toEqual(['67108864', '150000 100000', '4096', '1', '0']);
  };

  test('enables controllers in a delegated group after moving the service out of it', () => {
    group(SERVICE, { 'cgroup.controllers': 'cpu memory pids', 'cgroup.procs': own });
    const groups = open(`0::/${SERVICE}`, kernel);
    expect(read(SERVICE, 'cgroup.subtree_control')).toBe('+memory +cpu +pids');
    expect(read(SERVICE, 'capstan_service', 'cgroup.procs')).toBe(own);
    expectGroup(groups, SERVICE);
  });

  test('leaves the service in its subgroup when systemd or an earlier start has put it there', () => {
    group(SERVICE, { 'cgroup.controllers': 'cpu memory pids', 'cgroup.procs': '' });
    group(`${SERVICE}/capstan_service`, { 'cgroup.controllers': '', 'cgroup.procs': `${own}\n1` });
    expectGroup(open(`0::/${SERVICE}/capstan_service`, kernel, true), SERVICE);
    expect(existsSync(join(root, SERVICE, 'capstan_service', 'capstan_service'))).toBe(false);
  });

  test('does not move a systemd service, because systemd could not restart it beside running replicas', () => {
    group(SERVICE, { 'cgroup.controllers': 'cpu memory pids', 'cgroup.procs': own });
    expect(open(`0::/${SERVICE}`, kernel, true)).toBeUndefined();
    expect(read(SERVICE, 'cgroup.procs')).toBe(own);
  });

  test('creates no group beside foreign processes, without the memory controller, or without write access', () => {
    group(SERVICE, { 'cgroup.controllers': 'cpu memory pids', 'cgroup.procs': `1\n${own}` });
    expect(open(`0::/${SERVICE}`, kernel)).toBeUndefined();
    group(SERVICE, { 'cgroup.controllers': 'cpu pids', 'cgroup.procs': '' });
    expect(open(`0::/${SERVICE}`, kernel)).toBeUndefined();
    group(SERVICE, { 'cgroup.controllers': 'cpu memory pids', 'cgroup.procs': own });
    expect(
      open(`0::/${SERVICE}`, () => {
        throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
      }),
    ).toBeUndefined();
  });
});

describe('version 1', () => {
  const MEMBERSHIP = '4:memory:/user\n2:cpu,cpuacct:/\n1:pids:/\n0::/';

  test('creates a group in the tree of each controller', () => {
    for (const path of ['memory/user', 'cpu', 'pids']) group(path, { 'cgroup.procs': own });
    const paths = [
      join(root, 'memory/user/capstan_rep_1'),
      join(root, 'cpu/capstan_rep_1'),
      join(root, 'pids/capstan_rep_1'),
    ];
    expect(open(MEMBERSHIP)?.create('capstan_rep_1', LIMITS, report)).toEqual(paths);
    expect([
      read('memory/user/capstan_rep_1/memory.limit_in_bytes'),
      read('cpu/capstan_rep_1/cpu.cfs_period_us'),
      read('cpu/capstan_rep_1/cpu.cfs_quota_us'),
      read('pids/capstan_rep_1/pids.max'),
    ]).toEqual(['67108864', '100000', '150000', '4096']);
    expect(problems).toEqual([]);
  });

  test('requires the memory controller and does without the others', () => {
    for (const path of ['cpu', 'pids']) group(path, { 'cgroup.procs': own });
    expect(open(MEMBERSHIP)).toBeUndefined();
    group('memory/user', { 'cgroup.procs': own });
    rmSync(join(root, 'cpu'), { recursive: true });
    const write: CgroupFiles['write'] = (file, text) => {
      if (basename(file) === 'pids.max') throw Object.assign(new Error('ENOENT'), { code: 'ENOENT' });
      writeFileSync(file, text);
    };
    expect(open(MEMBERSHIP, write)?.create('capstan_rep_1', LIMITS, report)).toEqual([
      join(root, 'memory/user/capstan_rep_1'),
    ]);
    expect(problems).toEqual([
      'No control group limits CPU time of this replica: the machine has no such controller',
      'No control group limits the number of processes of this replica: ENOENT',
    ]);
  });

  test('leaves nothing behind when a limit cannot be set', () => {
    group('memory/user', { 'cgroup.procs': own });
    const groups = open('4:memory:/user', () => {
      throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
    });
    expect(groups?.create('capstan_rep_1', LIMITS, report)).toEqual([]);
    expect(problems).toEqual([
      'No control group limits this replica, so its memory is monitored and CPU time is shared: EACCES',
    ]);
    expect(existsSync(join(root, 'memory/user/capstan_rep_1'))).toBe(false);
  });
});

test('is unavailable without /proc/self/cgroup', () => {
  expect(
    openCgroups({ root, membership: join(root, 'nothing'), write: writeFileSync, isSystemdService: false }),
  ).toBeUndefined();
});
