/** What the driver does while the machine is slow or its files cannot be read. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { listGpus } from '../../../../server/platform/driver/process/gpus';
import { probeIsolation } from '../../../../server/platform/driver/process/probe';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import { removeFolder } from '../../../../server/platform/driver/process/remove-folder';
import { findSandbox } from '../../../../server/platform/driver/process/sandbox';
import { unlessAborted } from '../../../../server/platform/driver/process/unless-aborted';
import { FakeClock } from '../support';
import { searchGpus } from '../../../../server/platform/up/gpu-search';
import { Listener, newSpec, node } from './conformance';

const INTERVALS = { fastMs: 50, slowMs: 100, liveMs: 100, graceMs: 300, aliveMs: 50 };
const LONG = 60_000;
let dir: string;
let logs: LogStore;
let driver: ProcessDriver | undefined;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'capstan-faults-'));
  logs = new LogStore({ folder: join(dir, 'logs'), redact: (text) => text });
});
afterEach(async () => {
  await driver?.detach();
  driver = undefined;
  await logs.close();
  rmSync(dir, { recursive: true, force: true });
});

const script = (name: string, text: string): string => {
  const file = join(dir, name);
  writeFileSync(file, `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  return file;
};
const openDriver = async (): Promise<ProcessDriver> =>
  (driver = await ProcessDriver.open({ dataDir: join(dir, 'data'), logs, level: 'L0', intervals: INTERVALS }));
const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 10));
};
const isRunning = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
};

describe('a start that hangs', () => {
  test.each([
    ['and holds its output', ''],
    ['and has closed its output', 'exec 1>&-\n'],
  ])('%s ends when it is aborted, and leaves no process', async (_name, first) => {
    const file = join(dir, 'pid');
    process.env.CAPSTAN_SANDBOX = script(
      'hanging',
      `${first}cat > /dev/null\necho $$ > ${file}.new\nmv ${file}.new ${file}\nexec sleep 600`,
    );
    try {
      const opened = await openDriver();
      const aborting = new AbortController();
      const spec = newSpec();
      const starting = opened.ensure(spec, aborting.signal);
      await until(() => existsSync(file));
      const pid = Number(readFileSync(file, 'utf8'));
      expect(isRunning(pid)).toBe(true);
      aborting.abort();
      await expect(starting).rejects.toThrow('The replica did not start');
      expect(isRunning(pid)).toBe(false);
      await opened.stop(spec.id, 0);
    } finally {
      delete process.env.CAPSTAN_SANDBOX;
    }
  });

  test('in a file system that hangs is left alone', async () => {
    const aborting = new AbortController();
    const waiting = unlessAborted(aborting.signal, new Promise(() => {}));
    aborting.abort(new Error('stopped'));
    await expect(waiting).rejects.toThrow('stopped');
    await expect(unlessAborted(aborting.signal, Promise.resolve(1))).rejects.toThrow('stopped');
    expect(await unlessAborted(new AbortController().signal, Promise.resolve(1))).toBe(1);
  });

  test('an aborted start launches nothing', async () => {
    const opened = await openDriver();
    const spec = newSpec();
    await expect(opened.ensure(spec, AbortSignal.abort())).rejects.toThrow();
    const folder = join(dir, 'data', 'replicas', spec.id);
    // The last file that a start prepares.
    await until(() => existsSync(join(folder, 'note.json')));
    expect(existsSync(join(folder, 'state'))).toBe(false);
  });
});

describe('a replica whose files cannot be read', () => {
  test('is neither lost nor adopted, and is adopted later', async () => {
    const first = await openDriver();
    const spec = newSpec();
    const { reference } = await first.ensure(spec);
    await first.detach();
    const second = await openDriver();
    for (const name of ['state', 'note.json']) {
      const file = join(dir, 'data', 'replicas', spec.id, name);
      renameSync(file, `${file}.away`);
      mkdirSync(file);
      await expect(second.adopt(reference, spec)).rejects.toThrow('EISDIR');
      // A stop that finds nothing would free the GPUs of a replica that runs.
      await expect(second.stop(spec.id, 0)).rejects.toThrow('EISDIR');
      rmdirSync(file);
      renameSync(`${file}.away`, file);
    }
    expect(await second.adopt(reference, spec)).toMatchObject({ reference });
    await second.stop(spec.id, 0);
  });

  test('reports its end when its files and its log can be read again', async () => {
    const opened = await openDriver();
    const listener = new Listener(opened);
    const spec = newSpec({ startCommand: 'sleep 600' });
    const { reference } = await opened.ensure(spec);
    const exitFile = join(dir, 'data', 'replicas', spec.id, 'exit');
    mkdirSync(exitFile);
    jest.spyOn(logs, 'note').mockRejectedValueOnce(new Error('EIO'));
    process.kill(Number(reference.split(':')[0]), 'SIGKILL');
    await until(() => !isRunning(Number(reference.split(':')[0])));
    await new Promise(setImmediate);
    expect(listener.of(spec)).not.toContain('exited');
    rmdirSync(exitFile);
    expect(await listener.next(spec, 'exited')).toMatchObject({ exitCode: null });
  });
});

test('a folder is removed by the rm of the PATH, wherever a system has it', async () => {
  const folder = join(dir, 'folder');
  mkdirSync(folder);
  script('rm', `echo "$@" > ${dir}/args`);
  const { PATH } = process.env;
  process.env.PATH = `${dir}:${PATH}`;
  try {
    await removeFolder(folder);
  } finally {
    process.env.PATH = PATH;
  }
  expect(readFileSync(join(dir, 'args'), 'utf8')).toBe(`-rf -- ${folder}\n`);
});

test('a replica whose control group cannot be made is monitored, and its log says so', async () => {
  const root = join(dir, 'groups');
  mkdirSync(join(root, 'memory'), { recursive: true });
  writeFileSync(join(root, 'memory', 'cgroup.procs'), '');
  writeFileSync(join(root, 'membership'), '1:memory:/\n');
  const write = (): never => {
    throw new Error('EBUSY');
  };
  const cgroupFiles = { root, membership: join(root, 'membership'), write, isSystemdService: false };
  driver = await ProcessDriver.open({ dataDir: join(dir, 'data'), logs, level: 'L0', cgroupFiles });
  const listener = new Listener(driver);
  const spec = newSpec({
    memoryMb: 64,
    startCommand: node('const all = []; setInterval(() => all.push(Buffer.alloc(16 << 20, 1)), 20)'),
  });
  await driver.ensure(spec);
  expect(await listener.next(spec, 'exited')).toMatchObject({
    cause: 'out_of_memory',
    message: expect.stringContaining('measured twice a second'),
  });
  expect((await logs.last(spec.logId, 10)).map(({ text }) => text)).toContain(
    'No control group limits this replica, so its memory is monitored and CPU time is shared: EBUSY',
  );
});

describe('logs that cannot be opened', () => {
  test('reject no line of the service, and do not keep others from expiring', async () => {
    const broken = join(dir, 'logs', 'ver_1BROKEN');
    mkdirSync(join(dir, 'logs'), { recursive: true });
    writeFileSync(broken, 'not a folder');
    await expect(logs.append('ver_1BROKEN', [])).rejects.toThrow();
    await logs.note('ver_1BROKEN', 0, 'a line');
    await logs.append('ver_2GOOD', [{ at: 1, stream: 'stdout', replica: 0, text: 'x' }]);
    await logs.expire();
    await logs.delete('ver_1BROKEN');
    expect(existsSync(broken)).toBe(false);
    expect(await logs.last('ver_2GOOD', 1)).toMatchObject([{ text: 'x' }]);
  });
});

describe('GPUs', () => {
  const gpu = 'GPU-a, NVIDIA H200, 143771';
  const program = (text: string, timeoutMs = LONG) => ({
    file: script('smi', text),
    timeoutMs,
    gpus: join(dir, 'gpus'),
  });

  test('a slow or failing nvidia-smi is an error, and the machine without a driver has none', async () => {
    await expect(listGpus(program('exec sleep 600', 50))).rejects.toThrow('nvidia-smi did not end within 0.05 s');
    expect(await listGpus({ ...program(''), file: join(dir, 'nothing') })).toEqual([]);
    // The program of an image on a machine without a driver.
    expect(await listGpus(program('exit 9'))).toEqual([]);
    mkdirSync(join(dir, 'gpus', '0000:01:00.0'), { recursive: true });
    await expect(listGpus(program('echo busy >&2; exit 9'))).rejects.toThrow('nvidia-smi failed: busy');
    expect(await listGpus(program(`echo "${gpu}"`))).toMatchObject([{ uuid: 'GPU-a' }]);
  });

  test('a failure is not remembered', async () => {
    mkdirSync(join(dir, 'gpus', '0000:01:00.0'), { recursive: true });
    const gpuProgram = program('exit 9');
    driver = await ProcessDriver.open({ dataDir: join(dir, 'data'), logs, level: 'L0', gpuProgram });
    expect(await driver.capacity()).toMatchObject({
      gpus: [],
      gpuProblem: expect.stringMatching(/^nvidia-smi failed/),
    });
    script('smi', `echo "${gpu}"`);
    const found = await driver.capacity();
    expect(found).toMatchObject({ gpus: [{ uuid: 'GPU-a' }] });
    expect(found).not.toHaveProperty('gpuProblem');
  });

  test('are looked for again until the driver answers', async () => {
    const clock = new FakeClock();
    const known = { cpuMillis: 1, memoryMb: 1, gpus: [{ uuid: 'GPU-a', type: 'H200', memoryMb: 1 }] };
    const answers = [
      () => Promise.reject(new Error('EAGAIN')),
      () => Promise.resolve({ ...known, gpus: [], gpuProblem: 'slow' }),
    ];
    const setCapacity = jest.fn(() => Promise.resolve());
    const capacityFreed = jest.fn(() => Promise.resolve());
    const warnings: object[] = [];
    const close = searchGpus(
      {
        driver: { capacity: () => (answers.shift() ?? (() => Promise.resolve(known)))() },
        store: { setCapacity },
        controller: { capacityFreed },
        log: { info: () => {}, warn: (fields) => void warnings.push(fields) },
        clock,
      },
      { ...known, gpus: [], gpuProblem: 'slow' },
    );
    const settle = () => new Promise<void>(setImmediate);
    await clock.advance(60_000, settle);
    expect(setCapacity).not.toHaveBeenCalled();
    await clock.advance(30_000, settle);
    expect(setCapacity.mock.calls).toEqual([[known]]);
    expect(capacityFreed).toHaveBeenCalledTimes(1);
    expect(warnings).toEqual([{ reason: 'slow' }, { reason: 'EAGAIN' }, { reason: 'slow' }]);
    await clock.advance(600_000, settle);
    expect(setCapacity).toHaveBeenCalledTimes(1);
    close();
  });
});

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;
describe('a slow probe', () => {
  const probe = (sandbox: string, attemptsMs: readonly number[]) =>
    probeIsolation({ sandbox, replicas: dir, sockets: dir, hiddenPaths: [dir], attemptsMs });

  (hasNamespaces ? test : test.skip)('is repeated, and then the machine has its level', async () => {
    const flag = join(dir, 'flag');
    const slowOnce = script('slow', `[ -e ${flag} ] && exec ${findSandbox()}\n: > ${flag}\nexec sleep 600`);
    expect(await probe(slowOnce, [100, LONG])).toMatchObject({ level: 'L2' });
  });

  test('never counts as a machine without namespaces', async () => {
    await expect(probe(script('hanging', 'exec sleep 600'), [50, 50])).rejects.toThrow(
      'the probe of namespaces did not end in 2 attempts',
    );
  });
});
