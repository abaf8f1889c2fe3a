import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openDataDir } from '../../../server/up/data-dir';
import { lockDataDir } from '../../../server/up/lock';
import { REGISTER, ROOT } from '../access/support';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'capstan-dir-'));
});
afterEach(() => {
  rmSync(folder, { recursive: true, force: true });
});

describe('the layout', () => {
  test('is made where missing, for its user alone', () => {
    const { root, logs, replicas, data } = openDataDir(join(folder, 'a', 'service'));
    expect(readdirSync(root).sort()).toEqual(['data', 'logs', 'replicas']);
    for (const path of [root, logs, replicas, data]) expect(statSync(path).mode & 0o777).toBe(0o700);
    expect(() => openDataDir(root)).not.toThrow();
  });

  test('a file in its place is told with its path', () => {
    const file = join(folder, 'file');
    writeFileSync(file, '');
    expect(() => openDataDir(file)).toThrow(`--data-dir: cannot write in ${file}: there is a file of this name`);
    expect(() => openDataDir(join(file, 'below'))).toThrow('a part of the path is no folder');
  });
});

describe('the lock', () => {
  test('refuses a second service, and says who is there', () => {
    const lock = lockDataDir(folder);
    expect(() => lockDataDir(folder)).toThrow(`another service runs on ${folder}`);
    lock.describe({ pid: 4711, url: 'http://127.0.0.1:8090' });
    expect(() => lockDataDir(folder)).toThrow(
      `another service (process 4711, http://127.0.0.1:8090) runs on ${folder}: stop it, or give this one a --data-dir of its own`,
    );
    lock.release();
    expect(existsSync(join(folder, 'service.json'))).toBe(false);
    lockDataDir(folder).release();
  });

  test('ends with its process, however that ends', async () => {
    const script =
      "const { lockDataDir } = require('./server/up/lock.ts'); const lock = lockDataDir(process.argv[1]); lock.describe({ pid: process.pid, url: 'x' }); console.log('locked'); setInterval(() => lock, 1000);";
    const child = spawn(process.execPath, ['-r', REGISTER, '-e', script, '--', folder], {
      cwd: ROOT,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    expect(() => lockDataDir(folder)).toThrow(`another service (process ${child.pid}, x) runs on`);
    child.kill('SIGKILL');
    await once(child, 'exit');
    lockDataDir(folder).release();
  });

  test('of another folder is another lock', () => {
    const other = join(folder, 'other');
    mkdirSync(other);
    const locks = [lockDataDir(folder), lockDataDir(other)];
    locks.forEach((lock) => lock.release());
  });
});
