import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs, { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openDataDir } from '../../../../server/platform/up/data-dir';
import { lockDataDir } from '../../../../server/platform/up/lock';
import { REGISTER, ROOT } from '../../access/support';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'capstan-dir-'));
});
afterEach(() => {
  rmSync(folder, { recursive: true, force: true });
});

describe('the data directory', () => {
  test('is created when missing, accessible to its user only', () => {
    const { root, logs, replicas, data } = openDataDir(join(folder, 'a', 'service'));
    expect(readdirSync(root).sort()).toEqual(['data', 'logs', 'replicas']);
    for (const path of [root, logs, replicas, data]) expect(statSync(path).mode & 0o777).toBe(0o700);
    expect(() => openDataDir(root)).not.toThrow();
  });

  test('refuses a file in its place and names its path', () => {
    const file = join(folder, 'file');
    writeFileSync(file, '');
    expect(() => openDataDir(file)).toThrow(`--data-dir: cannot write in ${file}: a file of this name exists`);
    expect(() => openDataDir(join(file, 'below'))).toThrow('a part of the path is not a folder');
    expect(() => openDataDir('/proc/capstan/service')).toThrow('the file system takes no folder there');
  });
});

describe('the lock', () => {
  test('refuses a second service and names the holder', () => {
    const lock = lockDataDir(folder);
    expect(() => lockDataDir(folder)).toThrow(`${folder} is in use by another service`);
    lock.describe({ pid: 4711, url: 'http://127.0.0.1:8090' });
    expect(() => lockDataDir(folder)).toThrow(
      `${folder} is in use by another service (process 4711, http://127.0.0.1:8090): stop it, or choose another --data-dir`,
    );
    lock.release();
    expect(existsSync(join(folder, 'service.json'))).toBe(false);
    lockDataDir(folder).release();
  });

  test('is released when its process ends, even by SIGKILL', async () => {
    const script =
      "const { lockDataDir } = require('./server/platform/up/lock.ts'); const lock = lockDataDir(process.argv[1]); lock.describe({ pid: process.pid, url: 'x' }); console.log('locked'); setInterval(() => lock, 1000);";
    const child = spawn(process.execPath, ['-r', REGISTER, '-e', script, '--', folder], {
      cwd: ROOT,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    expect(() => lockDataDir(folder)).toThrow(`is in use by another service (process ${child.pid}, x)`);
    child.kill('SIGKILL');
    await once(child, 'exit');
    lockDataDir(folder).release();
  });

  test('works on a full disk, where its holder is not known', () => {
    const lock = lockDataDir(folder);
    const write = jest.spyOn(fs, 'writeFileSync').mockImplementation(() => {
      throw new Error('ENOSPC: no space left on device, write');
    });
    lock.describe({ pid: 4711, url: 'http://127.0.0.1:8090' });
    write.mockRestore();
    expect(() => lockDataDir(folder)).toThrow(`${folder} is in use by another service: stop it`);
    lock.release();
  });

  test('locks each folder separately', () => {
    const other = join(folder, 'other');
    mkdirSync(other);
    const locks = [lockDataDir(folder), lockDataDir(other)];
    locks.forEach((lock) => lock.release());
  });
});
