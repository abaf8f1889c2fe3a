import { randomBytes } from 'node:crypto';
import { type FileHandle, open, readFile, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { DISK_FULL } from '../../base/disk-full';
import { ApiError } from '../../base/errors';

/** Ends the names of files that are being written. A start removes what a crash left of them. */
export const TEMPORARY = '.tmp';

/** Writes a file that has its old content or the new one after a crash. @throws ApiError `storage_full`. */
export async function writeAtomically(path: string, content: string | Uint8Array): Promise<void> {
  const temporary = `${path}.${randomBytes(6).toString('hex')}${TEMPORARY}`;
  try {
    const file = await open(temporary, 'wx', 0o600);
    try {
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
    await syncFolder(dirname(path));
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {});
    throw toStorageError(error);
  }
}

/**
 * Returns the object in a JSON file, or undefined if its content is damaged. Rejects if the file cannot be read.
 * @param isRecord Whether an object has the fields of a record.
 */
export async function readRecord<T extends object>(
  path: string,
  isRecord: (value: Partial<T>) => boolean,
): Promise<T | undefined> {
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    throw new Error(`cannot read ${path}: ${(error as Error).message}. Make it readable, or move it elsewhere`, {
      cause: error,
    });
  });
  try {
    const value = JSON.parse(text) as T | null;
    return typeof value === 'object' && value !== null && isRecord(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Makes new names and removed ones in a folder survive a power failure. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

export async function writeAll(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < bytes.length;) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}

/** Returns ApiError `storage_full` for a full disk, and any other error unchanged. */
export function toStorageError(error: unknown): unknown {
  if (!DISK_FULL.test(String(error))) return error;
  return new ApiError('storage_full', "The disk of the server's data directory is full", { cause: error });
}
