/** The user ids of replicas: each has its own while it runs. */
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import { MAX_USER_IDS, UserIds } from '../../../../server/platform/driver/process/user-ids';
import { Listener, newSpec } from './conformance';

test('the lowest free id is taken, and a released one is taken again', () => {
  const ids = new UserIds();
  const [first, second] = [ids.take('rep_1'), ids.take('rep_2')];
  expect(second).toBe(first + 1);
  ids.release('rep_1');
  expect(ids.take('rep_3')).toBe(first);
  ids.hold('rep_4', second + 1);
  expect(ids.take('rep_5')).toBe(second + 2);
});

test('there is a limit, and a clear error at it', () => {
  const ids = new UserIds();
  for (let n = 0; n < MAX_USER_IDS; n++) ids.take(`rep_${n}`);
  expect(() => ids.take('rep_more')).toThrow('All 4096 user ids of replicas are in use');
});

const canRun = process.geteuid!() === 0 && process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;

(canRun ? describe : describe.skip)('a service of root', () => {
  let dataDir: string;
  let logs: LogStore;
  let driver: ProcessDriver;
  let listener: Listener;
  const open = async (): Promise<void> => {
    logs = new LogStore({ folder: join(dataDir, 'logs'), redact: (text) => text });
    driver = await ProcessDriver.open({ dataDir, logs, level: 'L2' });
    listener = new Listener(driver);
  };
  const userOf = (id: string): number => statSync(join(dataDir, 'replicas', id, 'home')).uid;

  beforeEach(async () => {
    dataDir = mkdtempSync(join(tmpdir(), 'capstan-users-'));
    await open();
  });
  afterEach(async () => {
    for (const id of await driver.list()) await driver.stop(id, 0);
    await driver.detach();
    await logs.close();
    rmSync(dataDir, { recursive: true, force: true });
  });

  test('gives each replica a user, also after a restart, until the replica ends', async () => {
    const [first, second, third, fourth] = [newSpec(), newSpec(), newSpec(), newSpec()];
    for (const spec of [first, second]) await driver.ensure(spec);
    expect(userOf(second.id)).toBe(userOf(first.id) + 1);
    await driver.detach();
    await logs.close();
    await open();
    await driver.ensure(third);
    expect(userOf(third.id)).toBe(userOf(first.id) + 2);
    await driver.stop(first.id, 0);
    await driver.ensure(fourth);
    expect(userOf(fourth.id)).toBe(userOf(first.id));
  });

  test('a start that fails frees the user', async () => {
    const gpuUuids = ['GPU-of-no-machine'];
    await expect(driver.ensure(newSpec({ gpuUuids }))).rejects.toThrow();
    const [first, second] = [newSpec(), newSpec()];
    await driver.ensure(first);
    await expect(driver.ensure(newSpec({ gpuUuids }))).rejects.toThrow();
    await driver.ensure(second);
    expect(userOf(second.id)).toBe(userOf(first.id) + 1);
  });

  test('replicas do not share what the kernel counts for each user', async () => {
    // All instances that one replica may have, on a machine that allows 128 for each user.
    const take = `python3 -u - <<'END'
import ctypes, signal
libc = ctypes.CDLL(None)
n = 0
while libc.inotify_init() >= 0: n += 1
print(n)
signal.pause()
END`;
    const specs = Array.from({ length: 6 }, () => newSpec({ startCommand: take }));
    for (const spec of specs) {
      await driver.ensure(spec);
      let lines: string[] = [];
      while (lines.length === 0) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        lines = (await logs.last(spec.logId, 10)).map(({ text }) => text);
      }
      expect(lines).toEqual(['32']);
      expect(listener.of(spec)).not.toContain('exited');
    }
  });
});
