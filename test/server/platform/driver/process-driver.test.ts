/** The process driver at each level that this machine has. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { redactKeys } from '../../../../server/base/key-format';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { probeIsolation } from '../../../../server/platform/driver/process/probe';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import { ReplicaFolder, statFields } from '../../../../server/platform/driver/process/replica-folder';
import { findSandbox } from '../../../../server/platform/driver/process/sandbox';
import type { Level } from '../../../../server/platform/driver/process/replica-layout';
import { REGISTER } from '../../access/support';
import { conformance, get, Listener, newSpec, node, type Subject } from './conformance';

const INTERVALS = { fastMs: 50, slowMs: 100, liveMs: 100, graceMs: 300, aliveMs: 100 };

async function open(dataDir: string, level: Level): ReturnType<Subject['open']> {
  const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: redactKeys });
  return { driver: await ProcessDriver.open({ dataDir, logs, level, intervals: INTERVALS }), logs };
}

function startElsewhere(level: Level): Subject['startElsewhere'] {
  return async (dataDir, specs) => {
    const child = spawn(
      process.execPath,
      ['-r', REGISTER, join(__dirname, 'elsewhere.ts'), dataDir, level, JSON.stringify(specs)],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    const ended = once(child, 'exit');
    for await (const line of createInterface({ input: child.stdout })) {
      child.kill('SIGKILL');
      await ended;
      return JSON.parse(line) as string[];
    }
    throw new Error('the process ended before it started the replicas');
  };
}

const hasEnded: Subject['hasEnded'] = (dataDir, { id }) =>
  existsSync(new ReplicaFolder(join(dataDir, 'replicas'), id).exitFile);

const VARIABLES = { host: 'process.env.PLATFORM_SERVING_HOST', port: 'process.env.PLATFORM_SERVING_PORT' };
const SUBJECTS: Readonly<Record<Level, Pick<Subject, 'host' | 'port' | 'isIsolated'>>> = {
  L2: { host: '"0.0.0.0"', port: '80', isIsolated: true },
  L1: { ...VARIABLES, isIsolated: false },
  L0: { ...VARIABLES, isIsolated: false },
};

/** All levels are required, so a machine without namespaces fails. CAPSTAN_TEST_LEVELS=L1,L0 skips them. */
const levels = process.env.CAPSTAN_TEST_LEVELS?.split(',');
const hasPort80 =
  process.geteuid!() === 0 || Number(readFileSync('/proc/sys/net/ipv4/ip_unprivileged_port_start', 'utf8')) <= 80;

for (const level of ['L2', 'L1', 'L0'] as const) {
  if (levels !== undefined && !levels.includes(level)) continue;
  if (level === 'L1' && !hasPort80) {
    describe.skip('processes at level L1', () => test('this user may not listen on port 80', () => {}));
    continue;
  }
  conformance(`processes at level ${level}`, {
    ...SUBJECTS[level],
    open: (dataDir) => open(dataDir, level),
    startElsewhere: startElsewhere(level),
    hasEnded,
  });
}

