import { constants, existsSync, promises as fs, realpathSync } from 'node:fs';
import path from 'node:path';

/** Maximum depth of folders. Each level needs an open file of the service. */
const MAX_DEPTH = 100;
/** Maximum number of files, links and folders. A program that keeps creating them cannot delay the end forever. */
const MAX_ENTRIES = 1_000_000;

/** The unit of `blocks` of a file. */
const BLOCK_BYTES = 512;

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;
/** Opens a folder for its names only, so it needs no permission to list it. The same number on every Linux. */
const O_PATH = 0o10000000;

export interface CopyOptions {
  /**
   * Maximum bytes of holes in sparse files. Not every file system copies holes as holes, so a file that takes no space
   * could fill the disk.
   */
  maxHoleBytes?: number | undefined;
  /** Files and folders that are left out. */
  hiddenPaths?: readonly string[];
}

/**
 * Copies a folder that a running program may change at the same time. Follows no link, neither in `source` nor below
 * it: every name is looked up in a folder that is already open, as with openat(2). Skips sockets, pipes and devices.
 * @param source A real path.
 * @param target Must not exist.
 * @throws Error if a folder or file was replaced meanwhile, or the folder is too large
 */
export async function copyFolder(
  source: string,
  target: string,
  { maxHoleBytes = Infinity, hiddenPaths = [] }: CopyOptions = {},
): Promise<void> {
  const folder = await openFolder(source);
  const count = { entries: 0, holesLeft: maxHoleBytes };
  try {
    await copyInto(folder, target, { path: source, depth: 0, count, hidden: new Set(hiddenPaths.map(realPath)) });
  } finally {
    await folder.close();
  }
}

/** Links to renewed certificates change, so this is resolved at each copy. */
function realPath(file: string): string {
  return existsSync(file) ? realpathSync(file) : file;
}

/** Opens one part of the path after the other. */
async function openFolder(real: string): Promise<fs.FileHandle> {
  let folder = await fs.open('/', O_PATH | O_DIRECTORY);
  for (const name of path
    .resolve(real)
    .split(path.sep)
    .filter((part) => part !== '')) {
    const outer = folder;
    folder = await fs
      .open(inside(outer, name), O_PATH | O_DIRECTORY | O_NOFOLLOW)
      .catch((error: unknown) => rethrow(error, real))
      .finally(() => outer.close());
  }
  return folder;
}

interface Position {
  /** The real path of the folder that is copied. */
  path: string;
  depth: number;
  count: { entries: number; holesLeft: number };
  hidden: ReadonlySet<string>;
}

async function copyInto(from: fs.FileHandle, to: string, position: Position): Promise<void> {
  const { depth, count, hidden } = position;
  if (depth > MAX_DEPTH) throw new Error(`expected at most ${MAX_DEPTH} folders inside each other, got more`);
  await fs.mkdir(to, { mode: 0o700 });
  for await (const entry of await fs.opendir(inside(from, '.'))) {
    if (++count.entries > MAX_ENTRIES) throw new Error(`expected at most ${MAX_ENTRIES} files and folders, got more`);
    const below = path.join(position.path, entry.name);
    if (hidden.has(below)) continue;
    const [source, target] = [inside(from, entry.name), path.join(to, entry.name)];
    try {
      if (entry.isSymbolicLink()) await fs.symlink(await fs.readlink(source), target);
      else if (entry.isFile()) await copyFile(source, target, count);
      else if (entry.isDirectory())
        await withFile(source, O_DIRECTORY, (folder) =>
          copyInto(folder, target, { ...position, path: below, depth: depth + 1 }),
        );
    } catch (error) {
      // Deleted since it was listed.
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') rethrow(error, entry.name);
    }
  }
  await fs.chmod(to, (await from.stat()).mode & 0o777);
}

/** Shares blocks if the file system can. */
async function copyFile(source: string, target: string, count: Position['count']): Promise<void> {
  await withFile(source, O_NONBLOCK, async (file) => {
    const info = await file.stat();
    if (!info.isFile()) return;
    count.holesLeft -= Math.max(0, info.size - info.blocks * BLOCK_BYTES);
    if (count.holesLeft < 0)
      throw new Error('the holes of sparse files are larger than a replica may write (capstan up --replica-disk)');
    await fs.copyFile(`/proc/self/fd/${file.fd}`, target, constants.COPYFILE_FICLONE | constants.COPYFILE_EXCL);
  });
}

async function withFile(file: string, flags: number, use: (file: fs.FileHandle) => Promise<void>): Promise<void> {
  const handle = await fs.open(file, O_RDONLY | O_NOFOLLOW | flags);
  try {
    await use(handle);
  } finally {
    await handle.close();
  }
}

/** The path of a name in an open folder. Linux finds it without the folder's own path. */
function inside(folder: fs.FileHandle, name: string): string {
  return `/proc/self/fd/${folder.fd}/${name}`;
}

/** Explains the errors of a name that became a link or another type of file. */
function rethrow(error: unknown, name: string): never {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== 'ELOOP' && code !== 'ENOTDIR') throw error;
  throw new Error(`'${name}' was replaced while it was copied: stop the program that changes it, and try again`, {
    cause: error,
  });
}
