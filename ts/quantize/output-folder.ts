import { randomBytes } from 'node:crypto';
import { lstat, mkdir, open, readdir, realpath, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { CapstanError } from '../errors';
import { makeFolder } from '../make-folder';

/** Moved last: a folder without it is not a model. */
const LAST_FILE = 'config.json';
/** A new file system has it. */
const LOST_FILES = 'lost+found';

/**
 * Checks that {@link fillFolder} may write to `out`. Returns its path without links, and whether it exists.
 * @throws CapstanError `invalid_argument` or `io_error`
 */
export async function checkOutput(out: string): Promise<{ target: string; exists: boolean }> {
  const path = resolve(out);
  try {
    const stats = await stat(path).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
      const isLink = (await lstat(path).catch(() => undefined)) !== undefined;
      if (isLink) throw unusable(`${out}, a link to a folder that does not exist. Create that folder`);
    });
    if (stats === undefined) return { target: path, exists: false };
    if (!stats.isDirectory()) throw unusable(`a file, ${out}`);
    await demandEmpty(path, out);
    return { target: await realpath(path), exists: true };
  } catch (error) {
    throw toCapstanError(error, out);
  }
}

/**
 * Runs `fill` on a new folder. If `out` does not exist, the new folder then gets this name. If `out` is an empty
 * folder, it then gets the files. It may be a mount point, so it is not replaced. Nothing stays if `fill` rejects.
 * @throws CapstanError `invalid_argument` if `out` exists and is not an empty folder, or `io_error`.
 */
export async function fillFolder<T>(out: string, fill: (folder: string) => Promise<T>): Promise<T> {
  const { target, exists } = await checkOutput(out);
  const suffix = `${randomBytes(4).toString('hex')}.partial`;
  const folder = exists ? join(target, `.${suffix}`) : join(dirname(target), `.${basename(target)}.${suffix}`);
  try {
    makeFolder(dirname(folder));
    await mkdir(folder);
    try {
      const result = await fill(folder);
      await syncFolder(folder);
      await (exists ? moveFiles(folder, target, out) : moveFolder(folder, target, out));
      return result;
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  } catch (error) {
    throw toCapstanError(error, out);
  }
}

async function moveFolder(folder: string, target: string, out: string): Promise<void> {
  await checkOutput(out);
  await rename(folder, target);
  await trySync(dirname(target));
}

async function moveFiles(folder: string, target: string, out: string): Promise<void> {
  await demandEmpty(target, out, basename(folder));
  const names = (await readdir(folder)).filter((name) => name !== LAST_FILE);
  const moved: string[] = [];
  try {
    for (const name of [...names, LAST_FILE]) {
      if (name === LAST_FILE) await trySync(target);
      await rename(join(folder, name), join(target, name));
      moved.push(name);
    }
  } catch (error) {
    for (const name of moved) await rm(join(target, name), { recursive: true, force: true });
    throw error;
  }
  await rm(folder, { recursive: true, force: true });
  await trySync(target);
}

/** @param own A name that may be there. */
async function demandEmpty(folder: string, out: string, own?: string): Promise<void> {
  const names = (await readdir(folder)).filter((name) => name !== own && name !== LOST_FILES);
  if (names.length > 0) throw unusable(`${out} with ${names.length === 1 ? names[0] : `${names.length} files`}`);
}

function unusable(received: string): CapstanError {
  const expected = 'a folder that is empty or does not exist';
  return CapstanError.unexpected('invalid_argument', 'out', expected, received);
}

/** Makes the names in a folder durable. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** The checkpoint is complete without it. Some file systems cannot sync a folder. */
async function trySync(folder: string): Promise<void> {
  await syncFolder(folder).catch(() => {});
}

function toCapstanError(error: unknown, out: string): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  if (error instanceof CapstanError || typeof code !== 'string' || !/^E[A-Z]+$/.test(code)) return error;
  const reason =
    code === 'ENOSPC' || code === 'EDQUOT' ? 'the disk is full. Free some space or choose another' : message;
  return new CapstanError('io_error', `${out}: cannot write the checkpoint: ${reason}`, { param: 'out', cause: error });
}
