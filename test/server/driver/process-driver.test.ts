/** The process driver at each level that this machine has. */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { redactKeys } from '../../../server/access/key-format';
import { LogStore } from '../../../server/driver/logs/log-store';
import { probeIsolation } from '../../../server/driver/process/probe';
import { ProcessDriver } from '../../../server/driver/process/process-driver';
import { ReplicaFolder } from '../../../server/driver/process/replica-folder';
import { findSandbox } from '../../../server/driver/process/sandbox';
import type { Level } from '../../../server/driver/process/world';
import { REGISTER } from '../access/support';
import { conformance, get, Listener, newSpec, node, type Subject } from './conformance';

const INTERVALS = { fastMs: 50, slowMs: 100, liveMs: 100, graceMs: 1_000 };

async function open(dataDir: string, level: Level): ReturnType<Subject['open']> {
  const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: redactKeys });
  return { driver: await ProcessDriver.open({ dataDir, logs, level, intervals: INTERVALS }), logs };
}

function startElsewhere(level: Level): Subject['startElsewhere'] {
  return (dataDir, spec) =>
    new Promise((resolve, reject) => {
      const child = spawn(
        process.execPath,
        ['-r', REGISTER, join(__dirname, 'elsewhere.ts'), dataDir, level, JSON.stringify(spec)],
        { stdio: ['ignore', 'pipe', 'inherit'] },
      );
      const ended = new Promise<void>((end) => child.once('exit', () => end()));
      createInterface({ input: child.stdout })
        .once('line', (reference) =>
          resolve({
            reference,
            kill: async () => {
              child.kill('SIGKILL');
              await ended;
            },
          }),
        )
        .once('close', () => reject(new Error('it ended before it started anything')));
    });
}

const VARIABLES = { host: 'process.env.PLATFORM_SERVING_HOST', port: 'process.env.PLATFORM_SERVING_PORT' };
const SUBJECTS: Readonly<Record<Level, Pick<Subject, 'host' | 'port' | 'isIsolated'>>> = {
  L2: { host: '"0.0.0.0"', port: '80', isIsolated: true },
  L1: { ...VARIABLES, isIsolated: false },
  L0: { ...VARIABLES, isIsolated: false },
};

/** Namespaces are wanted everywhere: a machine without them fails, unless it is told to do without (CAPSTAN_TEST_LEVELS=L1,L0). */
const wanted = process.env.CAPSTAN_TEST_LEVELS?.split(',');
const hasPort80 =
  process.geteuid!() === 0 || Number(readFileSync('/proc/sys/net/ipv4/ip_unprivileged_port_start', 'utf8')) <= 80;

for (const level of ['L2', 'L1', 'L0'] as const) {
  if (wanted !== undefined && !wanted.includes(level)) continue;
  if (level === 'L1' && !hasPort80) {
    describe.skip('processes at level L1', () => test('this user may not listen on port 80', () => {}));
    continue;
  }
  conformance(`processes at level ${level}`, {
    ...SUBJECTS[level],
    open: (dataDir) => open(dataDir, level),
    startElsewhere: startElsewhere(level),
  });
}

