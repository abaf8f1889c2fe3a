import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, rmdir, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { CapstanError } from '../errors';

/**
 * Runs `fill` on a new folder beside `out`, which then gets the name `out`. Removes the new folder if `fill` rejects.
 * @throws CapstanError `invalid_argument` if `out` exists and is not an empty folder, or `io_error`.
 */
export async function fillFolder<T>(out: string, fill: (folder: string) => Promise<T>): Promise<T> {
  const target = resolve(out);
  const parent = dirname(target);
  try {
    await demandFree(target, out);
    await mkdir(parent, { recursive: true });
    const folder = join(parent, `.${basename(target)}.${randomBytes(4).toString('hex')}.partial`);
    await mkdir(folder);
    try {
      const result = await fill(folder);
      await sync(folder);
      await demandFree(target, out);
      if (await exists(target)) await rmdir(target);
      await rename(folder, target);
      await sync(parent);
      return result;
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  } catch (error) {
    throw toCapstanError(error, out);
  }
}

async function demandFree(target: string, out: string): Promise<void> {
  const expected = 'a folder that is empty or does not exist';
  const stats = await stat(target).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (stats === undefined) return;
  if (!stats.isDirectory()) throw CapstanError.unexpected('invalid_argument', 'out', expected, `a file, ${out}`);
  const names = await readdir(target);
  if (names.length === 0) return;
  const received = `${out} with ${names.length === 1 ? names[0] : `${names.length} files`}`;
  throw CapstanError.unexpected('invalid_argument', 'out', expected, received);
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

/** Makes the names in a folder durable. */
async function sync(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function toCapstanError(error: unknown, out: string): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  if (error instanceof CapstanError || typeof code !== 'string' || !/^E[A-Z]+$/.test(code)) return error;
  const reason =
    code === 'ENOSPC' || code === 'EDQUOT' ? 'the disk is full. Free some space or choose another' : message;
  return new CapstanError('io_error', `${out}: cannot write the checkpoint: ${reason}`, { param: 'out', cause: error });
}
