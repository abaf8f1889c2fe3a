import { existsSync, mkdirSync, mkdtempSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { readCache, removeFromCache } from '../../../ts/hub/cache-contents';

const OLD = '1'.repeat(40);
const NEW = '2'.repeat(40);
const system = { tryLock: () => true };
let cacheDir: string;
let folder: string;

/** Two commits that share a file, as huggingface_hub leaves them. */
beforeEach(() => {
  cacheDir = mkdtempSync(join(tmpdir(), 'capstan-cache-'));
  folder = join(cacheDir, 'models--acme--tiny');
  write('refs/main', NEW);
  write('refs/refs/pr/1', OLD);
  write(`.no_exist/${OLD}/x`, '');
  for (const [name, size] of [
    ['shared', 100],
    ['old', 10],
    ['new', 1],
    ['part.incomplete', 5],
  ] as const)
    write(`blobs/${name}`, 'x'.repeat(size));
  for (const [path, blob] of [
    [`${OLD}/model.safetensors`, 'shared'],
    [`${OLD}/config.json`, 'old'],
    [`${NEW}/model.safetensors`, 'shared'],
    [`${NEW}/more/config.json`, 'new'],
  ]) {
    const link = join(folder, 'snapshots', path);
    mkdirSync(dirname(link), { recursive: true });
    symlinkSync(join(relative(dirname(link), folder), 'blobs', blob), link);
  }
  write(join('../.locks/models--acme--tiny', 'shared.lock'), '');
  mkdirSync(join(cacheDir, 'datasets--acme--words'));
  mkdirSync(join(cacheDir, 'models--gpt2'));
});

function write(path: string, text: string): void {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  writeFileSync(join(folder, path), text);
}

test('lists models with their revisions; shared files count once', async () => {
  expect(await readCache(cacheDir)).toEqual([
    {
      repository: 'acme/tiny',
      sizeBytes: 116,
      partialBytes: 5,
      revisions: [
        expect.objectContaining({ commit: OLD, revisions: ['refs/pr/1'], sizeBytes: 110 }),
        expect.objectContaining({
          commit: NEW,
          revisions: ['main'],
          files: [
            { path: 'model.safetensors', sizeBytes: 100 },
            { path: 'more/config.json', sizeBytes: 1 },
          ],
        }),
      ],
    },
  ]);
});

test('a blob that goes away meanwhile is left out', async () => {
  symlinkSync('nowhere', join(folder, 'blobs', 'renamed'));
  expect(await readCache(cacheDir)).toMatchObject([{ sizeBytes: 116 }]);
});

test('a link that cannot be followed rejects the call, and no other promise', async () => {
  const unhandled = jest.fn();
  process.on('unhandledRejection', unhandled);
  for (const path of [`snapshots/${OLD}/long`, `snapshots/${NEW}/long`, 'blobs/long'])
    symlinkSync('x'.repeat(300), join(folder, path));
  await expect(readCache(cacheDir)).rejects.toMatchObject({ code: 'ENAMETOOLONG' });
  await new Promise(setImmediate);
  process.off('unhandledRejection', unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

test('a folder of branches is no branch', async () => {
  await expect(removeFromCache(cacheDir, 'acme/tiny', 'refs/pr', system)).rejects.toMatchObject({
    code: 'model_not_found',
  });
});

test('an empty cache, or none, has no models', async () => {
  expect(await readCache(join(cacheDir, 'none'))).toEqual([]);
});

test.each([['refs/pr/1'], [OLD], [OLD.slice(0, 8)]])(
  'deletes the revision %s, its names and the blobs that only it uses',
  async (revision) => {
    expect(await removeFromCache(cacheDir, 'acme/tiny', revision, system)).toBe(10);
    expect(readdirSync(join(folder, 'blobs')).sort()).toEqual(['new', 'part.incomplete', 'shared']);
    expect(readdirSync(join(folder, 'snapshots'))).toEqual([NEW]);
    expect(existsSync(join(folder, 'refs/refs/pr/1'))).toBe(false);
    expect(existsSync(join(folder, 'refs/main'))).toBe(true);
    expect(readdirSync(join(folder, '.no_exist'))).toEqual([]);
  },
);

test('the last revision leaves unfinished downloads and the folder', async () => {
  await removeFromCache(cacheDir, 'acme/tiny', OLD, system);
  expect(await removeFromCache(cacheDir, 'acme/tiny', NEW, system)).toBe(101);
  expect(readdirSync(join(folder, 'blobs'))).toEqual(['part.incomplete']);
  expect(readdirSync(join(folder, 'snapshots'))).toEqual([]);
});

test('keeps the blobs of deep folders and of snapshots with other names', async () => {
  const deep = 'a/b/c/d/e/f/g/h/i/j/k';
  for (const path of [`${NEW}/${deep}/x`, 'other/y']) {
    const link = join(folder, 'snapshots', path);
    mkdirSync(dirname(link), { recursive: true });
    symlinkSync(join(relative(dirname(link), folder), 'blobs', path.at(-1)!), link);
    write(`blobs/${path.at(-1)}`, '');
  }
  await removeFromCache(cacheDir, 'acme/tiny', OLD, system);
  expect(readdirSync(join(folder, 'blobs')).sort()).toEqual(['new', 'part.incomplete', 'shared', 'x', 'y']);
});

test('reads the revisions once it has the locks', async () => {
  const added = '3'.repeat(40);
  const tryLock = (): boolean => {
    mkdirSync(join(folder, 'snapshots', added), { recursive: true });
    return true;
  };
  await removeFromCache(cacheDir, 'acme/tiny', added, { tryLock });
  expect(readdirSync(join(folder, 'snapshots'))).toEqual([OLD, NEW]);
});

test('a branch whose name starts a commit is that branch', async () => {
  write('refs/1111111', NEW);
  await removeFromCache(cacheDir, 'acme/tiny', '1111111', system);
  expect(readdirSync(join(folder, 'snapshots'))).toEqual([OLD]);
});

test('a branch without its commit is not taken for the start of another', async () => {
  write('refs/1111111', '3'.repeat(40));
  await expect(removeFromCache(cacheDir, 'acme/tiny', '1111111', system)).rejects.toMatchObject({
    code: 'model_not_found',
  });
});

test('the start of two commits names none', async () => {
  mkdirSync(join(folder, 'snapshots', `${'1'.repeat(39)}2`));
  await expect(removeFromCache(cacheDir, 'acme/tiny', '1111111', system)).rejects.toMatchObject({
    code: 'model_not_found',
  });
  expect(readdirSync(join(folder, 'snapshots'))).toHaveLength(3);
});

test('deletes a model with its locks', async () => {
  expect(await removeFromCache(cacheDir, 'acme/tiny', undefined, system)).toBe(116);
  expect(readdirSync(cacheDir).sort()).toEqual(['.locks', 'datasets--acme--words', 'models--gpt2']);
  expect(readdirSync(join(cacheDir, '.locks'))).toEqual([]);
});

test.each([
  ['acme/other', undefined, /acme\/other is not in the cache/],
  ['acme/tiny', '111111', /got "111111"/],
  ['acme/tiny', 'v9', /expected one of the revisions in the cache \(1+, 2+\), got "v9"/],
])('refuses to delete %s@%s', async (repository, revision, message) => {
  await expect(removeFromCache(cacheDir, repository, revision, system)).rejects.toMatchObject({
    code: 'model_not_found',
    message: expect.stringMatching(message) as string,
  });
});

test('keeps the lock of a download that begins meanwhile', async () => {
  const fresh = '../.locks/models--acme--tiny/fresh.lock';
  const tryLock = (): boolean => {
    write(fresh, '');
    return true;
  };
  await removeFromCache(cacheDir, 'acme/tiny', OLD, { tryLock });
  expect(readdirSync(join(cacheDir, '.locks/models--acme--tiny'))).toEqual(['fresh.lock']);
});

test('deletes nothing while a lock is held', async () => {
  await expect(removeFromCache(cacheDir, 'acme/tiny', undefined, { tryLock: () => false })).rejects.toMatchObject({
    code: 'io_error',
  });
  expect(readdirSync(join(folder, 'blobs'))).toHaveLength(4);
});