describe('levels', () => {
  let dataDir: string;
  beforeEach(() => {
    dataDir = mkdtempSync(join(tmpdir(), 'capstan-levels-'));
  });
  afterEach(() => rmSync(dataDir, { recursive: true, force: true }));

  test('without the helper program there are no namespaces, and the reason says what to do', async () => {
    const { level, reason } = await probeIsolation({
      sandbox: undefined,
      replicas: dataDir,
      sockets: dataDir,
      hides: [dataDir],
    });
    expect(level).not.toBe('L2');
    expect(reason).toContain('npm run build:addon');
    await expect(
      probeIsolation({ sandbox: undefined, replicas: dataDir, sockets: dataDir, hides: [dataDir], level: 'L2' }),
    ).rejects.toThrow('level L2 was asked for');
  });

  test('a helper that fails is the reason, in its words', async () => {
    const failing = join(dataDir, 'failing');
    writeFileSync(failing, '#!/bin/sh\ncat > /dev/null\necho "error new namespaces: Operation not permitted"\n', {
      mode: 0o755,
    });
    const { reason } = await probeIsolation({
      sandbox: failing,
      replicas: dataDir,
      sockets: dataDir,
      hides: [dataDir],
    });
    expect(reason).toContain('new namespaces: Operation not permitted');
  });

  test('at L0 a script that names the folders of the platform, or insists on port 80, learns why not', async () => {
    const { driver, logs } = await open(dataDir, 'L0');
    const listener = new Listener(driver);
    await expect(driver.ensure(newSpec({ startCommand: 'cat /platform/input/input0/x' }))).rejects.toMatchObject({
      reason: 'data_binding_missing',
      message: expect.stringContaining('PLATFORM_INPUT_DIR'),
    });
    const spec = newSpec({
      startCommand: node('console.error("Error: listen EACCES: permission denied 0.0.0.0:80"); process.exit(1)'),
    });
    await driver.ensure(spec);
    await listener.next(spec, 'exited');
    expect(await listener.next(spec, 'misplaced')).toMatchObject({
      reason: 'port_80_not_bound',
      message: expect.stringContaining('namespaces'),
    });
    await driver.detach();
    await logs.close();
  });

  test('two at L0 and at L1 have addresses of their own', async () => {
    for (const level of ['L1', 'L0'] as const) {
      const { driver, logs } = await open(join(dataDir, level), level).catch(() => ({
        driver: undefined,
        logs: undefined,
      }));
      if (driver === undefined) continue;
      const specs = [newSpec(), newSpec()];
      const [a, b] = await Promise.all(specs.map((spec) => driver.ensure(spec)));
      expect(a.address).not.toEqual(b.address);
      await Promise.all(specs.map(({ id }) => driver.stop(id, 0)));
      await driver.detach();
      await logs.close();
    }
  });

  test('a data directory with a very long path still has sockets', async () => {
    const deep = join(dataDir, 'd'.repeat(100));
    const { driver, logs } = await open(deep, wanted?.includes('L2') === false ? 'L0' : 'L2');
    const spec = newSpec({
      startCommand: node(
        'require("http").createServer((request, reply) => reply.end("deep")).listen(process.env.PLATFORM_SERVING_PORT, process.env.PLATFORM_SERVING_HOST)',
      ),
    });
    const listener = new Listener(driver);
    const { address } = await driver.ensure(spec);
    await listener.next(spec, 'ready');
    expect((await get(address, '/')).body).toBe('deep');
    await driver.stop(spec.id, 0);
    await driver.detach();
    await logs.close();
  });

  test('what control groups hold a replica to, it can read where it runs', async () => {
    const code =
      'const { readFileSync } = require("fs"); const read = (path) => { try { return readFileSync(path, "utf8").trim() } catch { return "" } }; ' +
      'const folders = read("/proc/self/cgroup").split("\\n").map((line) => line.split(":")).map(([, names, path]) => (names === "" ? "" : "/" + names) + path); ' +
      'console.log([...new Set(folders.flatMap((path) => ["memory.max", "memory.limit_in_bytes"].map((name) => read("/sys/fs/cgroup" + path + "/" + name))))].join(" "))';
    for (const level of ['L2', 'L1', 'L0'] as const) {
      if (wanted?.includes(level) === false) continue;
      const { driver, logs } = await open(join(dataDir, level), level).catch(() => ({
        driver: undefined,
        logs: undefined,
      }));
      if (driver === undefined) continue;
      const listener = new Listener(driver);
      const spec = newSpec({ startCommand: node(code), memoryMb: 300 });
      await driver.ensure(spec);
      await listener.next(spec, 'exited');
      const { lines } = await logs.read(spec.logId, { after: 0, limit: 100, stream: 'stdout' });
      // Ordinary users have none.
      if (driver.isolation.reason.includes('control groups here')) expect(lines).toHaveLength(1);
      else expect(lines[0].text.split(' ')).toContain(String(300 * 2 ** 20));
      await driver.detach();
      await logs.close();
    }
  });

  test('of replicas that ended, or whose supervisor was killed, nothing is left after a while; what runs is left alone', async () => {
    const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: redactKeys });
    const driver = await ProcessDriver.open({ dataDir, logs, intervals: { ...INTERVALS, leftOverMs: 50 } });
    const listener = new Listener(driver);
    const [ends, isKilled, runs] = [newSpec({ startCommand: 'exit 0' }), newSpec(), newSpec()];
    for (const spec of [ends, isKilled, runs]) await driver.ensure(spec);
    process.kill((await new ReplicaFolder(join(dataDir, 'replicas'), isKilled.id).supervisor())!.pid, 'SIGKILL');
    for (const spec of [ends, isKilled]) {
      await listener.next(spec, 'exited');
      const isLeft = (): boolean =>
        existsSync(join(dataDir, 'replicas', spec.id)) ||
        spawnSync('find', ['/sys/fs/cgroup', '-name', `capstan_${spec.id}`], { encoding: 'utf8' }).stdout !== '';
      while (isLeft()) await new Promise((resolve) => setTimeout(resolve, 50));
    }
    expect(existsSync(join(dataDir, 'replicas', runs.id))).toBe(true);
    await driver.stop(runs.id, 0);
    await driver.detach();
    await logs.close();
  });

  test('the helper program is found', () => {
    expect(findSandbox()).toMatch(/capstan_sandbox$/);
  });
});
