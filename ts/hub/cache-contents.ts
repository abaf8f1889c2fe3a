import { readdir, readFile, readlink, rm, rmdir, stat, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { CapstanError } from '../errors';
import { cachedRepositories, ifMissing, RepositoryCache } from './cache';
import { lockOnce } from './file-lock';
import { findRevision } from './revisions';
import type { HubSystem } from './system';

/** One revision of a model in the cache. */
export interface CachedRevision {
  /** Hash of the commit, 40 hexadecimal digits. */
  commit: string;
  /** Branches and tags of the commit. */
  revisions: string[];
  /** The files of the revision that are in the cache. */
  files: {
    /** Path inside the repository. */
    path: string;
    /** Size in bytes. */
    sizeBytes: number;
  }[];
  /** Sum of the files, shared ones included. */
  sizeBytes: number;
  /** When a file was last read, in milliseconds since 1970. File systems update it about once a day. */
  lastUsedMs: number;
}

/** A model in the cache. */
export interface CachedRepository {
  /** `ORG/NAME` */
  repository: string;
  /** Its revisions in the cache. */
  revisions: CachedRevision[];
  /** Bytes on disk. Files that several revisions share count once. */
  sizeBytes: number;
  /** Bytes of downloads that have not finished, part of `sizeBytes`. */
  partialBytes: number;
}

const COMMIT = /^[0-9a-f]{40}$/;
/** How the names of unfinished downloads end. huggingface_hub adds it too. */
const INCOMPLETE = '.incomplete';

export async function readCache(cacheDir: string): Promise<CachedRepository[]> {
  const names = await cachedRepositories(cacheDir);
  return Promise.all(names.map((name) => readRepository(new RepositoryCache(cacheDir, name), name)));
}

async function readRepository(cache: RepositoryCache, repository: string): Promise<CachedRepository> {
  const refs = await readRefs(cache);
  const commits = await commitsOf(cache);
  const revisions = await Promise.all(commits.map((commit) => readRevision(cache, commit, refs)));
  const blobs = await blobsOf(cache);
  const sum = (names: readonly { sizeBytes: number }[]): number =>
    names.reduce((total, { sizeBytes }) => total + sizeBytes, 0);
  return {
    repository,
    revisions,
    sizeBytes: sum(blobs),
    partialBytes: sum(blobs.filter(({ name }) => name.endsWith(INCOMPLETE))),
  };
}

async function readRevision(
  cache: RepositoryCache,
  commit: string,
  refs: ReadonlyMap<string, string>,
): Promise<CachedRevision> {
  const folder = cache.snapshot(commit);
  const listed = await cache.files(commit);
  const stats = await Promise.all(listed.map(({ path }) => stat(join(folder, path)).catch(ifMissing(undefined))));
  return {
    commit,
    revisions: [...refs].filter(([, target]) => target === commit).map(([name]) => name),
    files: listed.map(({ path, size }) => ({ path, sizeBytes: size })),
    sizeBytes: listed.reduce((sum, { size }) => sum + size, 0),
    lastUsedMs: stats.reduce((latest, file) => Math.max(latest, file?.atimeMs ?? 0), 0),
  };
}

async function commitsOf({ snapshots }: RepositoryCache): Promise<string[]> {
  const names = await readdir(snapshots).catch(ifMissing<string[]>([]));
  return names.filter((name) => COMMIT.test(name)).sort();
}

/** Returns the commit of each branch and tag. A name may have slashes. */
async function readRefs({ folder }: RepositoryCache): Promise<Map<string, string>> {
  const root = join(folder, 'refs');
  const entries = await readdir(root, { recursive: true, withFileTypes: true }).catch(ifMissing([]));
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  const commits = files.map(
    async (file) => [file.slice(root.length + 1), (await readFile(file, 'utf8')).trim()] as const,
  );
  return new Map(await Promise.all(commits));
}

async function blobsOf({ folder }: RepositoryCache): Promise<{ name: string; sizeBytes: number }[]> {
  const root = join(folder, 'blobs');
  const names = await readdir(root).catch(ifMissing<string[]>([]));
  // A download that ends renames its file.
  const stats = names.map(async (name) => ({ name, file: await stat(join(root, name)).catch(ifMissing(undefined)) }));
  return (await Promise.all(stats)).flatMap(({ name, file }) => (file ? [{ name, sizeBytes: file.size }] : []));
}

/**
 * Deletes a revision of a model and the blobs that no other revision uses, or the model with its unfinished downloads.
 * Returns the freed bytes.
 * @throws CapstanError `model_not_found`, or `io_error` while a process downloads the model.
 */
export async function removeFromCache(
  cacheDir: string,
  repository: string,
  revision: string | undefined,
  system: Pick<HubSystem, 'tryLock'>,
): Promise<number> {
  const cache = new RepositoryCache(cacheDir, repository);
  return withAllLocks(cache, system, async () => {
    const before = await readRepository(cache, repository);
    if (before.revisions.length === 0 && before.sizeBytes === 0)
      throw new CapstanError('model_not_found', `${repository} is not in the cache. List it: capstan models list`);
    if (revision === undefined) {
      await rm(cache.folder, { recursive: true });
      return before.sizeBytes;
    }
    await removeCommit(cache, await chooseCommit(cache, before, revision));
    return before.sizeBytes - (await readRepository(cache, repository)).sizeBytes;
  });
}

async function chooseCommit(
  cache: RepositoryCache,
  { repository, revisions }: CachedRepository,
  revision: string,
): Promise<string> {
  // The commit of a branch may be missing. Then the name of the branch is not taken for the start of a commit.
  const found = findRevision(revisions, (await cache.commitOf(revision)) ?? revision);
  if (found !== undefined) return found.commit;
  const known = revisions.map(({ commit }) => commit).join(', ');
  throw new CapstanError(
    'model_not_found',
    `${repository}: expected one of the revisions in the cache (${known}), got "${revision}"`,
  );
}

async function removeCommit(cache: RepositoryCache, commit: string): Promise<void> {
  for (const [name, target] of await readRefs(cache))
    if (target === commit) await unlink(join(cache.folder, 'refs', name));
  await rm(cache.snapshot(commit), { recursive: true });
  await rm(join(cache.folder, '.no_exist', commit), { recursive: true, force: true });
  // A list of files that huggingface_hub keeps.
  await rm(join(cache.folder, 'trees', `${commit}.json`), { force: true });
  const used = await usedBlobs(cache);
  for (const { name } of await blobsOf(cache))
    if (!used.has(name) && !name.endsWith(INCOMPLETE)) await unlink(cache.blob(name));
}

/** Returns the names of the blobs that a snapshot links to, in folders of any depth and of other programs too. */
async function usedBlobs({ snapshots }: RepositoryCache): Promise<Set<string>> {
  const entries = await readdir(snapshots, { recursive: true, withFileTypes: true }).catch(ifMissing([]));
  const links = entries.filter((entry) => entry.isSymbolicLink());
  const targets = links.map((link) => readlink(join(link.parentPath, link.name)));
  return new Set((await Promise.all(targets)).map((target) => basename(target)));
}

/** @throws CapstanError `io_error` if another process has a lock of the repository. */
async function withAllLocks<T>(
  { lockFolder, folder }: RepositoryCache,
  { tryLock }: Pick<HubSystem, 'tryLock'>,
  work: () => Promise<T>,
): Promise<T> {
  const names = await readdir(lockFolder).catch(ifMissing<string[]>([]));
  const held: { close: () => Promise<void> }[] = [];
  try {
    for (const name of names) {
      const file = await lockOnce(join(lockFolder, name), tryLock);
      if (file === undefined)
        throw new CapstanError('io_error', `${folder} is in use by a download. Wait until it ends, or stop it`);
      held.push(file);
    }
    const result = await work();
    for (const name of names) await rm(join(lockFolder, name), { force: true });
    // A download that has begun meanwhile holds a lock in the folder.
    await rmdir(lockFolder).catch(ifNotEmpty);
    return result;
  } finally {
    for (const file of held) await file.close();
  }
}

function ifNotEmpty(error: unknown): void {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== 'ENOENT' && code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
}
