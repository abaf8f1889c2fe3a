import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { DEFAULT_MEASURE_LIMITS, measureFolder } from '../../../../server/platform/deployments/measure-folder';
import { makeFolder, removeFolders } from '../../access/support';

let folder: string;
beforeEach(() => {
  folder = makeFolder();
});
afterAll(() => removeFolders());

const write = (root: string, files: Record<string, string>) => {
  for (const [name, text] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(root, name)), { recursive: true });
    fs.writeFileSync(path.join(root, name), text);
  }
};
const measure = (root = folder, limits = {}) => measureFolder(root, { ...DEFAULT_MEASURE_LIMITS, ...limits });

test('returns the number of files, their size and the digest', async () => {
  write(folder, { 'a.txt': 'hello', 'below/b.bin': 'x'.repeat(3_000_000), 'below/deep/c': '' });
  expect(await measure()).toEqual({
    sizeBytes: 3_000_005,
    numFiles: 3,
    digest: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
    note: null,
  });
});

// The format is documented, and stored digests must stay comparable.
test('computes the digest from the documented lines', async () => {
  write(folder, { 'b/x': 'hello', a: '' });
  fs.symlinkSync('../elsewhere', path.join(folder, 'c'));
  const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
  expect((await measure()).digest).toBe(
    `sha256:${sha256(`file 0 ${sha256('')} "a"\nfolder "b"\nfile 5 ${sha256('hello')} "b/x"\nlink "c" "../elsewhere"\n`)}`,
  );
});

test('gives equal folders equal digests, regardless of times and permissions, and others different ones', async () => {
  const files = { a: '1', 'b/c': '2' };
  const digestOf = async (change: (root: string) => void = () => {}) => {
    const root = makeFolder();
    write(root, files);
    change(root);
    return (await measure(root)).digest;
  };
  const digest = await digestOf();
  expect(
    await digestOf((root) => {
      fs.utimesSync(path.join(root, 'a'), 1, 1);
      fs.chmodSync(path.join(root, 'a'), 0o600);
    }),
  ).toBe(digest);
  const others = [
    await digestOf((root) => fs.writeFileSync(path.join(root, 'a'), '2')),
    await digestOf((root) => fs.renameSync(path.join(root, 'a'), path.join(root, 'A'))),
    await digestOf((root) => fs.rmSync(path.join(root, 'a'))),
    await digestOf((root) => fs.mkdirSync(path.join(root, 'empty'))),
    await digestOf((root) => fs.symlinkSync('a', path.join(root, 'l'))),
    await digestOf((root) => fs.symlinkSync('b', path.join(root, 'l'))),
  ];
  expect(new Set([digest, ...others]).size).toBe(others.length + 1);
});

test('follows no links', async () => {
  const outside = makeFolder();
  write(outside, { secret: 'x'.repeat(100) });
  fs.symlinkSync(outside, path.join(folder, 'out'));
  fs.symlinkSync(path.join(outside, 'secret'), path.join(folder, 'file'));
  fs.symlinkSync('.', path.join(folder, 'round'));
  expect(await measure()).toMatchObject({ sizeBytes: 0, numFiles: 0 });
});

test('fails on too many entries, and returns only the size above the digest limit', async () => {
  write(folder, { a: 'aaa', b: 'bbb', c: 'ccc' });
  await expect(measure(folder, { maxEntries: 2 })).rejects.toThrow('the folder has more than 2 files and folders');
  expect(await measure(folder, { maxDigestBytes: 8 })).toMatchObject({
    sizeBytes: 9,
    numFiles: 3,
    digest: null,
    note: expect.stringContaining('no digest: the folder is larger than'),
  });
});

test('stops when aborted', async () => {
  write(folder, { a: 'a' });
  await expect(measureFolder(folder, DEFAULT_MEASURE_LIMITS, AbortSignal.abort())).rejects.toMatchObject({
    name: 'AbortError',
  });
});

test('reads no file behind a folder that is replaced by a link meanwhile', async () => {
  const elsewhere = makeFolder();
  for (const root of [path.join(folder, 'below'), elsewhere]) write(root, { secret: 'same size' });
  const original = fs.promises.open;
  jest.spyOn(fs.promises, 'open').mockImplementationOnce((...args) => {
    fs.renameSync(path.join(folder, 'below'), path.join(folder, 'old'));
    fs.symlinkSync(elsewhere, path.join(folder, 'below'));
    return original(...args);
  });
  await expect(measure()).rejects.toThrow('a file changed while it was read: below/secret');
});