describe('levels', () => {
  let dataDir: string;
  beforeEach(() => {
    dataDir = mkdtempSync(join(tmpdir(), 'capstan-levels-'));
  });
  afterEach(() => rmSync(dataDir, { recursive: true, force: true }));

  test('without the helper program there are no namespaces, and the reason names the build command', async () => {
    const { level, reason } = await probeIsolation({
      sandbox: undefined,
      replicas: dataDir,
      sockets: dataDir,
      hiddenPaths: [dataDir],
    });
    expect(level).not.toBe('L2');
    expect(reason).toContain('npm run build:addon');
    await expect(
      probeIsolation({ sandbox: undefined, replicas: dataDir, sockets: dataDir, hiddenPaths: [dataDir], level: 'L2' }),
    ).rejects.toThrow('level L2 was requested');
  });

  test('reports the error message of a failing helper', async () => {
    const failing = join(dataDir, 'failing');
    writeFileSync(failing, '#!/bin/sh\ncat > /dev/null\necho "error new namespaces: Operation not permitted"\n', {
      mode: 0o755,
    });
    const { reason } = await probeIsolation({
      sandbox: failing,
      replicas: dataDir,
      sockets: dataDir,
      hiddenPaths: [dataDir],
    });
    expect(reason).toContain('new namespaces: Operation not permitted');
  });

  test('at L0 a script that uses platform folders or port 80 gets the reason', async () => {
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

  test('two replicas at L0 and at L1 have different addresses', async () => {
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

  test('a stop in progress does not keep the process of a detached driver', async () => {
    const { driver, logs } = await open(dataDir, levels?.includes('L2') === false ? 'L0' : 'L2');
    const spec = newSpec({ startCommand: "trap '' TERM; while :; do sleep 0.1; done" });
    await driver.ensure(spec);
    const graceMs = 60_000;
    const started = jest.spyOn(global, 'setTimeout');
    const cleared = jest.spyOn(global, 'clearTimeout');
    const timers = () =>
      started.mock.results.flatMap(({ value }, i) =>
        (started.mock.calls[i][1] ?? 0) > graceMs ? [value as unknown] : [],
      );
    void driver.stop(spec.id, graceMs);
    while (timers().length === 0) await new Promise(setImmediate);
    await driver.detach();
    expect(timers().every((timer) => cleared.mock.calls.some(([handle]) => handle === timer))).toBe(true);
    jest.restoreAllMocks();
    await logs.close();
    const next = await open(dataDir, levels?.includes('L2') === false ? 'L0' : 'L2');
    await next.driver.stop(spec.id, 0);
    await next.driver.detach();
    await next.logs.close();
  });

  test('a data directory with a very long path still has sockets', async () => {
    const deep = join(dataDir, 'd'.repeat(100));
    const { driver, logs } = await open(deep, levels?.includes('L2') === false ? 'L0' : 'L2');
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

  test('a replica can read its control group limits', async () => {
    const code =
      'const { readFileSync } = require("fs"); const read = (path) => { try { return readFileSync(path, "utf8").trim() } catch { return "" } }; ' +
      'const folders = read("/proc/self/cgroup").split("\\n").map((line) => line.split(":")).map(([, names, path]) => (names === "" ? "" : "/" + names) + path); ' +
      'console.log([...new Set(folders.flatMap((path) => ["memory.max", "memory.limit_in_bytes"].map((name) => read("/sys/fs/cgroup" + path + "/" + name))))].join(" "))';
    for (const level of ['L2', 'L1', 'L0'] as const) {
      if (levels?.includes(level) === false) continue;
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
      // Unprivileged users have no control groups.
      if (driver.isolation.reason.includes('cannot create control groups')) expect(lines).toHaveLength(1);
      else expect(lines[0].text.split(' ')).toContain(String(300 * 2 ** 20));
      await driver.detach();
      await logs.close();
    }
  });

  test('removes the folders of ended and killed replicas after a while, and keeps running ones', async () => {
    const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: redactKeys });
    const driver = await ProcessDriver.open({ dataDir, logs, intervals: { ...INTERVALS, retentionMs: 50 } });
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

  test('the end of the service removes what a killed supervisor left, and keeps the folder for a while', async () => {
    const logs = new LogStore({ folder: join(dataDir, 'logs'), redact: redactKeys });
    const driver = await ProcessDriver.open({ dataDir, logs, intervals: INTERVALS });
    const listener = new Listener(driver);
    const spec = newSpec();
    const { address } = await driver.ensure(spec);
    const { pid, childPid } = (await new ReplicaFolder(join(dataDir, 'replicas'), spec.id).supervisor())!;
    process.kill(pid, 'SIGKILL');
    await listener.next(spec, 'exited');
    while (![undefined, 'Z'].includes(statFields(childPid)?.[0])) await new Promise(setImmediate);
    await driver.detach();
    await logs.close();
    expect(spawnSync('find', ['/sys/fs/cgroup', '-name', `capstan_${spec.id}`], { encoding: 'utf8' }).stdout).toBe('');
    expect(address.type === 'unix' && existsSync(address.path)).toBe(false);
    expect(existsSync(join(dataDir, 'replicas', spec.id))).toBe(true);
  });

  test('the helper program is found', () => {
    expect(findSandbox()).toMatch(/capstan_sandbox$/);
  });
});
