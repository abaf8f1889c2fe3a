import { createHash, randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type ResponseStore, type StoreLimits, UseOrder } from './store';

const SUFFIX = '.json';
const UNFINISHED = /\.json\.[0-9a-f]{12}$/;
/** Older unfinished files belong to no running server. */
const MAX_WRITE_MS = 3_600_000;

/**
 * Keeps each response and each chat completion in a file: `{folder}/{hash of the owner}/{id}.json`. The time of the
 * file is that of the last use. Several servers may share the folder. Each one keeps the limits for the files that it
 * knows.
 */
export class FolderResponseStore implements ResponseStore {
  readonly #folder: string;
  readonly #order: UseOrder;
  readonly #now: () => number;
  /** The last change of each file that is being changed. */
  readonly #changes = new Map<string, Promise<unknown>>();

  private constructor(folder: string, limits: StoreLimits, now: () => number) {
    this.#folder = folder;
    this.#order = new UseOrder(limits, now);
    this.#now = now;
  }

  /** Opens or creates the folder. Deletes what exceeds the limits. Rejects if it is not readable and writable. */
  static async open(folder: string, limits: StoreLimits, now: () => number = Date.now): Promise<FolderResponseStore> {
    const store = new FolderResponseStore(folder, limits, now);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const all = await findFiles(folder);
    const isAbandoned = ({ name, usedMs }: StoredFile) => UNFINISHED.test(name) && usedMs + MAX_WRITE_MS < now();
    await store.#drop(all.filter(isAbandoned).map(({ name }) => name));
    const files = all.filter(({ name }) => name.endsWith(SUFFIX));
    for (const { name, numBytes, usedMs } of files.sort((a, b) => a.usedMs - b.usedMs))
      await store.#drop(store.#order.use(dirname(name), name, numBytes, usedMs));
    return store;
  }

  async put(owner: string, id: string, text: string): Promise<boolean> {
    return (await this.#write(owner, id, text, false)) ?? false;
  }

  update(owner: string, id: string, change: (text: string) => string): Promise<boolean | undefined> {
    return this.#afterChanges(nameOf(owner, id), async () => {
      const text = await this.peek(owner, id);
      return text === undefined ? undefined : this.#write(owner, id, change(text), true);
    });
  }

  /** @param isUpdate Whether to return undefined if the file is missing, because another server has deleted it. */
  async #write(owner: string, id: string, text: string, isUpdate: boolean): Promise<boolean | undefined> {
    const numBytes = Buffer.byteLength(text);
    if (!this.#order.fits(numBytes)) return false;
    const name = nameOf(owner, id);
    const path = join(this.#folder, name);
    await mkdir(join(path, '..'), { recursive: true, mode: 0o700 });
    // A reader never sees half a file.
    const unfinished = `${path}.${randomBytes(6).toString('hex')}`;
    try {
      const file = await open(unfinished, 'w', 0o600);
      try {
        await file.writeFile(text);
        await file.sync();
      } finally {
        await file.close();
      }
      if (isUpdate) await stat(path);
      await rename(unfinished, path);
    } catch (error) {
      await rm(unfinished, { force: true });
      if (isUpdate) return ifMissing(error, undefined);
      throw error;
    }
    await this.#drop(this.#order.use(dirname(name), name, numBytes));
    return true;
  }

  async get(owner: string, id: string): Promise<string | undefined> {
    const text = await this.peek(owner, id);
    if (text === undefined) return undefined;
    const name = nameOf(owner, id);
    const nowS = this.#now() / 1000;
    try {
      await utimes(join(this.#folder, name), nowS, nowS);
      await this.#drop(this.#order.use(dirname(name), name, Buffer.byteLength(text)));
      return text;
    } catch (error) {
      return ifMissing(error, undefined);
    }
  }

  async peek(owner: string, id: string): Promise<string | undefined> {
    const path = join(this.#folder, nameOf(owner, id));
    try {
      const { mtimeMs } = await stat(path);
      if (!this.#order.isExpired(mtimeMs)) return await readFile(path, 'utf8');
      await this.#delete(nameOf(owner, id));
      return undefined;
    } catch (error) {
      return ifMissing(error, undefined);
    }
  }

  async ids(owner: string): Promise<string[]> {
    try {
      const names = await readdir(join(this.#folder, folderOf(owner)));
      return names.filter((name) => name.endsWith(SUFFIX)).map((name) => name.slice(0, -SUFFIX.length));
    } catch (error) {
      return ifMissing(error, []);
    }
  }

  delete(owner: string, id: string): Promise<boolean> {
    const name = nameOf(owner, id);
    return this.#afterChanges(name, () => this.#delete(name));
  }

  async #delete(name: string): Promise<boolean> {
    this.#order.remove(name);
    try {
      await rm(join(this.#folder, name));
      return true;
    } catch (error) {
      return ifMissing(error, false);
    }
  }

  /** Deletes what has expired. Otherwise it is deleted when another response is used. */
  async dropExpired(): Promise<void> {
    await this.#drop(this.#order.dropExpired());
  }

  /**
   * Deletes the responses of owners who no longer exist.
   * @param readOwners Returns all owners. Called after the folder is read, so that no new owner is missed.
   */
  async keepOwners(readOwners: () => Promise<readonly string[]>): Promise<void> {
    const folders = await readdir(this.#folder);
    const kept = new Set((await readOwners()).map(folderOf));
    for (const folder of folders.filter((name) => !kept.has(name))) {
      for (const name of await readdir(join(this.#folder, folder)).catch(() => []))
        this.#order.remove(join(folder, name));
      await rm(join(this.#folder, folder), { recursive: true, force: true });
    }
  }

  /** Runs a change of a file after all earlier ones. */
  async #afterChanges<T>(name: string, change: () => Promise<T>): Promise<T> {
    const earlier = this.#changes.get(name);
    const running = earlier === undefined ? change() : earlier.catch(() => {}).then(change);
    this.#changes.set(name, running);
    try {
      return await running;
    } finally {
      if (this.#changes.get(name) === running) this.#changes.delete(name);
    }
  }

  async #drop(names: readonly string[]): Promise<void> {
    for (const name of names) await rm(join(this.#folder, name), { force: true });
  }
}

/** NOTE: `id` comes from a client. `isResponseId` or `isCompletionId` has checked that it is a plain name. */
function nameOf(owner: string, id: string): string {
  return join(folderOf(owner), id + SUFFIX);
}

function folderOf(owner: string): string {
  return createHash('sha256').update(owner).digest('hex').slice(0, 32);
}

interface StoredFile {
  name: string;
  numBytes: number;
  usedMs: number;
}

/** Returns the finished and unfinished files. */
async function findFiles(folder: string): Promise<StoredFile[]> {
  const names = await readdir(folder, { recursive: true });
  const files: StoredFile[] = [];
  for (const name of names.filter((candidate) => candidate.endsWith(SUFFIX) || UNFINISHED.test(candidate))) {
    // Another server may delete a file meanwhile.
    const found = await stat(join(folder, name)).catch((error: unknown) => ifMissing(error, undefined));
    if (found !== undefined) files.push({ name, numBytes: found.size, usedMs: found.mtimeMs });
  }
  return files;
}

function ifMissing<T>(error: unknown, value: T): T {
  if ((error as NodeJS.ErrnoException).code === 'ENOENT') return value;
  throw error;
}
