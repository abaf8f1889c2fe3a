import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { withFileLock } from '../../../ts/hub/file-lock';

const path = join(mkdtempSync(join(tmpdir(), 'capstan-lock-')), '.locks', 'a.lock');
const never = new AbortController().signal;

test('waits until the lock is free, then runs the work', async () => {
  const answers = [false, false, true];
  const waits: number[] = [];
  const system = {
    tryLock: () => answers.shift()!,
    sleep: (ms: number) => {
      waits.push(ms);
      return Promise.resolve();
    },
  };
  expect(await withFileLock(path, system, never, () => Promise.resolve('done'))).toBe('done');
  expect(waits).toEqual([500, 500]);
});

test('does not take the lock of a file that its former owner has deleted', async () => {
  let numTries = 0;
  const system = {
    tryLock: () => {
      if (++numTries === 1) rmSync(path);
      return true;
    },
    sleep: () => Promise.resolve(),
  };
  await withFileLock(path, system, never, () => Promise.resolve());
  expect(numTries).toBe(2);
});

test('waits on when the folder of the lock is deleted', async () => {
  let numTries = 0;
  const system = {
    tryLock: () => ++numTries > 1,
    sleep: () => {
      rmSync(dirname(path), { recursive: true });
      return Promise.resolve();
    },
  };
  expect(await withFileLock(path, system, never, () => Promise.resolve('done'))).toBe('done');
});

test('a file system without locks is an io_error with the path and what to do', async () => {
  const system = {
    tryLock: () => {
      throw new Error('Operation not supported');
    },
    sleep: () => Promise.resolve(),
  };
  await expect(withFileLock(path, system, never, () => Promise.resolve())).rejects.toMatchObject({
    code: 'io_error',
    message: `cannot lock ${path}: Operation not supported. Set HF_HUB_CACHE to a folder on a local disk`,
  });
});

test('a folder in place of the lock is an error', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-lock-'));
  const end = new AbortController();
  const system = {
    tryLock: () => true,
    sleep: () => {
      end.abort();
      return Promise.resolve();
    },
  };
  await expect(withFileLock(folder, system, end.signal, () => Promise.resolve())).rejects.toMatchObject({
    code: 'EISDIR',
  });
});

test('a signal ends the wait', async () => {
  const controller = new AbortController();
  const system = {
    tryLock: () => false,
    sleep: () => {
      controller.abort();
      return Promise.reject(new Error('aborted'));
    },
  };
  const work = jest.fn();
  await expect(withFileLock(path, system, controller.signal, work)).rejects.toMatchObject({ code: 'aborted' });
  expect(work).not.toHaveBeenCalled();
});
