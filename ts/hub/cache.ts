import { randomBytes } from 'node:crypto';
import type { Stats } from 'node:fs';
import { mkdir, readdir, readFile, rename, stat, symlink, unlink, writeFile } from 'node:fs/promises';
import { dirname, join, posix, relative } from 'node:path';
import { CapstanError } from '../errors';

const FOLDER_PREFIX = 'models--';
const COMMIT = /^[0-9a-f]{40}$/;
/** A snapshot with deeper folders is read only to this depth. */
const MAX_DEPTH = 8;

/** A file of a snapshot. */
export interface CachedFile {
  /** As in the repository. */
  path: string;
  size: number;
}

/**
 * One repository in the layout of huggingface_hub. `blobs/` holds contents by their hash, `snapshots/COMMIT/` the files
 * of a commit as links to them, `refs/` the commits of branches and tags, and `.no_exist/COMMIT/` empty files for names
 * that the commit does not have.
 */
export class RepositoryCache {
  readonly folder: string;
  readonly lockFolder: string;

  constructor(cacheDir: string, repository: string) {
    const name = FOLDER_PREFIX + repository.replace('/', '--');
    this.folder = join(cacheDir, name);
    this.lockFolder = join(cacheDir, '.locks', name);
  }

  blob(etag: string): string {
    return join(this.folder, 'blobs', etag);
  }

  /** A download that has not finished. */
  incomplete(etag: string): string {
    return `${this.blob(etag)}.incomplete`;
  }

  lock(etag: string): string {
    return join(this.lockFolder, `${etag}.lock`);
  }

  get snapshots(): string {
    return join(this.folder, 'snapshots');
  }

  snapshot(commit: string): string {
    return join(this.snapshots, commit);
  }

  /** Returns the commit of a revision that was downloaded, or undefined. */
  async commitOf(revision: string): Promise<string | undefined> {
    if (COMMIT.test(revision)) return revision;
    const text = await readFile(join(this.folder, 'refs', revision), 'utf8').catch(ifMissing(''));
    return COMMIT.test(text.trim()) ? text.trim() : undefined;
  }

  /** Returns the files of a commit whose content is in the cache. */
  async files(commit: string): Promise<CachedFile[]> {
    return listFiles(this.snapshot(commit), '', 0);
  }

  /** Whether a former request showed that the commit has no such file. */
  async isKnownMissing(commit: string, path: string): Promise<boolean> {
    return (await sizeOf(join(this.folder, '.no_exist', commit, path))) !== undefined;
  }

  async markMissing(commit: string, path: string): Promise<void> {
    const marker = join(this.folder, '.no_exist', commit, path);
    await mkdir(dirname(marker), { recursive: true });
    await writeFile(marker, '');
  }

  /** Makes a blob a file of a commit. The link is relative, so that the cache can be moved. */
  async link(commit: string, path: string, etag: string): Promise<void> {
    const pointer = join(this.snapshot(commit), ...path.split('/'));
    await mkdir(dirname(pointer), { recursive: true });
    const target = relative(dirname(pointer), this.blob(etag));
    await replace(pointer, (fresh) => symlink(target, fresh));
  }

  /** Makes a commit the one of a branch or tag. */
  async setCommit(revision: string, commit: string): Promise<void> {
    if (revision === commit || (await this.commitOf(revision)) === commit) return;
    const file = join(this.folder, 'refs', ...revision.split('/'));
    await mkdir(dirname(file), { recursive: true });
    await replace(file, (fresh) => writeFile(fresh, commit));
  }
}

/** Returns the repositories in a cache, in the order of their names. */
export async function cachedRepositories(cacheDir: string): Promise<string[]> {
  const names = await readdir(cacheDir).catch(ifMissing<string[]>([]));
  return names
    .filter((name) => name.startsWith(FOLDER_PREFIX))
    .map((name) => name.slice(FOLDER_PREFIX.length).split('--'))
    .filter((parts) => parts.length === 2)
    .map((parts) => parts.join('/'))
    .sort();
}

/**
 * Runs work on a cache. A file operation that fails, for lack of permission for example, is an `io_error`.
 * @param verb `read`, `write to` or `delete from`, for the message.
 */
export async function usingCache<T>(cacheDir: string, verb: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { message, syscall } = error as NodeJS.ErrnoException;
    if (error instanceof CapstanError || syscall === undefined) throw error;
    throw new CapstanError('io_error', `cannot ${verb} the cache ${cacheDir}: ${message}`, { cause: error });
  }
}

/** Creates a file under another name and renames it, so that no reader sees it before it is complete. */
async function replace(path: string, create: (fresh: string) => Promise<void>): Promise<void> {
  const fresh = `${path}.${randomBytes(4).toString('hex')}.tmp`;
  await create(fresh);
  await rename(fresh, path).catch(async (error: unknown) => {
    await unlink(fresh);
    throw error;
  });
}

async function listFiles(root: string, folder: string, depth: number): Promise<CachedFile[]> {
  if (depth > MAX_DEPTH) return [];
  const entries = await readdir(join(root, folder), { withFileTypes: true }).catch(ifMissing([]));
  const found = await Promise.all(
    entries.map(async (entry) => {
      const path = posix.join(folder, entry.name);
      if (entry.isDirectory()) return listFiles(root, path, depth + 1);
      const size = await sizeOf(join(root, path));
      return size === undefined ? [] : [{ path, size }];
    }),
  );
  return found.flat();
}

/** Returns the size of a file, or undefined if there is none. Follows links. */
export async function sizeOf(path: string): Promise<number | undefined> {
  const stats: Stats | undefined = await stat(path).catch(ifMissing<Stats | undefined>(undefined));
  return stats?.isFile() === true ? stats.size : undefined;
}

/** Returns a handler for a failed file operation: `value` if there is no such file, or a folder in its place. */
export function ifMissing<T>(value: T): (error: unknown) => T {
  return (error) => {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EISDIR') return value;
    throw error;
  };
}
