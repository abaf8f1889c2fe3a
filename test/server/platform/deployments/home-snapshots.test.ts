/** Snapshots of a folder that a hostile container changes at the same time. */
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { HomeSnapshots } from '../../../../server/platform/deployments/home-snapshots';
import { makeFolder, removeFolders } from '../../access/support';

const SECRET = 'the encryption key';
let root: string;
let home: string;
let snapshots: HomeSnapshots;

beforeEach(() => {
  root = fs.realpathSync(makeFolder());
  home = path.join(root, 'data', 'home');
  snapshots = new HomeSnapshots(path.join(root, 'homes'));
  fs.mkdirSync(path.join(root, 'service', 'folder'), { recursive: true });
  for (const name of ['file', 'folder/file']) fs.writeFileSync(path.join(root, 'service', name), SECRET);
  fs.mkdirSync(path.join(home, 'folder'), { recursive: true });
  for (const name of ['file', 'folder/file']) fs.writeFileSync(path.join(home, name), 'harmless');
});
afterEach(() => jest.restoreAllMocks());
afterAll(() => removeFolders());

/** Returns the text of all files below a folder, without following links. */
function texts(folder: string): string[] {
  return fs
    .readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => fs.readFileSync(path.join(entry.parentPath, entry.name), 'utf8'));
}

/** Replaces a part of the home by a link to the same name of the service's folder. */
function swap(name: string): void {
  const victim = name === '' ? home : path.join(home, name);
  fs.renameSync(victim, `${victim}.old`);
  fs.symlinkSync(path.join(root, 'service', name), victim);
}

/** Runs `action` just before the call number `at` of the file system. Returns the number of calls so far. */
function interruptAt(at: number, action: () => void): () => number {
  let calls = 0;
  for (const name of ['chmod', 'copyFile', 'lstat', 'open', 'opendir', 'readdir', 'readlink', 'stat'] as const) {
    const original = fs.promises[name] as (...args: unknown[]) => unknown;
    jest.spyOn(fs.promises, name).mockImplementation(((...args: unknown[]) => {
      if (calls++ === at) action();
      return original(...args);
    }) as never);
  }
  return () => calls;
}

test.each(['file', 'folder', ''])(
  '%p replaced by a link at any moment: nothing of its target is copied',
  async (name) => {
    let numSwaps = 0;
    for (let at = 0; ; at++) {
      jest.restoreAllMocks();
      let isSwapped = false;
      const countCalls = interruptAt(at, () => {
        isSwapped = true;
        swap(name);
      });
      const id = `ver_${at}`;
      await snapshots.take(id, home).catch((error: Error) => expect(error.message).toContain('was replaced'));
      if (fs.existsSync(snapshots.folderOf(id))) expect(texts(snapshots.folderOf(id))).not.toContain(SECRET);
      if (!isSwapped) {
        expect(countCalls()).toBeLessThanOrEqual(at);
        break;
      }
      numSwaps++;
      const victim = name === '' ? home : path.join(home, name);
      fs.unlinkSync(victim);
      fs.renameSync(`${victim}.old`, victim);
    }
    expect(numSwaps).toBeGreaterThan(2);
    expect(texts(path.join(root, 'homes')).length).toBeGreaterThan(0);
  },
);

test('copies files, folders and links with their modes, and skips pipes', async () => {
  fs.chmodSync(path.join(home, 'folder'), 0o750);
  fs.chmodSync(path.join(home, 'file'), 0o640);
  fs.symlinkSync('/etc/passwd', path.join(home, 'link'));
  fs.symlinkSync('file', path.join(home, 'inner'));
  execFileSync('mkfifo', [path.join(home, 'pipe')]);
  await snapshots.take('ver_1', home);
  const copy = snapshots.folderOf('ver_1');
  expect(fs.readdirSync(copy).sort()).toEqual(['file', 'folder', 'inner', 'link']);
  expect(fs.readlinkSync(path.join(copy, 'link'))).toBe('/etc/passwd');
  expect(['folder', 'file'].map((name) => fs.statSync(path.join(copy, name)).mode & 0o777)).toEqual([0o750, 0o640]);
});

test('refuses folders that would use up the open files of the service, and leaves nothing behind', async () => {
  fs.mkdirSync(path.join(home, 'd/'.repeat(150)), { recursive: true });
  await expect(snapshots.take('ver_1', home)).rejects.toThrow('at most 100 folders');
  expect(fs.readdirSync(path.join(root, 'homes'))).toEqual([]);
});

test('refuses a sparse file that would fill the disk, and leaves nothing behind', async () => {
  fs.truncateSync(path.join(home, 'file'), 2 ** 40);
  const limited = new HomeSnapshots(path.join(root, 'homes'), { maxHoleBytes: 2 ** 20 });
  await expect(limited.take('v1', home)).rejects.toThrow('holes of sparse files');
  expect(fs.readdirSync(path.join(root, 'homes'))).toEqual([]);
  fs.truncateSync(path.join(home, 'file'), 2 ** 19);
  await limited.take('v1', home);
  expect(fs.statSync(path.join(limited.folderOf('v1'), 'file')).size).toBe(2 ** 19);
});

test('a file deleted at any moment is copied or left out', async () => {
  let isDeleted = true;
  for (let at = 0; isDeleted; at++) {
    jest.restoreAllMocks();
    isDeleted = false;
    fs.writeFileSync(path.join(home, 'file'), 'harmless');
    interruptAt(at, () => {
      isDeleted = true;
      fs.unlinkSync(path.join(home, 'file'));
    });
    await snapshots.take(`ver_${at}`, home);
    expect(texts(snapshots.folderOf(`ver_${at}`))).toContain('harmless');
  }
});

test('files of the service in a home are left out', async () => {
  const link = path.join(root, 'key');
  fs.symlinkSync(path.join(home, 'file'), link);
  const hiding = new HomeSnapshots(path.join(root, 'homes'), {
    hiddenPaths: [link, path.join(home, 'folder', 'file')],
  });
  await hiding.take('v1', home);
  expect(fs.readdirSync(hiding.folderOf('v1'), { recursive: true })).toEqual(['folder']);
});
